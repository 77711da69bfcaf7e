"""A steady rate of messages for half an hour: do memory, open files, the staging area and the latency stay flat?

    python benchmarks/soak_speed.py [--seconds 1800] [--seed 1] [--rate 50000] [--payload 100 10000]
                                    [--bytes-rate 50e6] [--chart FILE]

For each payload a new query reads from `canned.py`, which sends `--rate` messages a second, or as many as make
`--bytes-rate` if that is fewer, even if they are not read. The publish time is when a message was due, so a query that
falls behind shows it as latency. Each payload has its share of the seconds. Every minute becomes a row: messages a
second, latency to foreachBatch, memory and open files by kind of process, files in the staging area.

Flat means: from SETTLED_SHARE of the run on (minute 5 of 30), the median of the last third is at most GROWTH above that
of the first third. The JVM allocates its heap at its start, so that growth is not its garbage collector's choice. At
the end each column that was not flat is reported, with exit code 1. `--chart` draws latency, memory and files.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from canned import SUBSCRIPTION  # noqa: E402
from read import CANNED, canned, percentile, session, timed  # noqa: E402

from tests.faults.processes import usages  # noqa: E402
from tests.spark.scenario import descendants  # noqa: E402

SETTLED_SHARE = 5 / 30
GROWTH = {  # the largest growth of a column: a share, and an amount that is no growth however small the column is
    "p99 ms": (0.05, 100),
    "driver JVM MB": (0.05, 10),
    "source worker MB": (0.05, 10),
    "task worker MB": (0.05, 10),
    "open files": (0.05, 5),
    "staged files": (0.05, 10),
}
_SAMPLE_SECONDS = 5.0
_ROWS = 30  # of a run
_CHARTS = {  # the charts by unit
    "ms": ("p50 ms", "p99 ms"),
    "MB": ("driver JVM MB", "source worker MB", "task worker MB"),
    "files": ("open files", "staged files"),
}
_MOST_SHOWN_MS = 3000.0  # the first batches take seconds
_KINDS = ("driver JVM", "source worker", "task worker")


def soak(payload: int, rate: float, seconds: float, seed: int) -> list[dict[str, float]]:
    """Print and return the rows of one payload."""
    server = (*CANNED, "--payload", str(payload), "--rate", str(rate), "--seed", str(seed))
    spark = session()
    rows: list[dict[str, float]] = []
    with canned(10**12, server) as endpoint, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as staging:
        options = {"subscriptionId": SUBSCRIPTION, "endpoint": endpoint, "stagingLocation": staging}
        stream = spark.readStream.format("pubsub").options(**options, maxMessagesPerTrigger=500_000)
        query, taken = timed(stream.load(), "publish_time")
        start = time.monotonic()
        print(f"\n{payload:,} B, {rate:,.0f} messages/s\n")
        for number in range(_ROWS):
            row = _row(start + (number + 1) * seconds / _ROWS, seconds / _ROWS, Path(staging), taken)
            if query.exception():
                raise RuntimeError(str(query.exception()))
            row = {"minute": round((time.monotonic() - start) / 60, 1), **row}
            if not rows:
                print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
            print("| " + " | ".join(f"{value:,}" for value in row.values()) + " |", flush=True)
            rows.append(row)
        query.stop()
    return rows


def _row(end: float, seconds: float, staging: Path, taken: list[tuple[float, int]]) -> dict[str, float]:
    """Return the row of the time until `end`: medians of the samples, and the messages since the last row."""
    samples: list[dict[str, int]] = []
    while not samples or time.monotonic() < end:
        time.sleep(max(0.0, min(_SAMPLE_SECONDS, end - time.monotonic())))
        used = usages(descendants(os.getpid()))
        memory = {f"{kind} MB": used[kind].megabytes for kind in _KINDS if kind in used}
        files = sum(used[kind].files for kind in _KINDS if kind in used)
        samples.append({**memory, "open files": files, "staged files": sum(1 for _ in staging.rglob("*"))})
    now, taken[:] = list(taken), []
    return {
        "messages/s": round(sum(count for _, count in now) / seconds),
        "p50 ms": round(percentile(now, 0.5) * 1000) if now else 0,
        "p99 ms": round(percentile(now, 0.99) * 1000) if now else 0,
        **{name: round(statistics.median(each.get(name, 0) for each in samples)) for name in list(GROWTH)[1:]},
    }


def draw(runs: Mapping[str, Sequence[dict[str, float]]], file: Path) -> None:
    """Draw the columns of each run over its minutes."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(_CHARTS), len(runs), squeeze=False, sharex="col", sharey="row", figsize=(9, 6))
    for column, (name, rows) in enumerate(runs.items()):
        axes[0][column].set_title(name)
        axes[-1][column].set_xlabel("minute")
        for axis, (unit, drawn) in zip((line[column] for line in axes), _CHARTS.items(), strict=True):
            for each in drawn:
                axis.plot([row["minute"] for row in rows], [row[each] for row in rows], label=each)
            axis.set_ylim(bottom=0, top=_MOST_SHOWN_MS if unit == "ms" else None)
            axis.set_ylabel(unit)
            axis.grid(alpha=0.3)
    for line in axes:
        line[-1].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file)


def growths(rows: Sequence[dict[str, float]], rate: float) -> list[str]:
    """Return an error for each column that was not flat from SETTLED_SHARE on, and for a rate that was not kept."""
    settled = [row for row in rows[int(len(rows) * SETTLED_SHARE) :] if row["messages/s"]]  # batches may last longer
    if not settled:
        return ["no message was read"]
    third = max(1, len(settled) // 3)
    said = []
    for name, (share, amount) in GROWTH.items():
        first, last = (statistics.median(row[name] for row in part) for part in (settled[:third], settled[-third:]))
        if last > first + max(first * share, amount):
            said.append(f"{name} grew from {first:,.0f} to {last:,.0f}")
    speed = statistics.mean(row["messages/s"] for row in rows[int(len(rows) * SETTLED_SHARE) :])
    if speed < 0.97 * rate:
        said.append(f"{speed:,.0f} messages/s were read of {rate:,.0f} that were sent")
    return said


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=50_000)
    parser.add_argument("--payload", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--bytes-rate", type=float, default=50e6)
    parser.add_argument("--chart", type=Path)
    given = parser.parse_args()
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        "--driver-memory 1g --conf 'spark.driver.extraJavaOptions=-Xms1g -XX:+AlwaysPreTouch' pyspark-shell"
    )
    said = []
    runs = {}
    for size in given.payload:
        rate = min(given.rate, given.bytes_rate / size)
        seen = soak(size, rate, given.seconds / len(given.payload), given.seed)
        runs[f"{rate:,.0f} messages/s of {size:,} B"] = seen
        said += [f"{size:,} B: {each}" for each in growths(seen, rate)]
    if given.chart is not None:
        draw(runs, given.chart)
    print("\n" + ("\n".join(said) or "all flat"))
    sys.exit(1 if said else 0)
