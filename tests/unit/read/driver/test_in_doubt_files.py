"""The files of ids in doubt: the ids that a restart remembers, and for how long."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from pubsub_spark.read.driver.in_doubt import DOUBT_SECONDS, KEPT_SECONDS, InDoubt
from pubsub_spark.read.driver.in_doubt_files import read_in_doubt, write_in_doubt
from pubsub_spark.read.staging.ids import is_in, merged
from tests.unit.read.driver.running import Running
from tests.unit.read.service import ids


def found(in_doubt: InDoubt, *texts: str) -> list[bool]:
    return list(is_in(ids(*texts), [run.ids for run in in_doubt.runs]))


def restarted(running: Running, start: int = 10, later: float = 0.0, topic: str | None = None) -> InDoubt:
    """Return the ids in doubt of a run that starts `seconds` later, with a new lease clock."""
    contents, wall = running.staging.ids_in_doubt(), running.runtime.wall() + later
    return read_in_doubt(replace(running.staging, epoch=2), contents, start, topic, wall, now=5.0)


def test_restart_has_the_ids_and_no_more_time_than_was_left(running: Running):
    """A restart does not prolong the time, or a query that restarts each hour would never forget an id."""
    running.ledger.in_doubt.add(ids("a", "b"), 7, running.run.now())
    write_in_doubt(running.run)
    after = restarted(running, later=100.0)

    assert [True, True, False] == found(after, "a", "b", "c")
    [run] = after.runs
    left = running.ledger.in_doubt.runs[0].until - 100
    assert 7 == run.batch
    assert 5.0 + left == pytest.approx(run.until, abs=5)
    assert after.files == {*running.staging.files("in-doubt/")}
    assert run.path not in after.files, "the earlier run, if it lives, may delete its files"


def test_time_that_is_over_makes_no_id_forgotten(running: Running):
    """A run that has not drained the subscription leaves its ids to the next one. They are kept for a week."""
    running.ledger.in_doubt.add(ids("a"), 7, running.run.now())
    write_in_doubt(running.run)
    after = restarted(running, later=2 * DOUBT_SECONDS)

    assert [True] == found(after, "a")
    assert after.is_overdue(5.0)
    late = restarted(running, later=KEPT_SECONDS + 2 * DOUBT_SECONDS)
    assert 1 == late.compact(5.0), "forgotten, which `write_in_doubt` reports"
    assert [] == late.runs


def test_restarts_pile_up_no_files():
    """The runs of a day that only a drained subscription ends become one."""
    in_doubt = InDoubt("in-doubt/2-")
    for hour in range(48):
        in_doubt.load(f"in-doubt/1-{hour}", ids(str(hour)), hour, until=-3600.0 * hour)
    in_doubt.join(now=5.0)

    assert [24, 24] == [run.count for run in in_doubt.runs]
    assert [0.0, -86400.0] == sorted((run.until for run in in_doubt.runs), reverse=True)


def test_ids_that_are_forgotten_are_reported(running: Running, caplog: pytest.LogCaptureFixture):
    """Their messages may be rows again."""
    running.ledger.in_doubt.add(ids("a", "b"), 7, running.run.now())
    write_in_doubt(running.run)
    running.advance(KEPT_SECONDS + 2 * DOUBT_SECONDS)
    write_in_doubt(running.run)

    assert "2 ids of messages of" in caplog.text
    assert [] == running.staging.files("in-doubt/")


def test_checkpoint_that_was_put_back_forgets_ids_of_later_batches(running: Running):
    """They were committed in a checkpoint that is gone, so their messages have to be rows."""
    running.ledger.in_doubt.add(ids("a"), 7, running.run.now())
    write_in_doubt(running.run)

    assert [True] == found(restarted(running, start=7), "a")
    assert [False] == found(restarted(running, start=6), "a")
    assert [] == running.staging.files("in-doubt/")


@pytest.mark.parametrize(
    ("topic", "expected"), [("t", True), (None, True), ("_deleted-topic_", True), ("another", False)]
)
def test_ids_of_another_topic_are_forgotten(running: Running, topic: str | None, expected: bool):
    """Message ids are unique within a topic: the subscription was deleted and created on another one."""
    metadata: dict[str, str | float] = {"until": running.runtime.wall() + 60, "batch": 1, "topic": "t"}
    running.staging.write_ids("in-doubt/1-1", merged([ids("a")]), **metadata)

    assert [expected] == found(restarted(running, topic=topic), "a")


def test_copies_of_ids_are_known_once(running: Running):
    """A run that was killed between its own file and the deletion of the one before leaves both."""
    running.ledger.in_doubt.add(ids("a", "b"), 7, running.run.now())
    write_in_doubt(running.run)
    [run] = running.ledger.in_doubt.runs
    copy = {"until": run.until + running.runtime.wall() - running.run.now() + 60, "batch": 8}
    running.staging.write_ids("in-doubt/2-1", run.ids.digests, **copy)
    after = restarted(running)

    assert [(2, 8)] == [(each.count, each.batch) for each in after.runs]
    assert {"in-doubt/1-1", "in-doubt/2-1"} == after.files, "to be deleted when the ids are written again"


@pytest.mark.parametrize("content", [b"", b"damaged", None])
def test_unreadable_file_is_reported_and_deleted(
    running: Running, content: bytes | None, caplog: pytest.LogCaptureFixture
):
    """A redelivery may be a row again then, which is no reason to fail."""
    if content is None:
        running.staging.write_ids("in-doubt/1-1", merged([ids("a")]))  # without its times
    else:
        running.staging.create("in-doubt/1-1", [content])
    with caplog.at_level(logging.WARNING):
        assert [] == restarted(running).runs

    assert "ids in doubt are lost" in caplog.text
    assert [] == running.staging.files("in-doubt/")


def test_runs_are_written_once_and_obsolete_files_deleted(running: Running):
    """A file that a planned batch reads is kept until the batch is committed."""
    in_doubt, written = running.ledger.in_doubt, []
    running.before = lambda call, path: written.append(path) if call == "create" else None
    in_doubt.add(ids("a"), 1, 0)
    write_in_doubt(running.run)
    write_in_doubt(running.run)
    [first] = [run.path for run in in_doubt.runs]
    assert [f"{running.staging.root}/{first}"] == written

    running.ledger.plan(2, 0, reads=frozenset([first]))
    in_doubt.add(ids("b", "c"), 1, 1)  # merged with the first
    write_in_doubt(running.run)
    [second] = [run.path for run in in_doubt.runs]
    assert {first, second} == set(running.staging.files("in-doubt/"))

    running.ledger.commit(2, {})
    write_in_doubt(running.run)
    assert [second] == running.staging.files("in-doubt/")
