"""Reading a partition in a task: the same rows at each evaluation, and an error if that cannot be."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.errors import StagingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.pull.lease import STREAM_LEASE_SECONDS
from pubsub_spark.read.runtime import Runtime
from pubsub_spark.read.staging import fencing
from pubsub_spark.read.staging import part as staged_part
from pubsub_spark.read.staging.area import Staging, given_path, part_path
from pubsub_spark.read.staging.store import open_store
from pubsub_spark.read.task import partition_reader
from pubsub_spark.read.task.partitions import DriverPartition, Partition, PullPartition, StagedPartition
from tests.unit.read import service
from tests.unit.read.service import SUBSCRIPTION, Service, response
from tests.unit.read.store import WatchedStore

LONG = 30.0


class HastyEvent(threading.Event):
    """An event that is waited for a moment at most."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(0.01)


class TaskRuntime(Runtime):
    """The operating system's runtime, with a lease clock that a test sets. Extensions are due at once."""

    now = 0.0

    def boottime(self) -> float:
        return self.now

    def event(self) -> threading.Event:
        return HastyEvent()


@dataclass
class Task:
    """A task of batch 1 with its staging area. before: see `WatchedStore`."""

    folder: Path
    runtime: TaskRuntime = field(default_factory=TaskRuntime)
    service: Service = field(default_factory=Service)
    before: Callable[[str, str], Any] = lambda *_: None

    def __post_init__(self) -> None:
        self.store = WatchedStore(str(self.folder), lambda call, path: self.before(call, path))
        self.staging = Staging(self.store, SUBSCRIPTION, uuid.uuid4().hex, epoch=1)
        self.staging.write_token()
        self.staging.create(part_path(1, 0), service.part(["driver"]))
        self.partition = PullPartition(self.staging, 1, 1, 10, 10**6, self.runtime.wall() + 1000)

    @property
    def unwatched(self) -> Staging:
        """The staging area as another task sees it."""
        return replace(self.staging, store=open_store(str(self.folder)))

    def connect(self) -> Any:
        return self.service

    def rows(self, partition: Partition | None = None, **options: str) -> list[str]:
        backend: Any = self
        read = ReadOptions.parse({"subscriptionId": SUBSCRIPTION, "idleTimeout": "50ms", **options}, {})
        batches = partition_reader.read(partition or self.partition, read, backend, self.runtime)
        return [data.decode() for batch in batches for data in batch.column("data").to_pylist()]

    @property
    def nacked(self) -> list[str]:
        return [ack_id for seconds, ack_ids in self.service.modified if seconds == 0 for ack_id in ack_ids]


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Return a task with three messages to pull."""
    return Task(tmp_path, service=Service(scripts=[[response("abc")]]))


def content(texts: Iterable[str]) -> bytes:
    return b"".join(service.part(texts))


def test_each_evaluation_has_the_rows_of_the_first(task: Task):
    """The first one pulls and stages, later ones read. The part is recorded as yielded."""
    assert ["a", "b", "c"] == task.rows()
    assert ["a", "b", "c"] == task.rows()
    assert 1 == len(task.service.openings)
    assert {0, 1} == task.staging.parts(1).keys()
    assert given_path(1, 1) in task.staging.files("1/")
    assert ([], []) == (task.nacked, task.service.acked)


def test_rows_of_the_driver_come_first(task: Task):
    """In a backlog its part is read with the first task's."""
    first = replace(task.partition, driver_content=content(["d", "e"]))
    assert ["d", "e", "a", "b", "c"] == task.rows(first)
    assert ["d", "e", "a", "b", "c"] == task.rows(first)
    assert ["d", "e"] == task.rows(DriverPartition(task.staging, 1, content(["d", "e"])))


def test_replay_reads_what_is_staged(task: Task):
    """It never pulls."""
    task.staging.create(part_path(1, 1), service.part("xy"))
    assert ["driver", "x", "y"] == task.rows(StagedPartition(task.staging, 1, [0, 1]))
    assert [] == task.rows(StagedPartition(task.staging, 1, []))
    assert [] == task.service.openings


def test_connection_is_closed_before_the_first_row(task: Task):
    """A slow consumer of the rows holds no stream open."""
    backend: Any = task
    options = ReadOptions.parse({"subscriptionId": SUBSCRIPTION, "idleTimeout": "50ms"}, {})
    next(partition_reader.read(task.partition, options, backend, task.runtime))
    assert task.service.closed


