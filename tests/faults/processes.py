"""The use of threads, open files and memory by a query's processes, by kind of process, and its limits.

    usages(pids)                 of the running processes, the most that one of each kind uses
    excesses(usages, before)     an error for each use above MOST, or grown by more than GROWTH since

Reads `/proc`, so it works on Linux alone. The two tables are measurements, plus room. A leak in each round passes
GROWTH perhaps, but not MOST.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.spark.scenario import command

# A part of the command line of a process of each kind.
_COMMANDS = {
    "source worker": "python_streaming_source_runner",
    "task worker": "pyspark.daemon",
    "executor JVM": "CoarseGrainedExecutorBackend",
    "driver JVM": "org.apache.spark.deploy.SparkSubmit",
}


class Usage(NamedTuple):
    """The number of processes of a kind, and the most threads, open files and memory that one of them has."""

    processes: int = 0
    threads: int = 0
    files: int = 0
    megabytes: int = 0

    def __or__(self, other: Usage) -> Usage:
        """Return the larger of each."""
        return Usage(*map(max, self, other))


MOST = {
    "source worker": Usage(1, 30, 40, 500),
    "task worker": Usage(16, 30, 40, 500),
    "executor JVM": Usage(3, 200, 700, 1500),
    "driver JVM": Usage(1, 450, 1000, 2000),
}
# Of a kind, from one round to the next of the same start. A JVM grows for some minutes: its code is compiled, and
# Spark's pools of threads fill up to their bounds, which MOST has.
GROWTH = {
    "source worker": Usage(0, 8, 12, 150),
    "task worker": Usage(12, 12, 16, 150),
    "executor JVM": Usage(2, 120, 200, 600),
    "driver JVM": Usage(0, 250, 300, 800),
}


def usages(pids: Iterable[int]) -> dict[str, Usage]:
    """Return the use of the processes with these ids, by kind. Those of no kind, and ended ones, are left out."""
    found: dict[str, Usage] = {}
    for pid in pids:
        line = command(pid)
        kind = next((kind for kind, part in _COMMANDS.items() if part in line), None)
        used = _usage(pid)
        if kind is not None and used is not None:
            before = found.get(kind, Usage())
            found[kind] = (before | used)._replace(processes=before.processes + 1)
    return found


def excesses(usages: Mapping[str, Usage], before: Mapping[str, Usage]) -> list[str]:
    """Return a sentence for each number that is more than a query needs, or has grown since `before`."""
    return [
        f"{kind}: {now} {what}, after {then}, and {bound} at the most"
        for kind, used in usages.items()
        for what, now, then, most, growth in zip(
            Usage._fields, used, before.get(kind, used), MOST[kind], GROWTH[kind], strict=True
        )
        if now > (bound := min(most, then + growth))
    ]


def _usage(pid: int) -> Usage | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        files = len([*Path(f"/proc/{pid}/fd").iterdir()])
    except OSError:
        return None
    status = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in status:  # it has ended, and its exit code has not been read
        return None
    return Usage(1, int(status["Threads"]), files, int(status["VmRSS"].split()[0]) // 1024)
