"""What `idAttribute` costs the driver, minute by minute, while ids become three million and are forgotten again.

    python benchmarks/duplicates.py [--rate 5000] [--minutes 15]

A simulated clock: each second a batch of `rate` messages with UUIDs as ids, one in fifty of which was sent before. For
each the calls of a session are made, on a staging area on local disk: drop what is recent, add what is committed, save.
Printed per minute: the processor time of these calls as a share of a core (100 % is a second of it a second), the ids,
and the files and megabytes that hold them. Then what a task pays: a new process reads all files, a reused one those of
the last batch. What the calls have in common with a query without the option (parts, acks) is not in it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

import pyarrow as pa

sys.path[:0] = [str(Path(__file__).parent.parent)]

from pubsub_spark.codec.envelope import RECEIPTS, Received, received  # noqa: E402
from pubsub_spark.read import partition_reader  # noqa: E402
from pubsub_spark.read.deduplication import Deduplication, exclude  # noqa: E402
from pubsub_spark.read.leases import Leases  # noqa: E402
from pubsub_spark.read.recent_ids import digests, is_in  # noqa: E402
from pubsub_spark.read.staging import Staging  # noqa: E402
from tests.unit.read.service import response  # noqa: E402

SUBSCRIPTION = "projects/bench/subscriptions/orders"
_REPEATED = 0.02


def arrival(rate: int, sent: list[str], chance: random.Random) -> Received:
    """Messages with new ids, and a few that were sent before."""
    ids = [
        chance.choice(sent) if sent and chance.random() < _REPEATED else str(UUID(int=chance.getrandbits(128)))
        for _ in range(rate)
    ]
    sent[:] = ids if len(sent) > 1_000_000 else sent + ids
    messages = received([response(["x"] * rate)]).messages
    ack_ids = pa.array([f"ack-{n}" for n in range(rate)])
    return Received(messages, pa.RecordBatch.from_arrays([ack_ids, pa.array(ids)], schema=RECEIPTS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--minutes", type=int, default=15)
    arguments = parser.parse_args()
    chance, sent = random.Random(1), []
    with tempfile.TemporaryDirectory() as folder:
        staging = Staging(folder, SUBSCRIPTION, "stream")
        staging.write_token()
        leases, now = Leases(), 0.0
        deduplication = Deduplication(staging, leases, lambda: now, every_batch=True)
        for minute in range(1, arguments.minutes + 1):
            spent = dropped = 0.0
            for _ in range(60):
                now += 1
                batch, taken = int(now), arrival(arguments.rate, sent, chance)
                began = time.process_time()
                kept = exclude(taken, deduplication.ids_to_exclude(now))
                spent += time.process_time() - began
                dropped += taken.messages.num_rows - kept.messages.num_rows
                builder = staging.part_builder()
                builder.add(kept.messages, taken.receipts)
                staging.create(f"{batch}/part-0", builder.buffers("driver"))
                with leases.lock:
                    leases.plan(batch, now)
                began = time.process_time()
                deduplication.add_committed(batch, staging.parts(batch))
                with leases.lock:
                    leases.commit(batch)
                    leases.record_acknowledged(batch)
                deduplication.save()
                spent += time.process_time() - began
                staging.delete(f"{batch}/")
            files = list((Path(folder) / staging.root / "recent").iterdir())
            volume = sum(path.stat().st_size for path in files) / 1e6
            ids = sum(run.count for run in deduplication._recent.runs)
            print(
                f"minute {minute:2}: {spent / 60:6.2%} of a core, {ids:9,} ids in {len(files):3} files of {volume:.1f} "
                f"MB, {dropped:5,.0f} dropped"
            )
        paths = deduplication.write()
        taken = arrival(arguments.rate, sent, chance)
        for what in ("a new process", "a reused one"):
            began = time.process_time()
            runs = partition_reader._excluded_ids(staging, paths)
            read = time.process_time() - began
            began = time.process_time()
            found = is_in(digests(taken.receipts.column("deduplication_id")), runs)
            looked = time.process_time() - began
            print(f"a task, {what}: reads for {read * 1e3:.1f} ms, finds {len(found):,} ids in {looked * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
