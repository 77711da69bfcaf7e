"""Samples of counters, once a second while a page is open, as server-sent events, and charts of up to a minute.

All of it runs on the event loop. Without a viewer there is no sample. A viewer that changes pages leaves for a moment,
so sampling continues for a few seconds after the last one has left.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pubsub_spark.emulator.page.rows import ahead, amount, duration, time_of_day
from pubsub_spark.emulator.rpc.recent_calls import RecentCalls
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.events import Acked, Cleared, Created, Deleted, Event, Published, Updated

_log = logging.getLogger("pubsub_spark.emulator")

TICK_SECONDS = 1.0
LINGER_TICKS = 10
_SAMPLES = 60
_WIDTH, _HEIGHT = 600, 100  # of a chart, in units of its own
EVERYTHING = "*"  # the sum of all topics and subscriptions


class Sample(NamedTuple):
    """The counters of a subscription at one moment. A topic has `published` alone."""

    backlog: int = 0
    outstanding: int = 0
    oldest: float | None = None  # seconds since the oldest unacked message was published
    published: float = 0.0  # messages a second, on its topic
    acked: float = 0.0
    streams: int = 0  # consumers that are connected


class Metric(NamedTuple):
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


class Chart(NamedTuple):
    title: str
    metrics: tuple[str, ...]
    tops: tuple[float, ...]  # possible tops of the scale, beyond the last one ten times these and so on


_AMOUNTS = (2.0, 5.0, 10.0, 20.0)
_SECONDS = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21_600.0, 43_200.0, 86_400.0)
_CHARTS = {
    "messages": Chart("Messages", ("backlog", "outstanding"), _AMOUNTS),
    "rates": Chart("Messages a second", ("published", "acked"), _AMOUNTS),
    "age": Chart("Oldest unacked", ("oldest",), _SECONDS),
    "published": Chart("Messages a second", ("published",), _AMOUNTS),
}


class Live:
    def __init__(self, engine: Engine, recent_calls: RecentCalls) -> None:
        self._engine = engine
        self._recent_calls = recent_calls
        self._viewers = 0
        self._watched: Counter[str] = Counter()  # viewers by name of the watched resource
        self._samples: dict[str, deque[Sample]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()  # messages by (`published` or `acked`, resource)
        self._changes: Counter[str] = Counter()  # events by resource
        self._resource_changes = 0
        self._ticked = asyncio.Event()
        self._sampling: asyncio.Task[None] | None = None
        self._closed = False

    async def watch(self, names: Sequence[str]) -> AsyncGenerator[str, None]:
        """Yield events until the viewer leaves."""
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
        self._closed = True
        self._ticked.set()
        if self._sampling is not None:
            self._sampling.cancel()

    def samples(self, name: str, broker: Broker, now: float) -> list[Sample]:
        """The last sample is one of now. The caller holds the lock."""
        sample, known = self._sampled(name, broker, now, Counter(), TICK_SECONDS), self._samples.get(name, ())
        if sample is not None and known:
            sample = sample._replace(published=known[-1].published, acked=known[-1].acked)
        return [*known, sample] if sample else []

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        idle, last = 0, loop.time()
        try:
            while idle < LINGER_TICKS:
                await asyncio.sleep(TICK_SECONDS)
                idle = 0 if self._viewers else idle + 1
                passed, last = loop.time() - last, loop.time()
                self._add_samples(passed)
                self._tick()
        except Exception:  # must not end the emulator: a viewer's browser asks again
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
        """Wake only the current waiters. Waking later ones would make the next viewer loop."""
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
        if name == EVERYTHING:
            return self._total(broker, now, counts, passed)
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

    def _total(self, broker: Broker, now: float, counts: Counter[tuple[str, str]], passed: float) -> Sample:
        subscriptions = broker.subscriptions.values()
        oldest = min((time for time in map(broker.oldest_unacked, subscriptions) if time is not None), default=None)
        sums = Counter[str]()
        for (kind, _), count in counts.items():
            sums[kind] += count
        return Sample(
            sum(map(broker.backlog, subscriptions)),
            sum(map(broker.outstanding, subscriptions)),
            None if oldest is None else max(0.0, now - oldest),
            sums["published"] / passed,
            sums["acked"] / passed,
            sum(len(subscription.consumers.connected) for subscription in subscriptions),
        )

    def _listen(self, events: Sequence[Event]) -> None:
        """The engine calls it under its lock."""
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
        with self._engine.open() as (broker, now):
            origins = [
                topic.name for name in names if name in broker.subscriptions and (topic := broker.topic_of(name))
            ]
        samples = {name: self._samples.get(name, ()) for name in names}
        return {
            "resources": self._resource_changes,
            "messages": sum(self._changes[name] for name in {*names, *origins}),
            "calls": self._recent_calls.changes,
            "clock": time_of_day(now)[:8],
            "ahead": ahead(self._engine.clock.ahead),
            "fields": {name: texts(known[-1]) for name, known in samples.items() if known},
            "charts": charts(names[0], samples[names[0]]) if names else {},
        }


def texts(sample: Sample) -> dict[str, str]:
    return {field: metric.write(getattr(sample, field)) for field, metric in METRICS.items()}


def charts(name: str, samples: Iterable[Sample]) -> dict[str, dict[str, Any]]:
    """Return the charts by their keys, or none without a sample."""
    kept = list(samples)[-_SAMPLES:]
    kinds = {EVERYTHING: ("messages", "rates"), "topics": ("published",)}
    keys = kinds.get(name) or kinds.get(name.split("/")[2], ("messages", "rates", "age"))
    return {key: _drawn(_CHARTS[key], kept) for key in keys} if kept else {}


def _drawn(chart: Chart, samples: Sequence[Sample]) -> dict[str, Any]:
    values = {field: [getattr(sample, field) or 0.0 for sample in samples] for field in chart.metrics}
    top = scale(max(map(max, values.values())), chart.tops)
    write = METRICS[chart.metrics[0]].write
    said = [f"{METRICS[field].title} {write(line[-1])}, at most {write(max(line))}" for field, line in values.items()]
    return {
        "title": chart.title,
        "lines": {field: points(line, top) for field, line in values.items()},
        "names": {field: METRICS[field].title for field in values},
        "values": {field: [METRICS[field].write(getattr(sample, field)) for sample in samples] for field in values},
        "top": write(top),
        "middle": write(top / 2),
        "since": f"{max(1, len(samples) - 1)} s ago",
        "label": f"{chart.title} of the last minute: {'; '.join(said)}",
    }


def scale(highest: float, tops: Sequence[float]) -> float:
    """Return the top of a scale for values up to `highest`: a round number."""
    factor = 1.0
    while highest > tops[-1] * factor:
        factor *= 10
    return next(top * factor for top in tops if highest <= top * factor)


def points(values: Sequence[float], top: float) -> str:
    """Return a polyline's points from the left edge to the newest value at the right edge. One value is level."""
    known = list(values) if len(values) > 1 else [*values, *values]
    step = _WIDTH / (len(known) - 1)
    return " ".join(f"{index * step:.0f},{_HEIGHT - value / top * _HEIGHT:.1f}" for index, value in enumerate(known))
