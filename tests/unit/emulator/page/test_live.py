"""Samples as charts, taken only while the page is open."""

from __future__ import annotations

import asyncio
import json

import pytest

from pubsub_spark.emulator.page import live
from pubsub_spark.emulator.page.live import EVERYTHING, Live, Sample, charts, points, scale, texts
from pubsub_spark.emulator.rpc.recent_calls import RecentCalls
from tests.unit.emulator.conftest import SUBSCRIPTION, TOPIC


def test_chart_fills_its_width_from_the_first_second():
    """One value is a level line, two are a line from edge to edge. The scale ends at a round number."""
    assert "0,50.0 600,50.0" == points([5], 10)
    assert "0,100.0 600,50.0" == points([0, 5], 10)
    assert 60 == len(points(range(60), 100).split())
    assert [2, 5, 50, 2000] == [scale(each, (2, 5, 10, 20)) for each in (0, 2.5, 21, 1500)]


def test_chart_has_a_scale_a_time_axis_and_its_values():
    """The drawn data also exist as text: labels of both axes, each value, and a sentence."""
    samples = [Sample(backlog=9000), Sample(backlog=7, oldest=75.0)]
    drawn = charts(SUBSCRIPTION, samples)

    assert ["messages", "rates", "age"] == list(drawn)
    assert ("10,000", "5,000", "1 s ago") == tuple(drawn["messages"][each] for each in ("top", "middle", "since"))
    assert {"backlog": ["9,000", "7"], "outstanding": ["0", "0"]} == drawn["messages"]["values"]
    assert (
        "Messages of the last minute: Backlog 7, at most 9,000; Outstanding 0, at most 0" == drawn["messages"]["label"]
    )
    assert ("2 min", "1 min 15 s") == (drawn["age"]["top"], texts(samples[-1])["oldest"])
    assert ["published"] == list(charts(TOPIC, samples))
    assert {} == charts(TOPIC, [])


def test_everything_is_the_sum(pair):
    """The chart of the overview adds up topics and subscriptions."""
    pair.subscription("projects/p/subscriptions/other")
    pair.publish("a", "b")
    with pair.engine.open() as (broker, now):
        [sample] = Live(pair.engine, RecentCalls(pair.engine.now)).samples(EVERYTHING, broker, now + 5)

    assert (4, 0) == (sample.backlog, sample.outstanding)
    assert 5 <= (sample.oldest or 0) < 6


@pytest.fixture
def listeners(pair, monkeypatch):
    """Return the listeners that were added to the engine and not removed."""
    listeners, add, remove = [], pair.engine.add_listener, pair.engine.remove_listener

    def noted_add(listener):
        listeners.append(listener)
        add(listener)

    def noted_remove(listener):
        listeners.remove(listener)
        remove(listener)

    monkeypatch.setattr(pair.engine, "add_listener", noted_add)
    monkeypatch.setattr(pair.engine, "remove_listener", noted_remove)
    return listeners


async def other_tasks_ended():
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


def test_samples_are_taken_while_somebody_looks(pair, listeners, monkeypatch):
    """A viewer gets the rates of each tick. After the last viewer has left, nothing listens any more."""
    monkeypatch.setattr(live, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(live, "LINGER_TICKS", 1)
    engine = pair.engine

    async def look():
        seen = Live(engine, RecentCalls(engine.now))
        events = seen.watch([SUBSCRIPTION, TOPIC])
        first = json.loads((await anext(events)).removeprefix("data: "))
        assert 1 == len(listeners)
        pair.publish("a", "b")
        pair.ack(*(await asyncio.to_thread(pair.pull)))
        later = json.loads((await anext(events)).removeprefix("data: "))
        await events.aclose()
        await other_tasks_ended()
        seen.close()
        assert [] == listeners
        return first, later

    first, later = asyncio.run(look())
    assert {} == first["fields"] == first["charts"]
    assert later["messages"] > first["messages"]
    assert "0" == later["fields"][SUBSCRIPTION]["backlog"]
    assert "0" != later["fields"][SUBSCRIPTION]["published"] == later["fields"][TOPIC]["published"]
    assert "0" != later["fields"][SUBSCRIPTION]["acked"]


def test_failed_sample_ends_the_events_alone(pair, listeners, monkeypatch, caplog):
    """A bug in a sample is logged, and ends the events instead of the emulator."""
    monkeypatch.setattr(live, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(live, "Sample", lambda *_, **__: 1 / 0)

    async def look():
        return [each async for each in Live(pair.engine, RecentCalls(pair.engine.now)).watch([SUBSCRIPTION])]

    assert 1 == len(asyncio.run(look()))
    assert "The samples for the page failed" in caplog.text
    assert [] == listeners


def test_close_ends_every_viewer(handlers):
    """The end of the emulator ends the events of every viewer."""

    async def look():
        seen = Live(handlers.engine, RecentCalls(handlers.engine.now))
        events = [each async for each in _closing(seen)]
        return len(events)

    async def _closing(seen):
        async for each in seen.watch([]):
            yield each
            seen.close()

    assert 1 == asyncio.run(look())


def test_viewer_after_a_pause_waits_for_the_tick(pair, monkeypatch):
    """The first viewer after a pause is sent one event per tick, and leaves the event loop free in between."""
    monkeypatch.setattr(live, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(live, "LINGER_TICKS", 1)

    async def look():
        seen = Live(pair.engine, RecentCalls(pair.engine.now))
        first = seen.watch([SUBSCRIPTION])
        await anext(first)
        await first.aclose()
        await other_tasks_ended()
        monkeypatch.setattr(live, "TICK_SECONDS", 60)
        again = seen.watch([SUBSCRIPTION])
        await anext(again)
        second = asyncio.ensure_future(anext(again))
        await asyncio.sleep(0)
        waits = not second.done()
        seen.close()
        await asyncio.wait([second])
        return waits

    assert asyncio.run(look())


def test_viewer_of_no_resource_is_not_sent_away(pair, monkeypatch):
    """The log of calls watches no topic or subscription, and still stays live."""
    monkeypatch.setattr(live, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(live, "LINGER_TICKS", 1)

    async def look():
        seen = Live(pair.engine, RecentCalls(pair.engine.now))
        events = seen.watch([])
        for _ in range(3):
            await anext(events)
        seen.close()
        return [each async for each in events]

    assert [] == asyncio.run(look())
