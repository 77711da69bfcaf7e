"""The start of a run: the staging area's content becomes a ledger, and lost batches are an error or a WARNING."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.pubsub_v1 import types

from pubsub_spark.errors import ResourceError, StagingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.ledger import State
from pubsub_spark.read.driver.run import Run
from pubsub_spark.read.driver.start import Start, check_not_behind
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.staging import fencing
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.ids import merged
from pubsub_spark.read.staging.store import Store, open_store
from tests.unit.read.driver.running import LeaseClock
from tests.unit.read.service import SUBSCRIPTION, Service, ids, part

TOPIC = "projects/test-project/topics/topic"


@dataclass
class Admin:
    """A subscription that may be pulled from."""

    found: types.Subscription = field(default_factory=lambda: types.Subscription(name=SUBSCRIPTION, topic=TOPIC))

    def subscription(self, name: str) -> types.Subscription:
        return self.found

    def check_permission(self, *_: str) -> None:
        pass


@dataclass
class AdminService(Service):
    """A service with an admin client."""

    admin: Admin = field(default_factory=Admin)

    def connect(self) -> Any:
        return self


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")


def options(**texts: str) -> ReadOptions:
    return ReadOptions.parse({"subscriptionId": SUBSCRIPTION, **texts}, {})


Started = Callable[..., Any]


@pytest.fixture
def started(staging: Staging) -> Started:
    """Start a run after a batch of the stream, and end its driver stream afterwards.

    is_claimed: whether an earlier run has claimed the area, as it does before it stages anything.
    """

    @contextmanager
    def start(
        batch: int,
        is_replay: bool = False,
        service: Any = None,
        area: str | None = staging.area,
        store: type[Store] = Store,
        is_first: bool = False,
        is_claimed: bool = True,
        **texts: str,
    ) -> Iterator[Run]:
        backend: Any = AdminService() if service is None else service
        offset = Offset("stream", batch, area=area)
        start = Start(options(**texts), backend, store(staging.location), LeaseClock())
        if is_claimed and area == staging.area and not staging.epochs():
            fencing.claim(staging, 1.0)
        run = start.run(offset, is_replay, is_first=is_first)
        try:
            yield run
        finally:
            run.stream.close()

    return start


def states(run: Run) -> dict[int, list[State]]:
    batches = (*run.ledger.uncommitted, *run.ledger.undeleted)
    return {batch: [each.state for each in run.ledger.parts_of(batch)] for batch in batches}


def test_what_is_staged_becomes_the_ledger(staging: Staging, started: Started):
    """Batches up to the checkpoint's are committed, later ones are not known yet, deleted ones were late."""
    staging.begin_after(1)
    for batch in (1, 2, 3, 4):
        staging.create(f"{batch}/part-0", part(["a"]))
    with started(3) as run:
        assert {2: [State.COMMITTED], 3: [State.COMMITTED]} == states(run)
        assert (3, frozenset({2, 3, 4}), TOPIC) == (run.ledger.last_commit, run.staged, run.topic)
        assert all(each.lease.is_expired(run.now()) for batch in (2, 3) for each in run.ledger.parts_of(batch))
    assert [2, 3, 4] == staging.batches()


def test_damaged_part_of_a_committed_batch_is_left_out(
    staging: Staging, started: Started, caplog: pytest.LogCaptureFixture
):
    """Its messages will be delivered again. The other parts are acknowledged."""
    staging.begin_after(0)
    staging.create("1/part-0", [b"damaged"])
    staging.create("1/part-1", part(["a"]))
    with started(1) as run:
        assert [1] == [each.number for each in run.ledger.parts_of(1)]
    assert "part 0 of batch 1 of" in caplog.text


@pytest.mark.parametrize(
    ("left", "reported"), [(0, "3 of the committed batches 1 to 3"), (2, "1 of the committed batches 2 to 3")]
)
def test_committed_batches_without_files_are_reported(
    staging: Staging, started: Started, caplog: pytest.LogCaptureFixture, left: int, reported: str
):
    """A cleaner has removed the files, one batch's or all, before the acks. Their messages are rows again."""
    if left:
        staging.begin_after(1)
        staging.create("2/part-0", part(["a"]))
    with started(3, is_claimed=bool(left)):
        pass
    assert reported in caplog.text
    caplog.clear()
    with started(3, is_claimed=bool(left)):
        pass
    assert (reported in caplog.text) == bool(left)


