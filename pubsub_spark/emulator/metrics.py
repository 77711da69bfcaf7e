"""The metrics of the emulator at `/metrics`: Cloud Monitoring's by their names, and those of RPCs and of the process.

The cost is per call or batch, never per message. Labels are bounded: only existing topics and subscriptions have any.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from pubsub_spark.emulator.rpc.call_log import code_of
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.interceptors import Proceed
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.state.events import (
    Acked,
    Cleared,
    DeadLettered,
    Deleted,
    Delivered,
    Event,
    Expired,
    Modified,
    Published,
    Released,
    Sought,
)
from pubsub_spark.emulator.state.wire_format import SPAN, subscription_and_rest

_RPC_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)  # seconds
_ACK_BOUNDS = (1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1_000.0, 5_000.0, 10_000.0, 60_000.0, 600_000.0)  # milliseconds
MAX_BATCHES = 50_000  # with a stored delivery time. Acks of older batches are in no histogram
_MAX_NAME_BYTES = 1000

# By resource, from events.
_COUNTS = {
    "topic_send_message_operation_count": "Messages published, dead letters included.",
    "topic_byte_cost": "Bytes of the publish requests that succeeded.",
    "subscription_sent_message_count": "Messages delivered, each as often as it was.",
    "subscription_ack_message_count": "Messages acknowledged.",
    "subscription_mod_ack_deadline_message_count": "Messages whose deadline a consumer set. 0 is a nack.",
    "subscription_nack_requests": "Requests that set deadlines to 0.",
    "subscription_expired_ack_deadlines_count": "Leases whose deadline passed.",
    "subscription_dead_letter_message_count": "Messages forwarded to the dead-letter topic.",
    "subscription_seek_request_count": "Seeks.",
}
# By resource and status, from calls: the RPC whose requests they count.
_REQUESTS = {
    "Publish": ("topic_send_request_count", "Publish requests."),
    "Pull": ("subscription_pull_request_count", "Pull requests."),
    "Acknowledge": ("subscription_pull_ack_request_count", "Acknowledge requests."),
    "ModifyAckDeadline": ("subscription_mod_ack_deadline_request_count", "ModifyAckDeadline requests."),
}
_LATENCIES = "subscription_ack_latencies", "Milliseconds from the delivery of a message to its acknowledgement."
_GAUGES = {
    "subscription_num_undelivered_messages": "Unacknowledged messages, those that a consumer holds included.",
    "subscription_num_outstanding_messages": "Messages that a consumer holds.",
    "subscription_oldest_unacked_message_age": "Seconds since the oldest unacknowledged message was published.",
    "subscription_open_streaming_pulls": "Open StreamingPulls.",
}
_RPCS = "pubsub_emulator_rpcs", "Calls that ended, by RPC and status."
_RPC_SECONDS = "pubsub_emulator_rpc_seconds", "Seconds from the beginning of a call or stream to its end."


class Histogram:
    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True))


class Counts:
    __slots__ = ("latencies", "messages", "requests")

    def __init__(self) -> None:
        self.messages: defaultdict[str, int] = defaultdict(int)  # by metric
        self.requests: defaultdict[tuple[str, str], int] = defaultdict(int)  # by metric and status
        self.latencies = Histogram(_ACK_BOUNDS)


class Metrics:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._resources: dict[str, Counts] = {}
        self._delivered: OrderedDict[int, list[float]] = OrderedDict()  # batch: its time, and messages not acked
        self._rpcs: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._rpc_seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(_RPC_BOUNDS))
        self._registry: Any = None
        self._streams: Callable[[], Mapping[str, int]] = dict
        self._handlers: dict[type, Callable[[Any], object]] = {
            Published: self._published,
            Delivered: self._deliver,
            Acked: self._acked,
            Modified: self._modified,
            Released: self._released,
            Expired: self._expired,
            DeadLettered: self._dead_lettered,
            Sought: self._sought,
            Deleted: lambda event: self._resources.pop(event.name, None),
            Cleared: lambda _: self._resources.clear(),
        }

    async def __call__(self, context: RpcContext, proceed: Proceed) -> Any:
        began, code = time.perf_counter(), "OK"
        try:
            return await proceed()
        except BaseException as error:
            code = code_of(error)
            raise
        finally:
            self._called(context, code, time.perf_counter() - began)

    def _called(self, context: RpcContext, code: str, seconds: float) -> None:
        rpc = context.rpc
        self._rpcs[rpc, code] += 1
        self._rpc_seconds[rpc].add(seconds)
        if rpc in _REQUESTS:
            name, _ = subscription_and_rest(context.request[:_MAX_NAME_BYTES])  # a PublishRequest begins the same way
            counts = self._of(name)
            counts.requests[_REQUESTS[rpc][0], code] += 1
            if rpc == "Publish" and code == "OK":
                counts.messages["topic_byte_cost"] += len(context.request)

    def follow(self, events: Sequence[Event]) -> None:
        for event in events:
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)

    def _of(self, name: str) -> Counts:
        """The counts of a resource that does not exist are lost."""
        counts = self._resources.get(name)
        if counts is None:
            counts = Counts()
            if name in self._engine.broker.topics or name in self._engine.broker.subscriptions:
                counts = self._resources.setdefault(name, counts)
        return counts

    def _published(self, event: Published) -> None:
        self._of(event.topic).messages["topic_send_message_operation_count"] += len(event.publication)

    def _deliver(self, event: Delivered) -> None:
        count = len(event.batch)
        self._of(event.subscription).messages["subscription_sent_message_count"] += count
        self._delivered[event.batch.numbers.start // SPAN] = [self._engine.now(), count]
        if len(self._delivered) > MAX_BATCHES:
            self._delivered.popitem(last=False)

    def _acked(self, event: Acked) -> None:
        counts, now = self._of(event.subscription), self._engine.now()
        counts.messages["subscription_ack_message_count"] += len(event.numbers)
        for delivered, messages in self._ended(event.numbers):
            counts.latencies.add(max(0.0, now - delivered) * 1000, messages)

    def _modified(self, event: Modified) -> None:
        messages = self._of(event.subscription).messages
        messages["subscription_mod_ack_deadline_message_count"] += len(event.numbers)
        if event.seconds <= 0:
            messages["subscription_nack_requests"] += 1
            self._released(event)

    def _released(self, event: Released | Modified) -> None:
        for _ in self._ended(event.numbers):
            pass

    def _ended(self, numbers: Sequence[int]) -> Iterator[tuple[float, int]]:
        """End the deliveries of these leases. Yield the time of each delivery, and the number of its leases."""
        if isinstance(numbers, range):  # of one batch
            batches: Iterable[tuple[int, int]] = ((numbers.start // SPAN, len(numbers)),)
        elif (first := min(numbers) // SPAN) == max(numbers) // SPAN:  # in less than half of the time of counting
            batches = ((first, len(numbers)),)
        else:
            batches = Counter(number // SPAN for number in numbers).items()
        for batch, count in batches:
            known = self._delivered.get(batch)
            if known is not None:
                known[1] -= count
                if known[1] <= 0:
                    del self._delivered[batch]
                yield known[0], count

    def _expired(self, event: Expired) -> None:
        self._of(event.subscription).messages["subscription_expired_ack_deadlines_count"] += len(event.numbers)

    def _dead_lettered(self, event: DeadLettered) -> None:
        count = len(event.message_numbers)
        self._of(event.subscription).messages["subscription_dead_letter_message_count"] += count

    def _sought(self, event: Sought) -> None:
        self._of(event.subscription).messages["subscription_seek_request_count"] += 1

    def text(self, streams: Callable[[], Mapping[str, int]]) -> str:
        """Return Prometheus' text format. `streams` counts the open streams by subscription."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        if self._registry is None:
            self._streams = streams
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        return generate_latest(self._registry).decode()

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        with self._engine.open() as (broker, now):
            gauges = {
                name: (
                    broker.backlog(subscription),
                    broker.outstanding(subscription),
                    max(0.0, now - (broker.oldest_unacked(subscription) or now)),
                )
                for name, subscription in broker.subscriptions.items()
            }
            names = {"topic": [*broker.topics], "subscription": [*gauges]}
            counts = {name: self._of(name) for name in (*names["topic"], *names["subscription"])}
            messages = {name: dict(count.messages) for name, count in counts.items()}
            requests = {name: dict(count.requests) for name, count in counts.items()}
            latencies = {
                name: (counts[name].latencies.buckets(), counts[name].latencies.sum) for name in names["subscription"]
            }
        open_streams = self._streams()
        for index, (metric, about) in enumerate(_GAUGES.items()):
            gauge = GaugeMetricFamily(metric, about, labels=_labels(metric))
            for name, values in gauges.items():
                gauge.add_metric(_ids(name), (*values, open_streams.get(name, 0))[index])
            yield gauge
        for metric, about in _COUNTS.items():
            counter = CounterMetricFamily(metric, about, labels=_labels(metric))
            for name in names[metric.partition("_")[0]]:
                counter.add_metric(_ids(name), messages[name].get(metric, 0))
            yield counter
        for metric, about in _REQUESTS.values():
            counter = CounterMetricFamily(metric, about, labels=(*_labels(metric), "response_code"))
            for name in names[metric.partition("_")[0]]:
                for (which, code), value in requests[name].items():
                    if which == metric:
                        counter.add_metric((*_ids(name), code), value)
            yield counter
        histogram = HistogramMetricFamily(*_LATENCIES, labels=_labels(_LATENCIES[0]))
        for name, (buckets, total) in latencies.items():
            histogram.add_metric(_ids(name), buckets, total)
        yield histogram
        counter = CounterMetricFamily(*_RPCS, labels=("rpc", "code"))
        for rpc_and_code, value in dict(self._rpcs).items():
            counter.add_metric(rpc_and_code, value)
        yield counter
        histogram = HistogramMetricFamily(*_RPC_SECONDS, labels=("rpc",))
        for rpc, durations in dict(self._rpc_seconds).items():
            histogram.add_metric((rpc,), durations.buckets(), durations.sum)
        yield histogram


def _labels(metric: str) -> tuple[str, str]:
    return "project_id", f"{metric.partition('_')[0]}_id"


def _ids(name: str) -> tuple[str, str]:
    _, project, _, resource_id = name.split("/")
    return project, resource_id
