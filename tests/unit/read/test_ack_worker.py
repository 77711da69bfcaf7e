"""The ack worker: acks follow commits, leases of long batches are extended, no failure here fails the query."""

import logging
import threading
import time
from typing import Any

import grpc
import pytest

from pubsub_spark.codec.envelope import received
from pubsub_spark.errors import StagingError
from pubsub_spark.read import ack_worker, lease_extender
from pubsub_spark.read.ack_worker import AckWorker
from pubsub_spark.read.leases import LEASE_SECONDS, STREAM_LEASE_SECONDS, TRACK_AFTER_SECONDS
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.part import PartBuilder
from pubsub_spark.read.leases import TRACK_AFTER_SECONDS
from pubsub_spark.read.pull import acks
from pubsub_spark.read.pull.lease import LEASE_SECONDS, STREAM_LEASE_SECONDS
from pubsub_spark.read.task_acks import HeldAcks, SentAcks
from tests.unit.read.acking_driver import LONG, Driver
from tests.unit.read.service import Answer, Service, StatusError, ids, response


def test_acks_that_take_more_than_a_turn_are_all_sent(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    """The next turn goes on where the last one ended, though the receipts were read to their end."""
    monkeypatch.setattr(ack_worker, "_ACK_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(acks, "MAX_IDS", 1)
    monkeypatch.setattr(acks, "_FIRST_IN_FLIGHT", 1)
    driver.stage(1, 0, "a", "b", "c")
    driver.worker.commit(1)

    assert driver.worker.flush(LONG)
    assert ["ack-a", "ack-b", "ack-c"] == driver.service.acked_ids


def test_commit_sends_the_acks_and_deletes_the_files(driver: Driver):
    """The acks of all parts go out, then the batch's files go away."""
    driver.stage(1, 0, "a", "b")
    driver.stage(1, 1, "c")
    driver.worker.commit(1)

    assert driver.worker.flush(LONG)
    assert ["ack-a", "ack-b", "ack-c"] == driver.service.acked_ids
    assert (1, {}) == (driver.staging.last_acknowledged(), driver.staging.parts(1))
    assert 3 == driver.worker.acknowledged


def test_uncommitted_batch_is_not_acknowledged(driver: Driver):
    """Staged is not committed: flush has nothing to wait for, and stop acknowledges nothing."""
    driver.stage(1, 0, "a")
    assert driver.worker.flush(0)
    driver.worker.stop(LONG)

    assert [] == driver.service.acked
    assert [1] == driver.staging.batches()


def test_part_after_the_manifest_is_not_acknowledged(driver: Driver):
    """A part that a dead task stages after the manifest of its batch was never given to Spark."""
    driver.stage(1, 0, "a")
    driver.staging.write_manifest(1)
    driver.stage(1, 1, "zombie")
    driver.worker.commit(1)

    assert driver.worker.flush(LONG)
    assert ["ack-a"] == driver.service.acked_ids


def held(driver: Driver, batch: int, part: int) -> HeldAcks:
    return HeldAcks(batch, part, driver.staging.parts(batch)[part])


def test_held_acks_wait_for_the_tasks(driver: Driver):
    """The acks of a held part are not sent, those of the driver's own part are; the batch is done when both are."""
    driver.stage(1, 0, "a")
    driver.stage(1, 1, "b", "c")
    driver.worker.commit(1, [held(driver, 1, 1)])
    driver.until(lambda: ["ack-a"] == driver.service.acked_ids)

    assert driver.worker.release([SentAcks(1, 1, 2)])
    assert driver.worker.flush(LONG)
    assert (["ack-a"], {}) == (driver.service.acked_ids, driver.staging.parts(1))
    assert 3 == driver.worker.acknowledged


def test_acks_that_tasks_have_not_sent_are_sent(driver: Driver):
    """The acks of a held part that no task has recorded are the driver's."""
    driver.stage(1, 1, "a")
    driver.stage(1, 2, "b")
    driver.worker.commit(1, [held(driver, 1, 1), held(driver, 1, 2)])

    assert not driver.worker.release([SentAcks(1, 1, 1)])
    assert driver.worker.flush(LONG)
    assert ["ack-b"] == driver.service.acked_ids


def test_flush_holds_nothing_back(driver: Driver):
    """A query that waits for its acks, or stops, sends all of them itself."""
    driver.stage(1, 1, "a")
    driver.worker.commit(1, [held(driver, 1, 1)])

    assert driver.worker.flush(LONG)
    assert ["ack-a"] == driver.service.acked_ids


def test_messages_whose_lease_expired_before_the_tasks_acks_are_recent(driver: Driver):
    """An ack that a task has sent may have come too late, like the driver's own."""
    driver.stage(1, 1, "a")
    driver.worker.commit(1, [held(driver, 1, 1)])
    driver.now = STREAM_LEASE_SECONDS
    with driver.leases.lock:
        driver.leases.record_extension(1, 1, 0.0, driver.now, refused=True)
    driver.worker.release([SentAcks(1, 1, 1)])

    assert driver.worker.flush(LONG)
    assert driver.is_recent("id-a")


def test_messages_of_a_late_ack_are_recent(driver: Driver):
    """The service may ignore an ack after the lease: the messages are dropped when they are delivered again."""
    driver.stage(1, 0, "a")
    driver.now = STREAM_LEASE_SECONDS
    driver.worker.commit(1)

    assert driver.worker.flush(LONG)
    assert driver.is_recent("id-a")


def test_messages_of_an_ack_in_time_are_not_recent(driver: Driver):
    """In the usual case no message has to be dropped later."""
    driver.stage(1, 0, "a")
    driver.worker.commit(1)

    assert driver.worker.flush(LONG)
    assert driver.is_recent()


def test_messages_of_a_refused_ack_are_recent_and_counted(driver: Driver):
    """An ack that the service refuses fails nothing; its messages are dropped when they are delivered again."""
    driver.service.answers = [StatusError(grpc.StatusCode.FAILED_PRECONDITION)]
    driver.stage(1, 0, "a")
    driver.worker.commit(1)

    assert driver.worker.flush(LONG)
    assert driver.is_recent("id-a")
    assert (0, 1) == (driver.worker.acknowledged, driver.worker.failed_acks)


def test_unanswered_acks_keep_the_batch_staged(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    """While the service is away no batch is deleted, not even a later one; when it is back all is acknowledged."""
    monkeypatch.setattr(ack_worker, "_ACK_TIMEOUT_SECONDS", 0.0)
    away = [StatusError(grpc.StatusCode.UNAVAILABLE)]
    driver.service.answers = [None, *away * 3]
    driver.stage(1, 0, "a")
    driver.stage(1, 1, "b")
    driver.stage(2, 0, "c")
    driver.worker.commit(2)

    assert driver.worker.flush(LONG)
    assert ["ack-a", "ack-b", "ack-b", "ack-b", "ack-b", "ack-c"] == driver.service.acked_ids
    assert (2, 3, 0) == (
        driver.staging.last_acknowledged(),
        driver.worker.acknowledged,
        driver.worker.failed_acks,
    )
    assert driver.is_recent()


def test_long_batch_is_extended(driver: Driver):
    """The parts of a batch that Spark works on for long are listed, and their leases set to the longest."""
    driver.stage(1, 0, "a")
    driver.stage(1, 1, "b")
    driver.now = TRACK_AFTER_SECONDS
    driver.until(lambda: len(driver.service.modified) >= 2)
    driver.until(lambda: not driver.leases.due(driver.now + LEASE_SECONDS / 4 - 1))

    assert [(int(LEASE_SECONDS), ["ack-a"]), (int(LEASE_SECONDS), ["ack-b"])] == driver.service.modified


def test_long_batch_is_extended_again(driver: Driver):
    """A batch that takes hours keeps its leases: the second extension comes at a quarter of the first."""
    driver.stage(1, 0, "a")
    driver.now = TRACK_AFTER_SECONDS
    driver.until(lambda: len(driver.service.modified) == 1)
    driver.now = TRACK_AFTER_SECONDS + LEASE_SECONDS / 4
    driver.until(lambda: len(driver.service.modified) == 2)

    assert [] == driver.service.acked


def test_unanswered_extension_is_tried_again(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    """An extension that the service did not answer is no extension."""
    monkeypatch.setattr(lease_extender, "_TIMEOUT_SECONDS", 0.0)
    driver.service.answers = [StatusError(grpc.StatusCode.UNAVAILABLE)] * 2
    driver.stage(1, 0, "a")
    driver.now = TRACK_AFTER_SECONDS
    driver.until(lambda: len(driver.service.modified) == 3)

    assert [(int(LEASE_SECONDS), ["ack-a"])] * 3 == driver.service.modified
    driver.until(lambda: not driver.leases.is_expired(1, 0, STREAM_LEASE_SECONDS))
    assert 1 == driver.extender.extended


def test_refused_extension_expires_the_lease(driver: Driver):
    """A part whose extension was refused is expired: its messages are delivered again, and dropped then."""
    driver.service.answers = [StatusError(grpc.StatusCode.FAILED_PRECONDITION)]
    driver.stage(1, 0, "a")
    driver.now = TRACK_AFTER_SECONDS

    driver.until(lambda: driver.leases.is_expired(1, 0, driver.now))


def test_committed_batch_is_extended_while_its_acks_are_not_answered(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    """Messages are not delivered again because acks fail for a while."""
    monkeypatch.setattr(ack_worker, "_ACK_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(Service, "acknowledge", lambda *_: Answer(StatusError(grpc.StatusCode.UNAVAILABLE)))
    driver.stage(1, 0, "a")
    driver.worker.commit(1)
    driver.now = TRACK_AFTER_SECONDS
    driver.until(lambda: bool(driver.service.modified))

    assert [(int(LEASE_SECONDS), ["ack-a"])] == driver.service.modified
    monkeypatch.undo()


def test_leases_are_extended_while_acks_wait(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    """Acks that take long, or a store that does not answer them, hold up no extension."""
    blocked, over = threading.Event(), threading.Event()

    def waiting(*_: object) -> bool:
        blocked.set()
        return over.wait(LONG)

    monkeypatch.setattr(AckWorker, "_acknowledge", waiting)
    driver.stage(1, 0, "a")
    driver.stage(2, 0, "b")
    driver.worker.commit(1)
    assert blocked.wait(LONG)
    driver.now = TRACK_AFTER_SECONDS
    driver.until(lambda: len(driver.service.modified) == 2)
    monkeypatch.undo()
    over.set()

    assert [["ack-a"], ["ack-b"]] == sorted(ids for _, ids in driver.service.modified)


def test_what_was_acknowledged_is_not_sent_again(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    """The third of three requests is not answered: the next attempt sends that one alone."""
    monkeypatch.setattr(ack_worker, "_ACK_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(acks, "MAX_IDS", 1)
    driver.service.answers = [None, None, StatusError(grpc.StatusCode.UNAVAILABLE)]
    driver.stage(1, 0, "a", "b", "c")
    driver.worker.commit(1)

    assert driver.worker.flush(LONG)
    assert ["ack-a", "ack-b", "ack-c", "ack-c"] == driver.service.acked_ids
    assert 3 == driver.worker.acknowledged


def test_number_of_the_last_batch_is_written_once_for_many(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    """Batches that are acknowledged within a second are deleted together."""
    written: list[int] = []
    write = Staging._write_last_acknowledged

    def counted(staging: Staging, batch: int) -> None:
        written.append(batch)
        write(staging, batch)

    monkeypatch.setattr(ack_worker, "_DELETE_PAUSE_SECONDS", LONG)
    monkeypatch.setattr(Staging, "_write_last_acknowledged", counted)
    driver.worker._deleted_at = time.monotonic()
    for batch, text in enumerate("abcd", 1):
        driver.stage(batch, 0, text)
    driver.worker.commit(4)

    assert driver.worker.flush(LONG)
    assert [4] == written
    assert [] == driver.staging.batches()


def test_part_that_is_about_to_be_staged_is_waited_for(driver: Driver, caplog: pytest.LogCaptureFixture):
    """The driver has tracked the lease of its part, and is staging it."""
    with driver.leases.lock:
        driver.leases.plan(1, 0)
        driver.leases.track(1, 0)
    driver.now = TRACK_AFTER_SECONDS
    driver.service.calls[0].say(response("x"))
    driver.until(lambda: driver.stream.message_count == 1)  # the extender has polled
    driver.stage(1, 0, "a")
    driver.until(lambda: bool(driver.service.modified))

    assert "lease extensions failed" not in caplog.text


def test_failed_driver_stream_does_not_stop_the_extensions(driver: Driver):
    """The error waits for Spark's next call; the batch that runs keeps its leases until then."""
    driver.stage(1, 0, "a")
    driver.service.calls[0].say(grpc.StatusCode.PERMISSION_DENIED)
    driver.until(lambda: driver.stream._stream.ended)
    driver.now = TRACK_AFTER_SECONDS

    driver.until(lambda: bool(driver.service.modified))


def test_buffered_messages_are_extended(driver: Driver):
    """The leases of messages that are buffered for long, because Spark is slow, do not expire."""
    driver.service.calls[0].say(response("a"))
    driver.until(lambda: driver.stream.message_count == 1)
    driver.now = STREAM_LEASE_SECONDS / 2
    driver.until(lambda: bool(driver.service.modified))

    assert [(int(LEASE_SECONDS), ["ack-a"])] == driver.service.modified


def test_stop_nacks_buffered_messages(driver: Driver):
    """Buffered messages are delivered again at once, to the next reader."""
    driver.service.calls[0].say(response("ab"))
    driver.until(lambda: driver.stream.message_count == 2)
    driver.worker.stop(LONG)

    assert [(0, ["ack-a", "ack-b"])] == driver.service.modified


def test_connection_that_is_closed_by_a_stop_is_no_error(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A stop that does not wait for acks closes the connection under them; the log has no traceback of it."""
    asked, closed = threading.Event(), threading.Event()

    def refuse(*_: object) -> None:
        asked.set()
        closed.wait(LONG)
        raise ValueError("Cannot invoke RPC: Channel closed!")

    monkeypatch.setattr(driver.service, "acknowledge", refuse)
    driver.stage(1, 0, "a")
    driver.worker.commit(1)
    assert asked.wait(LONG)
    driver.worker.end_threads(0)
    closed.set()
    driver.worker.end_threads(LONG)
    monkeypatch.setattr(driver.worker, "stop", lambda _: driver.stream.close())  # nobody sends acks any more

    assert "cannot be read" not in caplog.text


def test_recent_ids_of_a_restart_take_little_memory(driver: Driver):
    """Of receipts, which are read section by section, 16 bytes an id stay: a restart may read 100 batches."""
    arrived = received([response(f"a{n}" for n in range(1000))])
    builder = PartBuilder(None)  # as on local disks: what is read is not copied
    builder.add(arrived.messages, arrived.receipts)
    driver.staging.create("1/part-0", builder.buffers("idle"))
    driver.deduplication.add_all(1, driver.staging.parts(1))

    [run] = driver.deduplication._recent.runs
    assert (16_000, None) == (run.ids.digests.nbytes, run.ids.digests.base)


def test_batch_that_cannot_be_read_is_set_aside(driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: Any):
    """The others are acknowledged, one error is logged, and the receipts stay for a restart."""
    footer = Staging.footer

    def unreadable(staging: Staging, batch: int, part: int, length: int) -> Any:
        if batch == 2:
            raise StagingError("no such disk")
        return footer(staging, batch, part, length)

    monkeypatch.setattr(Staging, "footer", unreadable)
    for batch, text in enumerate("abc", 1):
        driver.stage(batch, 0, text)
    driver.worker.commit(3)
    driver.until(lambda: driver.leases.unacknowledged == [2])
    assert ["ack-a", "ack-c"] == driver.service.acked_ids
    assert (1, [2]) == (driver.staging.last_acknowledged(), driver.staging.batches())
    assert 1 == caplog.text.count("the acks of batch 2 of")

    monkeypatch.undo()
    driver.worker._set_aside.clear()
    assert driver.worker.flush(LONG)
    assert 3 == driver.staging.last_acknowledged()


@pytest.mark.parametrize("call", ["delete_acknowledged", "write_ids"])
def test_acks_go_on_where_files_may_not_be_deleted(driver: Driver, monkeypatch: pytest.MonkeyPatch, call: str):
    """Without the permission to delete or overwrite files batches are acknowledged, and their files are left."""

    def refused(*_: object, **__: object) -> None:
        raise StagingError("no right to delete")

    monkeypatch.setattr(Staging, call, refused)
    driver.deduplication._recent.add(ids("x"), 0)
    driver.stage(1, 0, "a")
    driver.stage(2, 0, "b")
    driver.worker.commit(2)

    assert driver.worker.flush(LONG)
    assert ["ack-a", "ack-b"] == driver.service.acked_ids


def test_unreadable_staging_is_tried_again(driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: Any):
    """A staging area that fails for a while delays the acks, and loses none."""
    driver.stage(1, 0, "a")
    parts, failures = driver.staging.parts, [OSError("no route"), OSError("no route")]

    def failing(staging: Staging, batch: int) -> dict[int, int]:
        if failures:
            raise failures.pop()
        return parts(batch)

    monkeypatch.setattr(Staging, "parts", failing)
    monkeypatch.setattr(ack_worker, "_SET_ASIDE_SECONDS", 0.01)
    with caplog.at_level(logging.ERROR):
        driver.worker.commit(1)
        driver.until(lambda: not driver.leases.unacknowledged)

    assert ["ack-a"] == driver.service.acked_ids
    assert "cannot be read; trying again" in caplog.text
