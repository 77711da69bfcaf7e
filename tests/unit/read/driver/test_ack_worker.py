"""The ack worker: acks follow commits, ids whose acks may be lost are in doubt, no failure here fails the query."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest

from pubsub_spark.codec.envelope import received
from pubsub_spark.errors import StagingError
from pubsub_spark.read.driver.ack_worker import AckWorker
from pubsub_spark.read.driver.times import AckTimes
from pubsub_spark.read.pull.acks import MAX_IDS
from pubsub_spark.read.pull.lease import STREAM_LEASE_SECONDS, Lease, Redelivered
from pubsub_spark.read.staging import fencing
from pubsub_spark.read.staging.ids import is_in
from tests.unit.read.driver.running import LONG, Running
from tests.unit.read.service import Answer, Service, StatusError, ids, response

AWAY = StatusError(grpc.StatusCode.UNAVAILABLE)
REFUSED = StatusError(grpc.StatusCode.FAILED_PRECONDITION)
NO_PATIENCE = AckTimes(tick=0.01, send=0.0, retry=0.0)
LEASE = Lease(0, STREAM_LEASE_SECONDS)
RunOf = Callable[..., Running]


def redeliver(running: Running, *texts: str, lease: Lease = LEASE, key: str = "") -> None:
    """Record redeliveries of messages whose ids are in doubt."""
    receipts = received([response(texts, key=key)]).receipts
    with running.run.changed:
        running.ledger.redelivered(Redelivered(lease, receipts, has_keys=bool(key)))


def test_commit_sends_the_acks_and_deletes_the_files(running: Running):
    """The acks of all parts are sent, then the files of the batch are deleted."""
    running.stage(1, 0, "a", "b")
    running.stage(1, 1, "c")
    running.commit(1)
    worker = running.acknowledging()

    assert worker.flush(LONG)
    assert ["ack-a", "ack-b", "ack-c"] == running.service.acked_ids
    assert (1, []) == (running.staging.last_acknowledged(), running.staging.batches())
    assert (3, 0) == (worker.acknowledged, worker.failed_acks)


def test_acks_of_an_earlier_run_make_no_room_in_the_stream(running: Running):
    """Flow control does not count its messages. A full stream that holds back others would look empty."""
    running.arrive("x" * 749)  # one fewer than three quarters of the limit
    running.stage(1, 0, "a", "b")
    running.commit(1)
    worker = running.acknowledging()

    assert worker.flush(LONG)
    running.arrive("x")
    assert running.stream.is_flow_controlled


def test_uncommitted_batch_is_not_acknowledged(running: Running):
    """Staged is not committed: flush has nothing to wait for, and the end acknowledges nothing."""
    running.stage(1, 0, "a")
    worker = running.acknowledging()

    assert worker.flush(0)
    worker.end(LONG)
    assert [] == running.service.acked
    assert [1] == running.staging.batches()


def test_part_that_is_staged_after_the_commit_is_not_acknowledged(running: Running):
    """A dead task may stage a part whenever it likes. No row of it was ever committed."""
    running.stage(1, 0, "a")
    running.commit(1)
    running.stage(1, 1, "zombie")
    worker = running.acknowledging()

    assert worker.flush(LONG)
    assert ["ack-a"] == running.service.acked_ids


def test_receipts_of_dropped_redeliveries_are_acknowledged(running: Running):
    """A redelivery within a batch is no row, and its ack is sent with the batch."""
    running.stage(1, 0, "a", dropped=["b"])
    running.commit(1)

    assert running.acknowledging().flush(LONG)
    assert ["ack-a", "ack-b"] == running.service.acked_ids


def test_acks_that_take_more_than_a_turn_are_all_sent(running: Running):
    """The next turn continues where the last one ended."""
    texts = [str(number) for number in range(8 * MAX_IDS)]
    running.stage(1, 0, *texts)
    running.commit(1)
    worker = running.acknowledging(NO_PATIENCE)

    assert worker.flush(LONG)
    assert [f"ack-{text}" for text in texts] == running.service.acked_ids
    assert len(texts) == worker.acknowledged


def test_answered_acks_are_not_sent_again(running: Running):
    """The third of three requests is not answered: the next turn sends that one alone."""
    running.service.answers = [None, None, AWAY]
    running.stage(1, 0, *(str(number) for number in range(2 * MAX_IDS + 1)))
    running.commit(1)
    worker = running.acknowledging(NO_PATIENCE)

    assert worker.flush(LONG)
    assert [MAX_IDS, MAX_IDS, 1, 1] == list(map(len, running.service.acked))
    assert 2 * MAX_IDS + 1 == worker.acknowledged


def test_acks_of_ordering_keys_stay_in_order_after_time_outs(running: Running):
    """Each time-out makes the next request smaller, so that it has only some of the ids of the one before.

    Pub/Sub drops the ack of a key's message that comes before that of an earlier one.
    """

    def stage(batch: int, count: int) -> list[str]:
        texts = [f"{number:06d}".ljust(200, "x") for number in range(count)]
        running.stage(batch, 0, *texts, key="key")
        running.commit(batch)
        return [f"ack-{text}" for text in texts]

    stage(1, 12_000)
    worker = running.acknowledging(NO_PATIENCE)
    assert worker.flush(LONG)  # now a request may be large
    running.service.acked.clear()
    running.service.answers = [StatusError(grpc.StatusCode.DEADLINE_EXCEEDED)] * 8
    ack_ids = stage(2, 4_000)

    assert worker.flush(LONG)
    failed, answered = running.service.acked[:8], running.service.acked[8:]
    assert len(failed[0]) > 2 * len(failed[-1])
    assert ack_ids == [ack_id for request in answered for ack_id in request]


def test_unanswered_acks_keep_the_batch_and_all_after_it(running: Running):
    """While the service is away no batch is deleted, not even a settled one after it."""
    running.service.answers = [None, AWAY]
    running.stage(1, 0, "a")
    running.stage(1, 1, "b")
    running.stage(2, 0, "c")
    running.commit(1, 2)
    worker = running.acknowledging(AckTimes(tick=0.01, send=0.0, retry=100.0))
    running.until(lambda: ["ack-a", "ack-b", "ack-c"] == running.service.acked_ids)
    running.until(lambda: [1] == running.ledger.unsettled)
    assert (0, [1, 2]) == (running.staging.last_acknowledged(), running.staging.batches())

    running.advance(100)

    assert worker.flush(LONG)
    assert ["ack-a", "ack-b", "ack-c", "ack-b"] == running.service.acked_ids
    assert (2, 3, 0) == (running.staging.last_acknowledged(), worker.acknowledged, worker.failed_acks)


def test_messages_of_an_ack_in_time_are_not_in_doubt(running: Running):
    """In the usual case no redelivery is possible."""
    running.stage(1, 0, "a")
    running.commit(1)

    assert running.acknowledging().flush(LONG)
    assert running.are_in_doubt()


def test_messages_of_a_late_ack_are_in_doubt(running: Running):
    """The service may ignore an ack after the lease. A restart finds the ids in the staging area."""
    running.stage(1, 0, "a", dropped=["b"])
    running.advance(STREAM_LEASE_SECONDS)
    running.commit(1)

    assert running.acknowledging().flush(LONG)
    assert running.are_in_doubt("id-a", "id-b")
    assert [[each.path for each in running.ledger.in_doubt.runs]] == [running.staging.files("in-doubt/")]


def test_messages_of_refused_acks_are_in_doubt_and_counted(running: Running):
    """A refused ack fails nothing. Messages of the same part whose acks were accepted are not in doubt."""
    running.service.answers = [None, REFUSED]
    texts = [str(number) for number in range(MAX_IDS + 2)]
    running.stage(1, 0, *texts)
    running.commit(1)
    worker = running.acknowledging()

    assert worker.flush(LONG)
    assert running.are_in_doubt(*(f"id-{text}" for text in texts[MAX_IDS:]))
    assert (MAX_IDS, 2) == (worker.acknowledged, worker.failed_acks)


def test_redeliveries_are_acknowledged_at_once(running: Running):
    """A redelivery of a committed message waits for no commit."""
    worker = running.acknowledging()
    redeliver(running, "a", "b")

    assert worker.flush(LONG)
    assert ["ack-a", "ack-b"] == running.service.acked_ids
    assert running.are_in_doubt()
    assert 2 == worker.acknowledged


def test_redeliveries_of_ordering_keys_are_acknowledged_in_order(running: Running):
    """Pub/Sub drops the ack of a key's message that comes before that of an earlier one."""
    texts = [f"{number:06d}".ljust(200, "x") for number in range(600)]
    running.service.answers = [AWAY]
    worker = running.acknowledging()
    redeliver(running, *texts, key="key")

    assert worker.flush(LONG)
    first = running.service.acked[0]
    assert len(first) < len(texts)
    assert [*first, *(f"ack-{text}" for text in texts)] == running.service.acked_ids


