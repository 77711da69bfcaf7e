"""The keeper: acks follow commits, leases of long batches are extended, nothing it meets fails the query."""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from pubsub_spark.errors import StagingError
from pubsub_spark.read import keeper as module
from pubsub_spark.read.door import Door
from pubsub_spark.read.keeper import Keeper
from pubsub_spark.read.leases import LEASE, STREAM_LEASE, WATCH, Leases
from pubsub_spark.read.pull import Flow
from pubsub_spark.read.staging import Staging
from tests.unit.read import service
from tests.unit.read.service import SUBSCRIPTION, Answer, Service, StatusError, response

LONG = 30.0


@dataclass
class Kept:
    """A keeper with its surroundings, and a clock in hand."""

    staging: Staging
    service: Service = field(default_factory=Service)
    leases: Leases = field(default_factory=Leases)
    now: float = 0.0

    def start(self) -> None:
        connection: Any = self.service
        self.door = Door(connection, Flow(SUBSCRIPTION, "stream-0", 60, 1000, 10**6), self.clock)
        self.keeper = Keeper(connection, self.staging, self.leases, self.door, self.clock)

    def clock(self) -> float:
        return self.now

    def stage(self, batch: int, part: int, *texts: str) -> None:
        """A batch is announced, and one of its parts staged."""
        with self.keeper.lock:
            self.leases.announce(batch, self.now)
        self.staging.create(f"{batch}/part-{part}", service.part(texts))

    def remembered(self) -> list[str]:
        with self.keeper.lock:
            found: list[str] = self.leases.remembered.to_pylist()
        return found


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setattr(module, "_TICK", 0.01)
    made = Kept(Staging(str(tmp_path), SUBSCRIPTION, uuid.uuid4().hex))
    made.start()
    yield made
    made.keeper.stop(LONG)


def test_commit_sends_the_acks_and_deletes_the_files(kept: Kept):
    """The acks of all parts go out, then the batch's files go away."""
    kept.stage(1, 0, "a", "b")
    kept.stage(1, 1, "c")
    kept.keeper.commit(1)

    assert kept.keeper.flush(LONG)
    assert ["ack-a", "ack-b", "ack-c"] == kept.service.acked_ids
    assert (1, {}) == (kept.staging.released(), kept.staging.parts(1))
    assert 3 == kept.keeper.counts.acknowledged


def test_uncommitted_batch_is_not_acknowledged(kept: Kept):
    """Staged is not committed: flush has nothing to wait for, and stop acknowledges nothing."""
    kept.stage(1, 0, "a")
    assert kept.keeper.flush(0)
    kept.keeper.stop(LONG)

    assert [] == kept.service.acked
    assert [1] == kept.staging.batches()


def test_part_after_the_seal_is_not_acknowledged(kept: Kept):
    """What a dead task staged after its batch was sealed was never given to Spark."""
    kept.stage(1, 0, "a")
    kept.staging.seal(1)
    kept.stage(1, 1, "zombie")
    kept.keeper.commit(1)

    assert kept.keeper.flush(LONG)
    assert ["ack-a"] == kept.service.acked_ids


def test_late_ack_is_remembered(kept: Kept):
    """An ack after the lease may count for nothing: the ids are dropped when they come again."""
    kept.stage(1, 0, "a")
    kept.now = STREAM_LEASE
    kept.keeper.commit(1)

    assert kept.keeper.flush(LONG)
    assert ["id-a"] == kept.remembered()


def test_ack_in_time_is_not_remembered(kept: Kept):
    """The usual case leaves nothing to filter."""
    kept.stage(1, 0, "a")
    kept.keeper.commit(1)

    assert kept.keeper.flush(LONG)
    assert [] == kept.remembered()


def test_refused_ack_is_remembered_and_counted(kept: Kept):
    """An ack that the service refuses fails nothing; its messages are dropped when they come again."""
    kept.service.answers = [StatusError(grpc.StatusCode.FAILED_PRECONDITION)]
    kept.stage(1, 0, "a")
    kept.keeper.commit(1)

    assert kept.keeper.flush(LONG)
    assert ["id-a"] == kept.remembered()
    assert (0, 1) == (kept.keeper.counts.acknowledged, kept.keeper.counts.failed_acks)


