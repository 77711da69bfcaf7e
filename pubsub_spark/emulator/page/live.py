"""Samples of counters, once a second while somebody looks, as server-sent events; and the charts of the last minute.

Runs on the event loop. While nobody looks there is no listener, no task and no sample. A viewer that goes from one page
to the next leaves for a moment, so sampling goes on for a few seconds after the last one has left. Rates come from the
events of the state; backlog and age are counters of the broker, so a sample costs microseconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pubsub_spark.emulator.page.rows import amount, duration, moment
from pubsub_spark.emulator.rpc.recent_calls import RecentCalls
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.events import Acked, Cleared, Created, Deleted, Event, Published, Updated

_log = logging.getLogger("pubsub_spark.emulator")

_TICK_SECONDS = 1.0
_LINGER_TICKS = 10
_SAMPLES = 60
_WIDTH, _HEIGHT = 120, 24  # of a chart, in units of its own


class Sample(NamedTuple):
    """The counters of a subscription at one moment; of a topic there is `published` alone."""

    backlog: int = 0
    outstanding: int = 0
    oldest: float | None = None  # seconds since the oldest unacked message was published
    published: float = 0.0  # messages a second, on its topic
    acked: float = 0.0
    streams: int = 0  # consumers that are connected


class Metric(NamedTuple):
    """A field of a sample: its title, and how its value is written."""

    title: str
    write: Callable[[Any], str]


METRICS = {
    "backlog": Metric("Backlog", amount),
    "outstanding": Metric("Outstanding", amount),
    "oldest": Metric("Oldest unacked", duration),
    "published": Metric("Published/s", amount),
    "acked": Metric("Acked/s", amount),
    "streams": Metric("Consumers", amount),
}


class Live:
    """The samples of what is looked at."""

    def __init__(self, engine: Engine, recent_calls: RecentCalls) -> None:
        self._engine = engine
        self._recent_calls = recent_calls
        self._viewers = 0
        self._watched: Counter[str] = Counter()  # viewers by name of what they look at
        self._samples: dict[str, deque[Sample]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()  # messages by (`published` or `acked`, resource)
        self._changes: Counter[str] = Counter()  # events by resource
        self._resource_changes = 0
        self._ticked = asyncio.Event()
        self._sampling: asyncio.Task[None] | None = None
        self._closed = False

    async def watch(self, names: Sequence[str]) -> AsyncGenerator[str, None]:
        """The events of these topics and subscriptions, one a second, until the viewer leaves."""
        self._viewers += 1
        self._watched.update(names)
        if self._sampling is None and not self._closed:
            self._engine.add_listener(self._listen)
            self._sampling = asyncio.create_task(self._sample())
        try:
            while self._sampling is not None and not self._closed:
                yield f"data: {json.dumps(self._message(names))}\n\n"
                await self._ticked.wait()
        finally:
            self._viewers -= 1
            self._watched.subtract(names)
            self._watched += Counter()  # drops those with no viewer

    def close(self) -> None:
        """End every viewer's events."""
        self._closed = True
        self._ticked.set()
        if self._sampling is not None:
            self._sampling.cancel()

    def fields(self, name: str, broker: Broker, now: float) -> dict[str, dict[str, str]]:
        """The text and the chart of each metric of a resource; called with the lock held."""
        sample, known = self._sampled(name, broker, now, Counter(), _TICK_SECONDS), self._samples.get(name, ())
        if sample is not None and known:
            sample = sample._replace(published=known[-1].published, acked=known[-1].acked)
        return drawn([*known, sample] if sample else [])

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        idle, last = 0, loop.time()
        try:
            while idle < _LINGER_TICKS:
                await asyncio.sleep(_TICK_SECONDS)
                idle = 0 if self._viewers else idle + 1
                passed, last = loop.time() - last, loop.time()
                self._add_samples(passed)
                self._tick()
        except Exception:  # it must not end the emulator; a viewer's browser asks again
            _log.exception("The samples for the page failed")
        finally:
            self._sampling = None
            self._tick()
            self._engine.remove_listener(self._listen)
            with self._engine.open():
                self._samples.clear()
                self._counts.clear()
                self._changes.clear()

    def _tick(self) -> None:
        """Wake who waits now, and nobody who comes later: the next viewer would send without an end."""
        self._ticked.set()
        self._ticked = asyncio.Event()

    def _add_samples(self, passed: float) -> None:
        with self._engine.open() as (broker, now):
            counts, self._counts = self._counts, Counter()
            for name in {*self._watched, *self._samples}:
                sample = self._sampled(name, broker, now, counts, passed)
                if sample is None:
                    self._samples.pop(name, None)
                else:
                    self._samples.setdefault(name, deque(maxlen=_SAMPLES)).append(sample)

    def _sampled(
        self, name: str, broker: Broker, now: float, counts: Counter[tuple[str, str]], passed: float
    ) -> Sample | None:
        """The sample of a topic or a subscription; None when there is none of that name."""
        if name in broker.topics:
            return Sample(published=counts["published", name] / passed)
        subscription = broker.subscriptions.get(name)
        if subscription is None:
            return None
        topic = broker.topic_of(name)
        oldest = broker.oldest_unacked(subscription)
        return Sample(
            broker.backlog(subscription),
            broker.outstanding(subscription),
            None if oldest is None else max(0.0, now - oldest),
            counts["published", topic.name] / passed if topic is not None else 0.0,
            counts["acked", name] / passed,
            len(subscription.consumers.connected),
        )

    def _listen(self, events: Sequence[Event]) -> None:
        """Count what happens; called under the engine's lock."""
        for event in events:
            if isinstance(event, Published):
                self._counts["published", event.topic] += len(event.publication)
            elif isinstance(event, Acked):
                self._counts["acked", event.subscription] += len(event.numbers)
            if isinstance(event, Created | Updated | Deleted | Cleared):
                self._resource_changes += 1
            if (subscription := getattr(event, "subscription", None)) is not None:
                self._changes[subscription] += 1
            elif isinstance(event, Published):
                self._changes[event.topic] += 1

    def _message(self, names: Sequence[str]) -> dict[str, Any]:
        """The next event: numbers that grow with each change, the clock, and the fields of each name."""
        with self._engine.open() as (broker, now):
            origins = [
                topic.name for name in names if name in broker.subscriptions and (topic := broker.topic_of(name))
            ]
        return {
            "resources": self._resource_changes,
            "messages": sum(self._changes[name] for name in {*names, *origins}),
            "calls": self._recent_calls.changes,
            "clock": moment(now),
            "fields": {name: drawn(self._samples.get(name, ())) for name in names},
        }


def drawn(samples: Iterable[Sample]) -> dict[str, dict[str, str]]:
    """The text, the polyline and the description of each metric; empty where there is no sample."""
    known = list(samples)
    if not known:
        return {}
    fields: dict[str, dict[str, str]] = {}
    for field, metric in METRICS.items():
        values = [getattr(sample, field) for sample in known]
        highest = max((value for value in values if value is not None), default=None)
        text = metric.write(values[-1])
        most = "none" if highest is None else f"{metric.write(highest)} at most"
        fields[field] = {
            "text": text,
            "points": points([value or 0.0 for value in values]),
            "label": f"{metric.title}: {text}; {most} in the last minute",
        }
    return fields


def points(values: Sequence[float]) -> str:
    """The points of a polyline, the newest value at the right edge; the highest one touches the upper edge."""
    highest = max((*values, 1e-9))
    step = _WIDTH / (_SAMPLES - 1)
    left = _WIDTH - step * (len(values[-_SAMPLES:]) - 1)
    return " ".join(
        f"{left + index * step:.1f},{_HEIGHT - 1 - value / highest * (_HEIGHT - 2):.1f}"
        for index, value in enumerate(values[-_SAMPLES:])
    )