def test_redeliveries_that_were_not_sent_stay_in_doubt(running: Running):
    """There was no time for their acks."""
    texts = [f"{number:06d}".ljust(200, "x") for number in range(600)]
    running.service.answers = [AWAY]
    worker = running.acknowledging(NO_PATIENCE)
    redeliver(running, *texts, key="key")

    assert worker.flush(LONG)
    assert running.are_in_doubt(*(f"id-{text}" for text in texts))


def test_redeliveries_whose_ack_was_refused_stay_in_doubt(running: Running):
    """They are delivered once more, and are no rows then either."""
    running.service.answers = [REFUSED]
    worker = running.acknowledging()
    redeliver(running, "a")

    assert worker.flush(LONG)
    assert running.are_in_doubt("id-a")
    assert (0, 1) == (worker.acknowledged, worker.failed_acks)


def test_redelivery_that_was_acknowledged_in_time_is_the_last_one(running: Running):
    """Its id is no longer in doubt. If the lease of the redelivery is over, it is delivered once more."""
    running.ledger.in_doubt.add(ids("id-a", "id-b"), 1, 0.0)
    redeliver(running, "a")
    redeliver(running, "b", lease=Lease(-STREAM_LEASE_SECONDS, STREAM_LEASE_SECONDS))
    assert running.acknowledging().flush(LONG)
    with running.run.changed:
        running.ledger.in_doubt.compact(0.0)

    assert ["ack-a", "ack-b"] == running.service.acked_ids
    assert [False, True] == list(is_in(ids("id-a", "id-b"), [each.ids for each in running.ledger.in_doubt.runs]))