def test_attempt_that_stages_first_is_the_one_that_counts(task: Task):
    """The other one nacks its messages, and yields the rows of the first."""

    def overtake(call: str, path: str) -> None:
        if call == "create" and path.endswith("/1/part-1"):
            task.unwatched.create(part_path(1, 1), service.part("xy"))

    task.before = overtake
    assert ["x", "y"] == task.rows()
    assert ["ack-a", "ack-b", "ack-c"] == task.nacked


def test_task_of_a_run_that_was_taken_over_stages_nothing(task: Task):
    """The messages are nacked, and the new run gets them."""
    fencing.claim(task.staging, 1000.0)
    with pytest.raises(StagingError, match="Another query has taken over"):
        task.rows()
    assert ["ack-a", "ack-b", "ack-c"] == task.nacked
    assert {0} == task.staging.parts(1).keys()


def test_part_that_was_held_longer_than_its_lease_is_not_staged(task: Task):
    """The machine slept: another task of the batch may have been sent the messages."""

    def sleep(call: str, path: str) -> None:
        if call == "list" and path.endswith("/owners/"):
            task.runtime.now += STREAM_LEASE_SECONDS

    task.before = sleep
    with pytest.raises(StagingError, match="was held for 65 s before it was staged, longer than its lease of 60 s"):
        task.rows()
    assert ["ack-a", "ack-b", "ack-c"] == task.nacked
    assert {0} == task.staging.parts(1).keys()


def test_staging_that_fails_nacks_nothing(task: Task):
    """The store may have the part in spite of its error. The next attempt yields it then."""

    def fail(call: str, path: str) -> None:
        if call == "create" and path.endswith("/1/part-1"):
            task.unwatched.create(part_path(1, 1), service.part("abc"))
            raise StagingError("no answer")

    task.before = fail
    with pytest.raises(StagingError, match="no answer"):
        task.rows()
    assert [] == task.nacked
    assert ["a", "b", "c"] == task.rows()


def test_leases_are_extended_while_a_part_is_staged(task: Task):
    """A slow store ends no lease. Only the task knows the messages yet."""

    def wait(call: str, path: str) -> None:
        if call == "create" and path.endswith("/1/part-1"):
            end = task.runtime.monotonic() + LONG
            while len(task.service.modified) < 2:
                assert task.runtime.monotonic() < end, "leases are extended"
                threading.Event().wait(0.005)

    task.before = wait
    assert ["a", "b", "c"] == task.rows()
    assert {(60, ("ack-a", "ack-b", "ack-c"))} == {(seconds, tuple(ids)) for seconds, ids in task.service.modified}


def test_files_that_a_run_deleted_which_took_over_are_not_called_lost(task: Task):
    """No cleaner has removed them."""
    fencing.claim(task.unwatched, 5000)

    for partition in (
        StagedPartition(task.staging, 2, (0,)),
        replace(task.partition, excludes=("in-doubt/1-1",)),
        replace(task.partition, batch=2),
    ):
        with pytest.raises(StagingError, match="Another query has taken over stream"):
            task.rows(partition)


def test_part_that_is_gone_is_no_part_without_rows(task: Task):
    """A replay without its rows would lose them silently."""
    with pytest.raises(StagingError, match=r"1/part-2` is gone from .* Its messages were not acknowledged"):
        task.rows(StagedPartition(task.staging, 1, [2]))


def test_part_whose_rows_were_yielded_is_not_pulled_again(task: Task):
    """A cleaner removed it: other messages would be acknowledged than the first evaluation has yielded."""
    task.rows()
    (task.folder / task.staging.root / "1/part-1").unlink()
    with pytest.raises(StagingError, match=r"The staged files of batch 1 of .* are gone .* cleanup jobs"):
        task.rows()
    assert 1 == len(task.service.openings)


