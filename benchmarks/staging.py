"""The cost of durable staged parts: parts written to a local folder with fsync and without it.

    python benchmarks/staging.py [--folder FOLDER] [--seconds 5]

Parts of 100 messages and parts of 20 MB are written in turn with and without fsync, so that both meet the same disk.
They are deleted as a driver does after the acks. Printed are the medians and the ratio, for the driver (the first file
of a batch, which makes its folder) and for a task (another file of the batch).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from canned import PER_RESPONSE, SUBSCRIPTION, responses  # noqa: E402

from pubsub_spark.codec.envelope import received  # noqa: E402
from pubsub_spark.read.staging.area import Staging, part_path  # noqa: E402
from pubsub_spark.read.staging.part import Buffer  # noqa: E402
from pubsub_spark.read.staging.store import open_store  # noqa: E402

SIZES = {"100 messages": (1, 100), "20 MB": (20_000_000, 10**9)}  # bytes at least, messages of a response at most


def part(staging: Staging, size: int, messages: int) -> list[Buffer]:
    """Return the buffers of a part."""
    builder, pool = staging.part_builder(), [received([response]) for response in responses(PER_RESPONSE)]
    while True:
        for one in pool:
            few = one.slice(0, min(messages, one.messages.num_rows))
            builder.add(few.messages, few.receipts)
            size -= few.messages.nbytes + few.receipts.nbytes
            if size <= 0:
                return builder.buffers("full")


def seconds(staging: Staging, path: str, buffers: list[Buffer], is_synced: bool) -> float:
    """Return the time that a part takes to be staged."""
    with mock.patch("os.fsync", os.fsync if is_synced else lambda _: None):
        began = time.perf_counter()
        assert staging.create(path, buffers)
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="on the disk to measure; the default is the temporary folder")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        staging = Staging(open_store(folder), SUBSCRIPTION, "stream")
        staging.write_token()
        for name, (size, messages) in SIZES.items():
            buffers = part(staging, size, messages)
            taken: dict[tuple[int, bool], list[float]] = {(n, sync): [] for n in (0, 1) for sync in (True, False)}
            end, batch = time.perf_counter() + arguments.seconds, 0
            while time.perf_counter() < end:
                for is_synced in (True, False):
                    batch += 1
                    for number in (0, 1):
                        spent = seconds(staging, part_path(batch, number), buffers, is_synced)
                        taken[number, is_synced].append(spent)
                    staging.delete(f"{batch}/")
            for number, who in enumerate(("driver", "task")):
                synced, plain = (statistics.median(taken[number, sync]) * 1e3 for sync in (True, False))
                print(
                    f"{name} ({sum(map(len, buffers)) / 1e6:.2f} MB, {len(buffers)} buffers), {who}: {synced:.2f} ms "
                    f"with fsync, {plain:.2f} ms without, ratio {synced / plain:.1f} ({len(taken[0, True])} parts)"
                )


if __name__ == "__main__":
    main()