@dataclass
class ClosedService(Service):
    """A service whose connection is closed while an ack is sent."""

    asked: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def acknowledge(self, *_: Any) -> Answer:
        self.asked.set()
        assert self.over.wait(LONG)
        raise ValueError("Cannot invoke RPC: Channel closed!")


def test_connection_that_is_closed_by_the_end_is_no_error(run_of: RunOf, caplog: pytest.LogCaptureFixture):
    """An end that does not wait for acks closes the connection under them. The log has no traceback of it."""
    service = ClosedService()
    running = run_of(service=service)
    running.stage(1, 0, "a")
    running.commit(1)
    worker = running.acknowledging()
    assert service.asked.wait(LONG)
    worker.end(0)
    service.over.set()
    worker.end(LONG)

    assert [] == caplog.records


def test_redeliveries_on_a_closed_connection_end_no_thread(run_of: RunOf, caplog: pytest.LogCaptureFixture):
    """Their ids stay in doubt, and later acks are sent."""
    service = ClosedService()
    service.over.set()
    running = run_of(service=service)
    worker = running.acknowledging()
    redeliver(running, "a")

    assert worker.flush(LONG)
    assert running.are_in_doubt("id-a")
    assert "were not acknowledged" in caplog.text


def test_flush_returns_at_once_if_no_ack_is_due_within_its_time(running: Running):
    """A query that ends does not wait for acks that are sent later than that."""
    running.service.answers = [AWAY]
    running.stage(1, 0, "a")
    running.commit(1)
    worker = running.acknowledging(AckTimes(tick=0.01, send=0.0, retry=2 * LONG))
    running.until(lambda: running.service.acked_ids)

    assert not worker.flush(LONG)
    assert worker.flush(LONG, most=1)


def test_batch_that_cannot_be_read_is_set_aside(running: Running, caplog: pytest.LogCaptureFixture):
    """The others are acknowledged, one error is logged, and the acks are sent once the store answers again."""
    for batch, text in enumerate("abc", 1):
        running.stage(batch, 0, text)
    running.commit(1, 2, 3)

    def refuse(call: str, path: str) -> None:
        if call == "read_range" and "/2/part-0" in path:
            raise StagingError("no such disk")

    running.before = refuse
    worker = running.acknowledging(AckTimes(tick=0.01, set_aside=60))
    running.until(lambda: [2] == running.ledger.unsettled)
    running.until(lambda: [2, 3] == running.staging.batches())
    assert ["ack-a", "ack-c"] == running.service.acked_ids
    assert 1 == running.staging.last_acknowledged()
    assert 1 == caplog.text.count("the acks of batch 2 of")

    running.before = lambda *_: None
    running.advance(60)

    assert worker.flush(LONG)
    assert ["ack-a", "ack-c", "ack-b"] == running.service.acked_ids
    assert (3, []) == (running.staging.last_acknowledged(), running.staging.batches())


