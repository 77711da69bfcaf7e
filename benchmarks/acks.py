"""Benchmark of the driver's acks: what one driver carries when it sends all acks, and when tasks send them.

    python benchmarks/acks.py [--parts N] [--messages N ...]

A batch of so many parts with so many messages each is staged and committed, and `AckWorker` acknowledges it against
`canned.py`, a server in a process of its own that only counts. Then another batch, of which the footers of the next say
that tasks have sent its acks, as in a backlog. Processor time is that of this process, all threads, from the listing of
the batch to the deletion of its files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from canned import PER_RESPONSE, SUBSCRIPTION, responses  # noqa: E402
from read import canned  # noqa: E402

from pubsub_spark.backend import EmulatorBackend  # noqa: E402
from pubsub_spark.codec.envelope import received  # noqa: E402
from pubsub_spark.read.ack_worker import AckWorker  # noqa: E402
from pubsub_spark.read.deduplication import Deduplication  # noqa: E402
from pubsub_spark.read.lease_extender import LeaseExtender  # noqa: E402
from pubsub_spark.read.leases import Leases  # noqa: E402
from pubsub_spark.read.staging.area import Staging, part_path  # noqa: E402
from pubsub_spark.read.staging.store import open_store  # noqa: E402
from pubsub_spark.read.pull.driver_stream import DriverStream  # noqa: E402
from pubsub_spark.read.pull.streaming_pull import StreamSettings  # noqa: E402
from pubsub_spark.read.task_acks import HeldAcks, SentAcks  # noqa: E402


def stage(staging: Staging, batch: int, parts: int, messages: int, pool: list[bytes], sent: int | None = None) -> None:
    """Stage a batch; the files of its parts are one file. sent: the batch whose acks the footers say are sent."""
    builder = staging.part_builder()
    for index in range(messages // PER_RESPONSE):
        one = received([pool[index % len(pool)]])
        builder.add(one.messages, one.receipts)
    sent_acks = [] if sent is None else [SentAcks(sent, part, messages) for part in range(1, parts + 1)]
    staging.create(part_path(batch, 1), builder.buffers("full", sent_acks=sent_acks))
    folder = Path(staging.location) / staging.root
    for part in range(2, parts + 1):
        (folder / part_path(batch, part)).hardlink_to(folder / part_path(batch, 1))


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of this process's processor time, and of the wall clock."""
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


def run(parts: int, messages: int, pool: list[bytes], endpoint: str, folder: str) -> None:
    """Measure one size of batch, both ways, and print it."""
    staging, leases = Staging(open_store(folder), SUBSCRIPTION, uuid.uuid4().hex), Leases()
    with EmulatorBackend(endpoint).connect() as connection:
        stream = DriverStream(connection, StreamSettings(SUBSCRIPTION, "driver", 60, 1000, 10**6))
        deduplication = Deduplication(staging, leases, time.monotonic)
        extender = LeaseExtender(connection, staging, leases, stream, time.monotonic)
        worker = AckWorker(connection, staging, leases, stream, deduplication, extender)
        for batch, sent in ((1, None), (2, None), (3, 2)):
            stage(staging, batch, parts, messages, pool, sent)
            with leases.lock:
                leases.plan(batch, time.monotonic())

        def by_driver() -> None:
            worker.commit(1)
            assert worker.flush(600)

        def by_tasks() -> None:
            worker.commit(2, [HeldAcks(2, part, length) for part, length in staging.parts(2).items()])
            footers = staging.footers(3, staging.parts(3))
            assert worker.release(SentAcks(*each) for footer in footers[:1] for each in footer.sent_acks)
            assert worker.flush(600)

        total = parts * messages
        for name, work in (("the driver sends", by_driver), ("tasks send", by_tasks)):
            processor, wall = measured(work)
            print(
                f"{parts} x {messages:>8,}  {name:18}  {processor / total * 1e6:7.4f} us of processor a message  "
                f"{total / processor / 1e6:8.1f} M/s of a core  {wall:6.2f} s",
                flush=True,
            )
        worker.stop(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=50)
    parser.add_argument("--messages", type=int, nargs="*", default=[10_000, 100_000])
    given = parser.parse_args()
    pool = responses(20)
    with canned(PER_RESPONSE) as endpoint:
        for messages in given.messages:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                run(given.parts, messages, pool, endpoint, folder)


if __name__ == "__main__":
    main()