@pytest.mark.parametrize("name", ["given-1", "malformed-0-1"])
def test_committed_batch_without_parts_is_reported(
    staging: Staging, started: Started, caplog: pytest.LogCaptureFixture, name: str
):
    """A cleaner has left one of its other files."""
    staging.begin_after(1)
    staging.create(f"2/{name}", [b""])
    with started(2):
        pass
    assert "part 0 of batch 2 of" in caplog.text


def test_new_run_ends_the_one_before(staging: Staging, started: Started):
    """The start is the claim of the area."""
    with started(0) as first, started(0) as second:
        assert fencing.taken_over(first.staging) is not None
        assert fencing.taken_over(second.staging) is None


class Overtaken(Store):
    """A store that lets a later run claim the area and commit batch 1 while it records that the first has begun."""

    def put(self, path: str, content: Any) -> None:
        super().put(path, content)
        if "unfinished" in path:
            later = fencing.claim(Staging(Store(self.location), SUBSCRIPTION, "stream"), time.time() + 60)
            later.begin_run(time.time(), 60.0)
            later.write_ids(f"in-doubt/{later.epoch}-1", merged([ids("a")]), until=2e9, batch=1, topic=TOPIC)
            later.create(f"schemas/{32 * '0'}", [b"{}"])


def test_start_that_a_later_run_overtakes_deletes_nothing(staging: Staging, started: Started):
    """Its store was slow for minutes. Its checkpoint is older than the ids in doubt of the later run."""
    staging.begin_after(0)
    with pytest.raises(StagingError, match="Another query has taken over"), started(0, store=Overtaken):
        pass
    epoch = staging.epochs()[-1]
    assert [f"in-doubt/{epoch}-1"] == staging.files("in-doubt/")
    assert f"unfinished/{epoch}" in staging.files("unfinished/")
    assert [f"schemas/{32 * '0'}"] == staging.files("schemas/")


def test_ids_in_doubt_of_earlier_runs_are_known(staging: Staging, started: Started):
    """A restart drops redeliveries of messages whose acks may be lost."""
    with started(0) as run:
        wall = run.runtime.wall()
    staging.begin_after(5)
    staging.write_ids("in-doubt/1-1", merged([ids("a")]), until=wall + 100, batch=5, topic=TOPIC)
    with started(5) as run:
        assert {"in-doubt/1-1"} == run.ledger.in_doubt.files
        assert [(1, 5)] == [(each.count, each.batch) for each in run.ledger.in_doubt.runs]


@pytest.mark.parametrize("area", ["elsewhere", None])
@pytest.mark.parametrize("batch", [7, 0])
def test_batch_of_another_area_begins_a_new_stream(staging: Staging, started: Started, batch: int, area: str | None):
    """The other area may hold staged parts, also of batches after a checkpoint that was put back. A later run there
    would acknowledge them.
    """
    with started(batch, area=area) as run:
        assert "stream" != run.staging.stream
        assert batch == run.staging.last_acknowledged()
        run.staging.check_token()


def test_replay_of_a_batch_of_another_area_begins_a_new_stream(staging: Staging, started: Started):
    """It has no rows."""
    with started(0, is_replay=True, area="elsewhere", failOnDataLoss="false") as run:
        assert "stream" != run.staging.stream


@pytest.mark.parametrize("is_replay", [True, False])
def test_part_that_a_dead_driver_stages_late_is_never_acknowledged(staging: Staging, started: Started, is_replay: bool):
    """Its upload was on the way when the driver died, and all else was removed or is elsewhere."""
    with started(3, is_replay, is_claimed=False) as run:
        assert "stream" != run.staging.stream
    staging.create("3/part-0", part(["a"]))
    with started(3, is_claimed=False) as run:
        assert "stream" != run.staging.stream
        assert [] == run.ledger.parts_of(3)
        assert [] == run.staging.batches()


