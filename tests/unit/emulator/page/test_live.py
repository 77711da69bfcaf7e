"""Samples as charts, and that nobody is counted for while nobody looks."""

from __future__ import annotations

import asyncio
import json

from pubsub_spark.emulator.page import live
from pubsub_spark.emulator.page.live import Live, Sample, drawn, points
from pubsub_spark.emulator.rpc.recent_calls import RecentCalls
from tests.unit.emulator.conftest import SUBSCRIPTION, TOPIC


def test_chart_of_a_minute():
    """The newest value is at the right edge, the highest touches the upper edge."""
    assert "118.0,23.0 120.0,1.0" == points([0, 5])
    assert 60 == len(points(range(100)).split())
    assert "120.0,23.0" == points([0])


def test_fields_say_what_the_chart_shows():
    """A chart has a sentence for those who cannot see it."""
    fields = drawn([Sample(backlog=9000), Sample(backlog=7, oldest=75.0)])

    assert ("7", "Backlog: 7; 9,000 at most in the last minute") == (
        fields["backlog"]["text"],
        fields["backlog"]["label"],
    )
    assert "Oldest unacked: 1 min 15 s; 1 min 15 s at most in the last minute" == fields["oldest"]["label"]
    assert {} == drawn([])


def test_samples_are_taken_while_somebody_looks(pair, monkeypatch):
    """A viewer gets the rates of each tick; after the last one has left, nothing listens any more."""
    monkeypatch.setattr(live, "_TICK_SECONDS", 0.02)
    monkeypatch.setattr(live, "_LINGER_TICKS", 1)
    engine = pair.engine

    async def look():
        seen = Live(engine, RecentCalls(engine.now))
        events = seen.watch([SUBSCRIPTION, TOPIC])
        first = json.loads((await anext(events)).removeprefix("data: "))
        assert 1 == len(engine._listeners)
        pair.publish("a", "b")
        pair.ack(*(await asyncio.to_thread(pair.pull)))
        later = json.loads((await anext(events)).removeprefix("data: "))
        await events.aclose()
        await asyncio.gather(*filter(None, [seen._sampling]))
        seen.close()
        assert [] == engine._listeners
        return first, later

    first, later = asyncio.run(look())
    assert {SUBSCRIPTION: {}, TOPIC: {}} == first["fields"]
    assert later["messages"] > first["messages"]
    assert "0" == later["fields"][SUBSCRIPTION]["backlog"]["text"]
    assert "0" != later["fields"][SUBSCRIPTION]["published"]["text"] == later["fields"][TOPIC]["published"]["text"]
    assert "0" != later["fields"][SUBSCRIPTION]["acked"]["text"]


def test_failed_sample_ends_the_events_alone(pair, monkeypatch, caplog):
    """A mistake in a sample is logged, and ends the events and not the emulator."""
    monkeypatch.setattr(live, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(Live, "_sampled", lambda *_: 1 / 0)

    async def look():
        return [each async for each in Live(pair.engine, RecentCalls(pair.engine.now)).watch([SUBSCRIPTION])]

    assert 1 == len(asyncio.run(look()))
    assert "The samples for the page failed" in caplog.text
    assert [] == pair.engine._listeners


def test_close_ends_every_viewer(handlers):
    """The end of the emulator ends the events of who looks."""

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
    """Who looks again after nobody has is sent one event a tick, and leaves the event loop to others meanwhile."""
    monkeypatch.setattr(live, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(live, "_LINGER_TICKS", 1)

    async def look():
        seen = Live(pair.engine, RecentCalls(pair.engine.now))
        first = seen.watch([SUBSCRIPTION])
        await anext(first)
        await first.aclose()
        await asyncio.gather(*filter(None, [seen._sampling]))
        monkeypatch.setattr(live, "_TICK_SECONDS", 60)
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
    """The log of calls watches no topic or subscription, and stays live all the same."""
    monkeypatch.setattr(live, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(live, "_LINGER_TICKS", 1)

    async def look():
        seen = Live(pair.engine, RecentCalls(pair.engine.now))
        events = seen.watch([])
        for _ in range(3):
            await anext(events)
        seen.close()
        return [each async for each in events]

    assert [] == asyncio.run(look())