def test_unanswered_acks_keep_the_batch_staged(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    """While the service is away nothing is released, not even a later batch; when it is back all is acknowledged."""
    monkeypatch.setattr(module, "_ACK_TIMEOUT", 0.0)
    away = [StatusError(grpc.StatusCode.UNAVAILABLE)]
    kept.service.answers = [None, *away * 3]
    kept.stage(1, 0, "a")
    kept.stage(1, 1, "b")
    kept.stage(2, 0, "c")
    kept.keeper.commit(2)

    assert kept.keeper.flush(LONG)
    assert ["ack-a", "ack-b", "ack-b", "ack-b", "ack-b", "ack-c"] == kept.service.acked_ids
    assert (2, 3, 0) == (
        kept.staging.released(),
        kept.keeper.counts.acknowledged,
        kept.keeper.counts.failed_acks,
    )
    assert [] == kept.remembered()


def test_long_batch_is_extended(kept: Kept):
    """A batch that Spark works on for long is looked up and its leases set to the longest."""
    kept.stage(1, 0, "a")
    kept.stage(1, 1, "b")
    kept.now = WATCH
    _until(kept, lambda: len(kept.service.modified) >= 2)
    _until(kept, lambda: not kept.leases.due(kept.now + LEASE / 4 - 1))

    assert [(int(LEASE), ["ack-a"]), (int(LEASE), ["ack-b"])] == kept.service.modified


def test_long_batch_is_extended_again(kept: Kept):
    """A batch that takes hours keeps its leases: the second extension comes at a quarter of the first."""
    kept.stage(1, 0, "a")
    kept.now = WATCH
    _until(kept, lambda: len(kept.service.modified) == 1)
    kept.now = WATCH + LEASE / 4
    _until(kept, lambda: len(kept.service.modified) == 2)

    assert [] == kept.service.acked


def test_unanswered_extension_is_tried_again(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    """A lease that the service has not heard of is not taken for a long one."""
    monkeypatch.setattr(module, "_ACK_TIMEOUT", 0.0)
    kept.service.answers = [StatusError(grpc.StatusCode.UNAVAILABLE)] * 2
    kept.stage(1, 0, "a")
    kept.now = WATCH
    _until(kept, lambda: len(kept.service.modified) == 3)

    assert [(int(LEASE), ["ack-a"])] * 3 == kept.service.modified
    _until(kept, lambda: not kept.leases.is_late(1, 0, STREAM_LEASE))
    assert 1 == kept.keeper.counts.extended


def test_refused_extension_makes_the_part_late(kept: Kept):
    """Its messages come again: they are dropped then."""
    kept.service.answers = [StatusError(grpc.StatusCode.FAILED_PRECONDITION)]
    kept.stage(1, 0, "a")
    kept.now = WATCH

    _until(kept, lambda: kept.leases.is_late(1, 0, kept.now))


def test_committed_batch_is_extended_while_its_acks_are_not_answered(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    """Acks that do not come through are no reason for its messages to come again."""
    monkeypatch.setattr(module, "_ACK_TIMEOUT", 0.0)
    monkeypatch.setattr(Service, "acknowledge", lambda *_: Answer(StatusError(grpc.StatusCode.UNAVAILABLE)))
    kept.stage(1, 0, "a")
    kept.keeper.commit(1)
    kept.now = WATCH
    _until(kept, lambda: bool(kept.service.modified))

    assert [(int(LEASE), ["ack-a"])] == kept.service.modified
    monkeypatch.undo()


@pytest.mark.parametrize("deletes", [True, False])
def test_leases_have_their_turn_between_the_acks_of_batches(kept: Kept, monkeypatch: pytest.MonkeyPatch, deletes: bool):
    """Acks may be answered slowly, and many batches wait for them; also where no file may be deleted."""

    def refused(*_: object) -> None:
        raise StagingError("no right to delete")

    if not deletes:
        monkeypatch.setattr(Staging, "release", refused)
    turns: list[str] = []
    acknowledge = Keeper._acknowledge

    def acknowledged(keeper: Keeper, batch: int) -> bool:
        turns.append(f"ack {batch}")
        return acknowledge(keeper, batch)

    monkeypatch.setattr(Keeper, "_acknowledge", acknowledged)
    monkeypatch.setattr(Keeper, "_extend", lambda _: turns.append("extend"))
    kept.stage(1, 0, "a")
    kept.stage(2, 0, "b")
    kept.keeper.commit(2)
    assert kept.keeper.flush(LONG)

    assert "extend" in turns[turns.index("ack 1") : turns.index("ack 2")]


@pytest.mark.parametrize("call", ["release", "write_seen"])
def test_acks_go_on_where_files_may_not_be_deleted(kept: Kept, monkeypatch: pytest.MonkeyPatch, call: str):
    """Nor written anew, which is the same right. What is acknowledged is acknowledged; the files are left behind."""

    def refused(*_: object) -> None:
        raise StagingError("no right to delete")

    monkeypatch.setattr(Staging, call, refused)
    with kept.keeper.lock:
        kept.leases.remember(pa.array(["x"]), 0)
    kept.stage(1, 0, "a")
    kept.stage(2, 0, "b")
    kept.keeper.commit(2)

    assert kept.keeper.flush(LONG)
    assert ["ack-a", "ack-b"] == kept.service.acked_ids


def test_part_that_is_about_to_be_staged_is_waited_for(kept: Kept, caplog: pytest.LogCaptureFixture):
    """The driver has noted when the door's messages came, and is writing them down."""
    with kept.keeper.lock:
        kept.leases.announce(1, 0)
        kept.leases.found(1, 0)
    kept.now = WATCH
    kept.service.calls[0].say(response("x"))
    _until(kept, lambda: kept.door.count == 1)  # the keeper has been there
    kept.stage(1, 0, "a")
    _until(kept, lambda: bool(kept.service.modified))

    assert "keeping leases failed" not in caplog.text


def test_door_that_failed_does_not_stop_the_extensions(kept: Kept):
    """The error waits for Spark's next call; the batch that runs keeps its leases until then."""
    kept.stage(1, 0, "a")
    kept.service.calls[0].say(grpc.StatusCode.PERMISSION_DENIED)
    _until(kept, lambda: kept.door._stream.ended)
    kept.now = WATCH

    _until(kept, lambda: bool(kept.service.modified))


def test_waiting_messages_are_extended(kept: Kept):
    """What waits at the door, because Spark is slow, does not run out."""
    kept.service.calls[0].say(response("a"))
    _until(kept, lambda: kept.door.count == 1)
    kept.now = STREAM_LEASE / 2
    _until(kept, lambda: bool(kept.service.modified))

    assert [(int(LEASE), ["ack-a"])] == kept.service.modified


def test_stop_gives_back_what_waits(kept: Kept):
    """Messages at the door come again at once, for whoever reads next."""
    kept.service.calls[0].say(response("ab"))
    _until(kept, lambda: kept.door.count == 2)
    kept.keeper.stop(LONG)

    assert [(0, ["ack-a", "ack-b"])] == kept.service.modified


def test_unreadable_staging_is_tried_again(kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: Any):
    """A staging area that fails for a while delays the acks, and loses none."""
    kept.stage(1, 0, "a")
    parts, failures = kept.staging.parts, [OSError("no route"), OSError("no route")]

    def failing(staging: Staging, batch: int) -> dict[int, int]:
        if failures:
            raise failures.pop()
        return parts(batch)

    monkeypatch.setattr(Staging, "parts", failing)
    with caplog.at_level(logging.ERROR):
        kept.keeper.commit(1)
        assert kept.keeper.flush(LONG)

    assert ["ack-a"] == kept.service.acked_ids
    assert "keeping leases failed" in caplog.text


def _until(kept: Kept, condition: Any) -> None:
    with kept.keeper._wake:
        while not condition():
            kept.keeper._wake.wait(0.005)