def test_start_that_was_stopped_takes_nothing_over(staging: Staging, started: Started):
    """Spark does not wait for it: the next run may have begun while a call of this one took long."""
    with started(0) as run:
        backend: Any = AdminService()
        start = Start(options(), backend, staging.store, LeaseClock())
        with pytest.raises(StagingError, match="stopped while it started"):
            start.run(Offset("stream", 0, area=staging.area), False, lambda: True)
        assert [run.staging.epoch] == staging.epochs()


def test_numbers_that_an_earlier_run_could_not_delete_are_deleted(staging: Staging, started: Started):
    """Only the last one counts."""
    staging.create("acknowledged/2", [])
    staging.create("acknowledged/3", [])
    with started(3) as run:
        assert 3 == run.staging.last_acknowledged()
        assert ["acknowledged/3"] == run.staging.files("acknowledged/")


def test_part_without_the_drivers_part_is_never_acknowledged(
    staging: Staging, started: Started, caplog: pytest.LogCaptureFixture
):
    """A late task staged it after its batch was deleted, and a cleaner has removed the number of that batch."""
    staging.create("3/part-1", part(["a"]))
    with started(3) as run:
        assert [] == run.ledger.parts_of(3)
        assert [3] == run.ledger.deletable()
    assert "part 1 of batch 3 of" in caplog.text
    assert "because the driver's part is gone" in caplog.text


def test_checkpoint_that_is_behind_fails_before_anything_is_claimed(staging: Staging, started: Started):
    """An old checkpoint, or a copy: batches that it asks for were acknowledged."""
    staging.begin_after(3)
    staging.create("4/part-0", part(["a"]))
    with pytest.raises(StagingError, match="is at batch 2, but batches up to 3 were"), started(2, is_claimed=False):
        pass
    assert [] == staging.epochs()


def test_checkpoint_that_is_behind_may_continue_in_a_new_stream(
    staging: Staging, started: Started, caplog: pytest.LogCaptureFixture
):
    """With `failOnDataLoss=false` the numbers of batches that exist are not used again."""
    staging.begin_after(3)
    with started(2, failOnDataLoss="false") as run:
        assert "stream" != run.staging.stream
        assert 2 == run.staging.last_acknowledged()
    assert "Continuing without them (failOnDataLoss=false)" in caplog.text
    assert "have no files" not in caplog.text


def test_start_that_fails_closes_the_connection_and_claims_nothing(staging: Staging, started: Started):
    """An earlier run continues if its successor cannot start."""
    detached = types.Subscription(name=SUBSCRIPTION, topic=TOPIC, detached=True)
    service = AdminService(admin=Admin(detached))
    with pytest.raises(ResourceError, match="is detached"), started(0, service=service, is_claimed=False):
        pass
    assert service.closed
    assert [] == staging.epochs()


def test_run_that_was_killed_is_known(staging: Staging, started: Started):
    """It may hold leases of messages that it had received and not staged."""
    with started(0) as run:
        assert run.leased_until < run.now()
    with started(0) as run:
        assert run.leased_until > run.now() + 500


def test_schemas_are_kept_for_uncommitted_batches(staging: Staging, started: Started):
    """Without such a batch they are never read."""
    staging.begin_after(0)
    path = f"schemas/{32 * '0'}"
    for last, expected in ((2, b"{}"), (3, None)):
        staging.create(path, [b"{}"])
        staging.create("3/part-0", part(["a"]))
        with started(last):
            assert expected == staging.read(path)


def test_loss_is_an_error_or_a_warning(staging: Staging, caplog: pytest.LogCaptureFixture):
    """`failOnDataLoss=false` continues. A checkpoint that is not behind is no loss."""
    staging.begin_after(3)

    assert 3 == check_not_behind(options(), 3, staging)
    with pytest.raises(StagingError, match=r"is at batch 2, but batches up to 3 were .* set failOnDataLoss=false") as e:
        check_not_behind(options(), 2, staging)
    assert "asynchronous progress tracking" in str(e.value)
    with caplog.at_level(logging.WARNING):
        assert 3 == check_not_behind(options(failOnDataLoss="false"), 2, staging)
    assert "Continuing without them (failOnDataLoss=false)" in caplog.text
