"""Planner: the split of a trigger's budget, and the batches that prove a backlog. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.read.driver.planner import MAX_DEFAULT_TASKS, Budget, Planner, is_backlogged, next_streams
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.part import Footer
from pubsub_spark.read.staging.store import open_store
from pubsub_spark.read.task.partitions import DriverPartition, PullPartition

STAGING = Staging(open_store("memory:///"), "projects/p/subscriptions/sub", "stream")


def footer(rows: int, ended: str, oldest: float | None = None, dropped: int = 0, volume: int = 0) -> Footer:
    return Footer(rows, volume, dropped, ended, oldest, 0, [])


FIRST = PullPartition(STAGING, 1, 1, 0, 0, deadline=50.0, excludes=["in-doubt/1-1"], streams=3, driver_content=b"rows")


def shares(budget: Budget, tasks: int, buffered: int = 0, volume: int = 0) -> list[PullPartition]:
    return budget.shares(FIRST, tasks, footer(buffered, "driver", volume=volume))


def test_budget_is_shared_equally():
    """Ten messages for three tasks are four, three and three."""
    expected = [(1, 4, 1000), (2, 3, 1000), (3, 3, 1000)]
    assert expected == [(s.part, s.max_messages, s.max_bytes) for s in shares(Budget(10, 3000), 3)]


def test_shares_differ_in_numbers_and_limits_alone():
    """The first one also has the rows of the driver."""
    first, second = shares(Budget(2, 10), 2)
    assert replace(FIRST, part=1, max_messages=1, max_bytes=5) == first
    assert replace(FIRST, part=2, max_messages=1, max_bytes=5, driver_content=None) == second


def test_driver_stream_uses_up_budget():
    """Messages of the driver stream are not pulled for again."""
    assert [(6, 2900)] == [(s.max_messages, s.max_bytes) for s in shares(Budget(10, 3000), 1, 4, 100)]


def test_every_share_has_room_for_a_byte():
    """A limit of 0 bytes would be none. Fewer bytes than tasks are one for each."""
    assert [1, 1, 1] == [share.max_bytes for share in shares(Budget(10, 2), 3)]
    assert "[3, 3, 3]" == str([share.max_bytes for share in shares(Budget(10, 11), 3)])  # whole bytes


def test_spent_budget_asks_nobody():
    """If the driver stream alone has used up messages or bytes there are no pulls."""
    assert [] == shares(Budget(10, 3000), 3, 10, 100)
    assert [] == shares(Budget(10, 3000), 3, 1, 3000)


@given(st.integers(1, 10_000), st.integers(1, 10**9), st.integers(1, 50), st.integers(0, 10_000))
def test_shares_add_up(messages: int, volume: int, tasks: int, buffered: int):
    """Shares are never empty, and never more than the budget in all."""
    found = shares(Budget(messages, volume), tasks, buffered)

    assert max(0, messages - buffered) == sum(share.max_messages for share in found)
    assert all(share.max_messages >= 1 and share.max_bytes >= 1 for share in found)
    assert [*range(1, len(found) + 1)] == [share.part for share in found]


def test_full_pull_means_more():
    """A pull that ended because its share was full leaves a backlog behind."""
    assert is_backlogged([footer(0, "idle"), footer(10, "full")])
    assert is_backlogged([footer(10, "period", oldest=99.0)])


def test_surplus_task_that_found_nothing_means_no_more():
    """Of three tasks on two slots the last one begins when another has ended."""
    full, empty = replace(footer(10, "full"), task_slots=2), replace(footer(0, "idle"), task_slots=2)
    assert not is_backlogged([full, full, empty])
    assert is_backlogged([full, empty])
    assert is_backlogged([full, empty, full])


def test_idle_pulls_mean_no_more():
    """When no pull found more at its end, the driver stream is enough."""
    assert not is_backlogged([footer(10, "idle"), footer(3, "idle")])


def test_pull_that_has_caught_up_means_no_more():
    """The driver stream is enough, but for `availableNow`: messages published before it began may still arrive."""
    assert not is_backlogged([footer(10, "caughtUp"), footer(3, "idle")])
    assert is_backlogged([footer(10, "caughtUp"), footer(3, "period")])
    assert is_backlogged([footer(10, "caughtUp", oldest=99.0)], drained_from=100.0)
    assert not is_backlogged([footer(10, "idle", oldest=99.0)], drained_from=100.0)


def test_first_tasks_wait_for_a_moment_only():
    """A full driver stream does not prove a backlog, and a wait in vain does not prove an empty subscription."""
    planner = Planner(2)
    waits = []
    for pulls in ([], [footer(0, "idle")], [footer(9, "full")], [footer(1, "idle")]):
        planner.plans[1] = [FIRST]
        planner.record(1, pulls, None)
        waits.append(planner.first_wait)
    assert [math.inf, math.inf, math.inf, 0.5] == waits
    assert 0.5 == Planner(2).first_wait


def test_period_that_brought_nothing_means_no_more():
    """A short `maxFetchPeriod` that ends an empty pull is no backlog."""
    assert not is_backlogged([footer(0, "period")])


def test_dropped_redeliveries_count():
    """A pull full of redeliveries proves that there is more, though it has no rows, and also with `availableNow`."""
    assert is_backlogged([footer(0, "full", dropped=10)])
    assert is_backlogged([footer(0, "full", dropped=10)], drained_from=100.0)
    assert is_backlogged([footer(10, "full", dropped=10)])


def test_first_pull_of_a_backlog_is_short():
    """It shows how fast a stream is. The only batch of a run has no second one to use that."""
    planner = Planner(2)
    assert 1.0 == planner.period(is_only=False)
    assert math.inf == planner.period(is_only=True)
    planner.is_backlogged = True
    assert math.inf == planner.period(is_only=False)


def test_backlog_ends_at_the_start_of_available_now():
    """A batch of `availableNow` that met only messages published later is the last."""
    assert is_backlogged([footer(10, "full", oldest=100.0), footer(1, "idle", oldest=101.0)], drained_from=100.0)
    assert not is_backlogged([footer(10, "full", oldest=101.0)], drained_from=100.0)


def pulled(streams: int, megabytes_per_second: float, ended: str = "period") -> Footer:
    """Return a part of a task with `streams` streams, each at `megabytes_per_second` for two seconds."""
    return replace(footer(1, ended), pull_bytes=int(streams * megabytes_per_second * 2e6), pull_seconds=2.0)


@pytest.mark.parametrize(
    ("streams", "rates", "then"),
    [
        (1, [9.5], 64),  # at the limit of 10 MB/s
        (2, [9.0, 9.9], 64),
        (64, [9.9], 64),  # no more than 64
        (4, [4.0], 4),  # below the limit: the task or the backlog is slower
        (4, [2.0], 2),  # half of them would do
        (1, [2.0], 1),
        (5, [2.0], 2),
        (4, [2.5], 4),  # a quarter of the limit: half of them would be at its half
        (1, [15.0], 64),  # half as much again is the limit, measured late
        (1, [80.0], 1),  # no limit there: an emulator
    ],
)
def test_streams_follow_the_rate_of_each(streams: int, rates: list[float], then: int):
    """A backlog has all that are allowed once a stream runs at the service's limit, and half if that will do."""
    assert then == next_streams(streams, [pulled(streams, rate) for rate in rates])


