"""A cluster of 1, 2 and 4 executors on this machine: are tasks spread, and does anything of a batch grow but the tasks?

    python benchmarks/cluster.py [--messages 4000000] [--executors 1 2 4]

Each number of executors is a new Spark with `local-cluster[N,1,1024]`, which reads a backlog of `canned.py` in batches
of 200,000 messages with the default number of tasks. All of it shares this machine's cores, so messages/s do not
predict those of a real cluster. The driver's cost of a batch does: the medians of the source's calls and of the
trigger, the processor time of the source's process, and the files of a batch in the staging area.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from canned import SUBSCRIPTION  # noqa: E402
from read import canned, noop, session  # noqa: E402

from tests.faults.processes import command  # noqa: E402
from tests.spark.scenario import descendants  # noqa: E402

_BATCH = 200_000
_WARM_BATCHES = 5


def run(executors: int, messages: int) -> dict[str, float]:
    """Return the results of one number of executors."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--executor-memory 1g pyspark-shell"
    spark = session(master=f"local-cluster[{executors},1,1024]")
    with canned(10**9) as endpoint, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as staging:
        options = {
            "subscriptionId": SUBSCRIPTION,
            "endpoint": endpoint,
            "stagingLocation": staging,
            "maxMessagesPerTrigger": _BATCH,
            "maxBytesPerTrigger": "1g",
        }
        query = noop(spark.readStream.format("pubsub"), options)
        files: list[int] = []
        begun, processor = 0, 0.0
        while True:
            progress = [each for each in query.recentProgress if each["numInputRows"]]
            if query.exception():
                raise RuntimeError(str(query.exception()))
            if not begun and len(progress) >= _WARM_BATCHES:
                begun, processor = len(progress), _processor_seconds("python_streaming_source_runner")
                before = _executors()
            if begun and sum(each["numInputRows"] for each in progress[begun:]) >= messages:
                break
            files.append(max((len(list(each.iterdir())) for each in _batches(Path(staging))), default=0))
            time.sleep(0.5)
        measured = progress[begun:]
        processor = _processor_seconds("python_streaming_source_runner") - processor
        busy = sum(seconds > before.get(pid, 0.0) for pid, seconds in _executors().items())
        query.stop()
    durations = [each["durationMs"] for each in measured]
    return {
        "executors": executors,
        "executors that pulled": busy,
        "trigger ms": statistics.median(each["triggerExecution"] for each in durations),
        "source's calls ms": statistics.median(each["latestOffset"] + each.get("getBatch", 0) for each in durations),
        "source's processor ms a batch": round(1000 * processor / len(measured)),
        "files of a batch": max(files),
    }


def _batches(staging: Path) -> list[Path]:
    return [each for each in staging.rglob("*") if each.is_dir() and each.name.isdigit()]


def _processor_seconds(name: str) -> float:
    """Return the processor time of the processes below this one that have `name` in their command."""
    return sum(_seconds(pid) for pid in descendants(os.getpid()) if name in command(pid))


def _executors() -> dict[int, float]:
    """Return the processor time of the Python workers below each executor, by the executor's process."""
    found = {}
    for pid in descendants(os.getpid()):
        if "CoarseGrainedExecutorBackend" in command(pid):
            found[pid] = sum(map(_seconds, descendants(pid)))
    return found


def _seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=4_000_000)
    parser.add_argument("--executors", type=int, nargs="*", default=[1, 2, 4])
    given = parser.parse_args()
    if len(given.executors) == 1:
        print(json.dumps(run(given.executors[0], given.messages)))
        return
    for number in given.executors:
        again = [sys.executable, __file__, "--messages", str(given.messages), "--executors", str(number)]
        row = json.loads(subprocess.run(again, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
        if number == given.executors[0]:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        print("| " + " | ".join(f"{value:,}" for value in row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
