"""The arithmetic of docs/scaling.md and docs/cost.md: rate, resources and cost of one query. Pure.

Each measured number names its benchmark, each price and limit its page. Change them and run `make tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# https://cloud.google.com/pubsub/quotas#resource_limits
STREAM_BYTES_PER_SECOND = 10e6
STREAMS_PER_TASK = 16  # as sized here: `streamsPerPartition` is doubled up to 64

# Seconds of a core for a message, and for a byte of its payload, everything together: `benchmarks/read.py streams`, the
# column without a limit (457,182, 224,389 and 31,627 messages/s of 100 B, 1 KB and 10 KB on two cores, a busy machine).
CORE_SECONDS_PER_MESSAGE = 3.8e-6
CORE_SECONDS_PER_BYTE = 5.9e-9
# Seconds of the driver's processor for the ack of a message: `benchmarks/acks.py` (0.34 to 0.43 us, a busy machine)
DRIVER_SECONDS_PER_MESSAGE = 0.4e-6
# Seconds of the driver for the footer of each pulled part, between two batches
DRIVER_SECONDS_PER_PART = 0.5e-3
# Seconds of a batch without a pull (planning, logs, the start of tasks): `benchmarks/read.py throughput`
BETWEEN_BATCHES_SECONDS = 0.2
ENVELOPE_BYTES = 300  # of a message besides its payload: attributes, ids, the ack id of 190 characters
ACK_ID_BYTES = 193  # of a request

# Requests of a batch with P pulled parts: `test_store_requests_are_those_of_the_model` in tests/rpc/test_session.py
WRITES, WRITES_PER_PART = 9, 5  # puts and listings
READS, READS_PER_PART = 3, 4

# List prices in dollars, one region, standard storage, no discounts. Read on 2026-09-20 from
# https://cloud.google.com/storage/pricing (class A and B operations) and https://cloud.google.com/pubsub/pricing.
WRITE_DOLLARS = 0.005 / 1000
READ_DOLLARS = 0.0004 / 1000
PUBSUB_DOLLARS_PER_TIB = 40  # for publishing, and again for delivering
# Inputs: not read from a price page. Replace them by those of your region and contract.
MACHINE_DOLLARS_PER_HOUR = 0.134  # a machine with 4 cores and 16 GB
DATAFLOW_CORE_DOLLARS_PER_HOUR = 0.069  # of a streaming worker
DATAFLOW_GB_DOLLARS_PER_HOUR = 0.003557
DATAFLOW_ENGINE_DOLLARS_PER_GB = 0.018  # Streaming Engine, of processed data
HOURS_PER_MONTH = 730
TRIGGER_SECONDS = 10  # of the cost table: `trigger(processingTime="10 seconds")`
# Requests a second that a bucket takes at first in one folder, before it spreads its load.
# https://cloud.google.com/storage/docs/request-rate
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
WRITES_PER_SECOND = {"GCS": 1000, "S3": 3500}
NETWORK_BYTES_PER_SECOND = 1.25e9  # of an executor: 10 Gbit/s

PAYLOADS = (100, 1000, 10_000)
STREAMS = (10, 100, 1000)


@dataclass(frozen=True)
class Query:
    """One streaming query in a backlog. streams: in all. batch_bytes: `maxBytesPerTrigger`."""

    streams: int
    payload: int
    batch_bytes: float = 256 * 2**20

    @property
    def tasks(self) -> int:
        """Return the number of tasks for these streams."""
        return -(-self.streams // STREAMS_PER_TASK)

    @property
    def streams_messages_per_second(self) -> float:
        """Return the messages/s of open streams."""
        return self.streams * STREAM_BYTES_PER_SECOND / (self.payload + ENVELOPE_BYTES)

    @property
    def core_seconds(self) -> float:
        """Seconds of a core for one message."""
        return CORE_SECONDS_PER_MESSAGE + CORE_SECONDS_PER_BYTE * self.payload

    @property
    def batch_messages(self) -> float:
        """Messages of one batch."""
        return self.batch_bytes / self.payload

    @property
    def batch_seconds(self) -> float:
        """Seconds of one batch, on one core a task. The driver acknowledges a batch during the next one."""
        return max(max(self._steps.values()) + self._between, self._acking)

    @property
    def messages_per_second(self) -> float:
        """Messages/s in a backlog, on one core a task."""
        return self.batch_messages / self.batch_seconds

    @property
    def cores(self) -> int:
        """Return the number of cores at which the streams are the limit."""
        return max(1, round(self.streams_messages_per_second * self.core_seconds + 0.499))

    @property
    def writes_per_second(self) -> float:
        """Puts and listings of the staging area a second."""
        return (WRITES + WRITES_PER_PART * self.tasks) / self.batch_seconds

    def dollars_per_terabyte(self) -> float:
        """Return dollars of requests to a bucket for a terabyte of payloads."""
        return 1e12 / self.batch_bytes * _dollars_per_batch(self.tasks)

    def bottleneck(self) -> str:
        """Return the first limit, on one core per task."""
        parts = self._steps | {"the driver's acks": self._acking, "the time between batches": self._between}
        return max(parts, key=lambda name: parts[name])

    @property
    def _steps(self) -> dict[str, float]:
        """Return the seconds of the tasks for one batch, by limit."""
        pulling = self.batch_messages / self.streams_messages_per_second
        working = self.batch_messages * self.core_seconds / self.tasks
        return {"the streams' 10 MB/s": pulling, "the tasks' cores": working}

    @property
    def _acking(self) -> float:
        """Seconds of one core of the driver for the acks of one batch."""
        return self.batch_messages * DRIVER_SECONDS_PER_MESSAGE

    @property
    def _between(self) -> float:
        """Return the seconds of a batch without a pull."""
        return BETWEEN_BATCHES_SECONDS + self.tasks * DRIVER_SECONDS_PER_PART


def rates() -> str:
    """Return throughput, cores and bottleneck by streams and payload."""
    rows = [
        (
            f"{query.streams:,}",
            str(query.tasks),
            _bytes(query.payload),
            f"{query.messages_per_second:,.0f}",
            f"{query.messages_per_second * query.payload / 1e6:,.0f}",
            f"{query.messages_per_second * ACK_ID_BYTES / 1e6:,.1f}",
            str(query.cores),
            query.bottleneck(),
        )
        for streams in STREAMS
        for payload in PAYLOADS
        for query in [Query(streams, payload, _batch_bytes(streams))]
    ]
    head = (
        "streams",
        "tasks",
        "payload",
        "messages/s",
        "MB/s",
        "acks, MB/s",
        "cores for all streams",
        "first bottleneck",
    )
    return _table(head, rows)


def costs() -> str:
    """Return requests and dollars of the staging area by streams and bytes of a batch."""
    rows = [
        (
            f"{query.streams:,}",
            f"{batch_bytes // 2**20:,} MiB",
            f"{query.writes_per_second:,.0f}",
            ", ".join(f"{query.writes_per_second / most:.0%}" for most in WRITES_PER_SECOND.values()),
            f"{query.dollars_per_terabyte():,.2f}",
        )
        for streams in STREAMS
        for batch_bytes in (256 * 2**20, 1024 * 2**20, 4096 * 2**20)
        for query in [Query(streams, 1000, batch_bytes)]
    ]
    head = (
        "streams",
        "`maxBytesPerTrigger`",
        "writes/s",
        "share of a folder's initial write limit (GCS, S3)",
        "dollars per TB",
    )
    return _table(head, rows)


def _dollars_per_batch(tasks: int) -> float:
    """Return dollars of the requests to a bucket for one batch."""
    writes, reads = WRITES + WRITES_PER_PART * tasks, READS + READS_PER_PART * tasks
    return writes * WRITE_DOLLARS + reads * READ_DOLLARS


def monthly() -> str:
    """Return dollars a month for steady rates of messages of 1 KB, here and on Dataflow with as many cores."""
    rows = []
    for rate, machines in ((1_000, 1), (10_000, 2)):
        gigabytes = rate * 1000 * HOURS_PER_MONTH * 3600 / 1e9
        pubsub = gigabytes * 1e9 / 2**40 * PUBSUB_DOLLARS_PER_TIB
        bucket = HOURS_PER_MONTH * 3600 / TRIGGER_SECONDS * _dollars_per_batch(4 * machines)
        cluster = machines * MACHINE_DOLLARS_PER_HOUR * HOURS_PER_MONTH
        worker = 4 * DATAFLOW_CORE_DOLLARS_PER_HOUR + 16 * DATAFLOW_GB_DOLLARS_PER_HOUR
        dataflow = machines * worker * HOURS_PER_MONTH + gigabytes * DATAFLOW_ENGINE_DOLLARS_PER_GB
        amounts = (2 * pubsub, cluster, bucket, 2 * pubsub + cluster + bucket, dataflow, 2 * pubsub + dataflow)
        rows.append((f"{rate:,}", str(machines), *(f"{amount:,.0f}" for amount in amounts)))
    head = (
        "messages/s of 1 KB",
        "machines",
        "Pub/Sub, publish and deliver",
        "machines, dollars",
        "bucket requests",
        "**total here**",
        "Dataflow workers and engine",
        "**total with Dataflow**",
    )
    return _table(head, rows)


def _batch_bytes(streams: int) -> float:
    """Return the `maxBytesPerTrigger` of the first table: ten seconds of the streams, the default at least."""
    return max(256 * 2**20, streams * STREAM_BYTES_PER_SECOND * 10)


def _bytes(size: int) -> str:
    return f"{size} B" if size < 1000 else f"{size // 1000} KB"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