def test_idle_pulls_halve_the_streams():
    """Without a backlog there is nothing that several streams are needed for."""
    assert 2 == next_streams(4, [pulled(4, 9.9, "idle")])
    assert 2 == next_streams(4, [])
    assert [1, 1] == [next_streams(1, []), next_streams(2, [])]
    assert "2" == str(next_streams(5, []))


def test_short_pull_shows_the_rate():
    """The first pull of a backlog lasts a second or less."""
    assert 64 == next_streams(1, [replace(footer(1, "full"), pull_bytes=5_000_000, pull_seconds=0.5)])


def test_idle_pull_beside_busy_ones_says_nothing():
    """Of several tasks only those that found a backlog show how fast their streams were."""
    assert 64 == next_streams(2, [pulled(2, 9.9), pulled(2, 0.1, "idle")])


def test_backlog_is_known_from_a_batch_that_tasks_have_pulled():
    """The driver's own part proves nothing about a backlog, and a plan is forgotten with its commit."""
    full = footer(10, "full")
    planner = Planner(2, plans={1: [DriverPartition(STAGING, 1, b"")], 2: [FIRST], 3: [FIRST]})
    planner.record(1, [], None)
    assert not planner.is_backlogged
    planner.record(2, [full], None)
    assert planner.is_backlogged
    planner.record(3, [footer(10, "idle")], None)
    assert not planner.is_backlogged
    assert {} == planner.plans


def test_committed_batch_shows_the_streams_and_the_end():
    """With `availableNow` a pull that has met only later messages is the last."""
    planner = Planner(2, plans={1: [FIRST]})
    planner.record(1, [replace(pulled(1, 9.5, "full"), rows=10, oldest=101.0)], drained_from=100.0)
    assert (64, False) == (planner.streams, planner.is_backlogged)


def test_tasks_tell_how_many_run_at_once():
    """The number is None if no task has pulled, or if Spark's settings do not have it."""
    planner = Planner(MAX_DEFAULT_TASKS)
    slots = [replace(footer(1, "idle"), task_slots=count) for count in (None, 8)]

    assert 8 == planner.record(1, slots, None)
    assert planner.record(2, slots[:1], None) is None
    assert planner.record(3, [], None) is None
