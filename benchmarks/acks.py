"""Benchmark of the driver's acks: the load that one driver carries.

    python benchmarks/acks.py [--parts N] [--messages N ...]

A batch of `--parts` parts with `--messages` messages each is staged and committed, and `AckWorker` acknowledges it
against `canned.py`, a server in a process of its own that only counts. Processor time is that of this process, all
threads, from the commit to the deletion of the batch's files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from canned import PER_RESPONSE, SUBSCRIPTION, responses  # noqa: E402
from read import canned  # noqa: E402

from pubsub_spark.backend import EmulatorBackend  # noqa: E402
from pubsub_spark.codec.envelope import received  # noqa: E402
from pubsub_spark.read.driver.ack_worker import AckWorker  # noqa: E402
from pubsub_spark.read.driver.batches import readable_parts  # noqa: E402
from pubsub_spark.read.driver.in_doubt import InDoubt  # noqa: E402
from pubsub_spark.read.driver.ledger import AckLedger  # noqa: E402
from pubsub_spark.read.driver.run import Run  # noqa: E402
from pubsub_spark.read.pull.driver_stream import DriverStream  # noqa: E402
from pubsub_spark.read.pull.streaming_pull import StreamSettings  # noqa: E402
from pubsub_spark.read.runtime import SYSTEM  # noqa: E402
from pubsub_spark.read.staging.area import Staging, part_path  # noqa: E402
from pubsub_spark.read.staging.store import open_store  # noqa: E402


def stage(staging: Staging, batch: int, parts: int, messages: int, pool: list[bytes]) -> None:
    """Stage a batch. The files of its parts are one file."""
    builder = staging.part_builder()
    for index in range(messages // PER_RESPONSE):
        one = received([pool[index % len(pool)]])
        builder.add(one.messages, one.receipts)
    staging.create(part_path(batch, 1), builder.buffers("full"))
    folder = Path(staging.location) / staging.root
    for part in range(2, parts + 1):
        (folder / part_path(batch, part)).hardlink_to(folder / part_path(batch, 1))


def run(parts: int, messages: int, pool: list[bytes], endpoint: str, folder: str) -> None:
    """Measure one size of batch and print it."""
    staging = Staging(open_store(folder), SUBSCRIPTION, uuid.uuid4().hex)
    ledger = AckLedger(60, InDoubt("in-doubt/0-"))
    with EmulatorBackend(endpoint).connect() as connection:
        stream = DriverStream(connection, StreamSettings(SUBSCRIPTION, "driver", 60, 1000, 10**6))
        running = Run(connection, staging, ledger, stream, SYSTEM.condition(), SYSTEM)
        worker = AckWorker(running)
        stage(staging, 1, parts, messages, pool)
        processor, wall = time.process_time(), time.perf_counter()
        with running.changed:
            ledger.plan(1, running.now())
            ledger.commit(1, readable_parts(staging, 1))
        assert worker.flush(600)
        processor, wall = time.process_time() - processor, time.perf_counter() - wall
        worker.end(5)
        stream.close()
    total = parts * messages
    print(
        f"{parts} x {messages:>8,}  {processor / total * 1e6:7.4f} us of processor a message  "
        f"{total / processor / 1e6:8.1f} M/s of a core  {wall:6.2f} s",
        flush=True,
    )


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