def test_part_in_the_place_of_one_that_was_yielded_is_not_yielded(task: Task):
    """Two attempts have pulled, and a cleaner removed the part that was yielded before the other one was staged."""

    def yield_another(call: str, path: str) -> None:
        if call == "create" and path.endswith("/1/part-1"):
            task.unwatched.record_yielded(1, 1, staged_part.footer(content("xy")))

    task.before = yield_another
    with pytest.raises(StagingError, match=r"The staged files of batch 1 of .* are gone"):
        task.rows()
    with pytest.raises(StagingError, match=r"The staged files of batch 1 of .* are gone"):
        task.rows()


def test_part_that_another_attempt_has_staged_meanwhile_is_yielded(task: Task):
    """It was staged and yielded between two looks of this attempt: no file is gone."""

    def overtake(call: str, path: str) -> None:
        if call == "list" and path.endswith("/1/"):
            task.before = lambda *_: None
            task.unwatched.create(part_path(1, 1), service.part("xy"))
            task.unwatched.record_yielded(1, 1, staged_part.footer(content("xy")))

    task.before = overtake
    assert ["x", "y"] == task.rows()


def test_replay_of_a_part_that_was_replaced_fails(task: Task):
    """A cleaner removed it, and a late attempt of the run before has staged other messages."""
    task.staging.create(part_path(1, 1), service.part("xy", part_id="late"))
    assert ["x", "y"] == task.rows(StagedPartition(task.staging, 1, [1], ids={1: "late"}))
    with pytest.raises(StagingError, match=r"The staged files of batch 1 of .* are gone"):
        task.rows(StagedPartition(task.staging, 1, [1], ids={1: "first"}))


def test_run_that_takes_over_while_a_part_is_staged_replays_it(task: Task):
    """Or it has listed the batch before. This task cannot know, so it yields nothing and nacks nothing."""

    def take_over(call: str, path: str) -> None:
        if call == "create" and path.endswith("/1/part-1"):
            fencing.claim(task.unwatched, 1000.0)

    task.before = take_over
    for _ in range(2):
        with pytest.raises(StagingError, match="Another query has taken over"):
            task.rows()
    assert [] == task.nacked
    assert {0, 1} == task.staging.parts(1).keys()


def test_batch_whose_files_are_gone_is_not_pulled(task: Task):
    """Without the driver's part the yielded rows are unknown."""
    task.staging.delete("1/")
    with pytest.raises(StagingError, match=r"The staged files of batch 1 of .* are gone"):
        task.rows()
    assert [] == task.service.openings


def test_late_attempt_of_a_replayed_batch_pulls_nothing(task: Task):
    """The parts of a replay are fixed."""
    task.staging.write_manifest(1)
    with pytest.raises(StagingError, match="is replayed by a restarted query, so part 1 of its first run is not"):
        task.rows()
    assert [] == task.service.openings


def test_batch_that_was_deleted_is_an_error_or_has_no_rows(task: Task):
    """A DataFrame of `foreachBatch` that is used after it returned."""
    task.staging.delete_acknowledged([1], 1)
    with pytest.raises(StagingError, match="was acknowledged and deleted when its query continued"):
        task.rows()
    assert [] == task.rows(failOnDataLoss="false")
    assert [] == task.service.openings


def test_executor_that_does_not_see_the_staging_area_reads_nothing(task: Task, tmp_path_factory: Any):
    """It would pull a batch that the driver never finds."""
    elsewhere = Staging(open_store(str(tmp_path_factory.mktemp("elsewhere"))), SUBSCRIPTION, "stream")
    with pytest.raises(StagingError, match="cannot see the driver's staging area"):
        task.rows(replace(task.partition, staging=elsewhere))


def test_malformed_payloads_are_counted_once_for_each_part(task: Task):
    """However often a part is read."""
    staging = task.staging
    for each in (DriverPartition(staging, 1, b""), StagedPartition(staging, 1, [2]), StagedPartition(staging, 1, [2])):
        partition_reader.count_malformed(each, 3)

    assert 6 == staging.malformed(1)
    assert 0 == staging.malformed(2)


def test_each_attempt_has_a_client_id_of_its_own(task: Task):
    """A speculative, retried or zombie attempt must not take over the stream state of another, as the API asks."""
    for _ in range(3):
        task.rows()
        task.staging.delete("1/")  # as if the attempts had pulled at the same time
        task.staging.create(part_path(1, 0), service.part([]))

    names = [opening.client_id for opening in task.service.openings]
    assert (3, 3) == (len(names), len(set(names)))