@pytest.mark.parametrize("content", [None, b"", b"damaged"])
def test_receipts_that_are_lost_are_reported(running: Running, content: bytes | None, caplog: pytest.LogCaptureFixture):
    """A file that is removed or damaged after the commit delays no other batch. Its messages will be rows again."""
    running.stage(1, 0, "a")
    running.stage(2, 0, "b")
    running.commit(1, 2)
    file = running.folder / running.staging.root / "1/part-0"
    file.unlink()
    if content is not None:
        file.write_bytes(content)

    assert running.acknowledging().flush(LONG)
    assert ["ack-b"] == running.service.acked_ids
    assert "the ack ids of part 0 of batch 1 of" in caplog.text


def test_batches_are_deleted_together(running: Running):
    """While acks are due, the number of the last deleted batch is written once for many batches."""
    written: list[str] = []
    running.before = lambda call, path: written.append(path) if call == "create" and "/acknowledged/" in path else None
    for batch, text in enumerate("abcd", 1):
        running.stage(batch, 0, text)
    running.commit(1, 2, 3, 4)

    assert running.acknowledging(AckTimes(tick=0.01, delete=LONG)).flush(LONG)
    assert [f"{running.staging.root}/acknowledged/4"] == written
    assert [] == running.staging.batches()


@pytest.mark.parametrize("refused", ["delete", "create"])
def test_files_that_cannot_be_deleted_hold_up_nothing(running: Running, refused: str, caplog: pytest.LogCaptureFixture):
    """Without the permission to delete or create files, batches are acknowledged and no longer wait for anything."""
    running.stage(1, 0, "a")
    running.stage(2, 0, "b")
    running.stage(3, 0, "c")
    running.advance(STREAM_LEASE_SECONDS)  # so that there are ids in doubt to be written

    def refuse(call: str, _: str) -> None:
        if call == refused:
            raise StagingError("no right to delete")

    running.before = refuse
    running.commit(1, 2)
    worker = running.acknowledging(AckTimes(tick=0.01, set_aside=60))
    assert worker.flush(LONG)
    running.commit(3)
    assert worker.flush(LONG)
    assert ["ack-a", "ack-b", "ack-c"] == running.service.acked_ids
    assert [] == running.ledger.undeleted
    assert "their staged files remain" in caplog.text

    running.before = lambda *_: None
    running.advance(60)

    running.until(lambda: [] == running.staging.batches())
    assert 3 == running.staging.last_acknowledged()


def test_unexpected_error_ends_the_query(running: Running):
    """Without its thread no ack would be sent any more, and nothing would say so."""
    running.stage(1, 0, "a")
    running.commit(1)
    no_stream: Any = None
    worker = AckWorker(replace(running.run, stream=no_stream))

    assert not worker.flush(LONG)
    with pytest.raises(AttributeError):
        worker.check()
    worker.end(LONG)


def test_run_that_was_taken_over_deletes_nothing(running: Running):
    """The other run may be replaying these batches."""
    running.stage(1, 0, "a")
    running.commit(1)
    fencing.claim(running.staging, 1000.0)
    worker = running.acknowledging()

    assert worker.flush(LONG)
    assert worker.failure is not None
    assert (0, [1]) == (running.staging.last_acknowledged(), running.staging.batches())


def test_store_that_fails_for_a_while_delays_the_acks(running: Running, caplog: pytest.LogCaptureFixture):
    """Also if it fails with an error that is not ours."""
    running.stage(1, 0, "a")
    running.commit(1)
    failures = [OSError("no route"), RuntimeError("a fault")]

    def fail(call: str, _: str) -> None:
        if call == "read_range" and failures:
            raise failures.pop()

    running.before = fail
    with caplog.at_level(logging.ERROR):
        assert running.acknowledging(AckTimes(tick=0.01, set_aside=0.0)).flush(LONG)

    assert ["ack-a"] == running.service.acked_ids
    assert 2 == caplog.text.count("cannot be read. Trying again in 0 s")
