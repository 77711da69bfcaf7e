"""Benchmarks of the read path, each figure as a ratio taken in one run.

    python benchmarks/read.py throughput [--messages N] [--runs N]    against a source that yields ready-made batches
    python benchmarks/read.py client [--messages N]        against google-cloud-pubsub's SubscriberClient and callback
    python benchmarks/read.py latency [--seconds N]        to foreachBatch at three rates, against Spark's own floor
    python benchmarks/read.py memory                       peak memory of a task: two triggers, 1 M and 10 M messages
    python benchmarks/read.py linear                       cost as messages and partitions grow
    python benchmarks/read.py responses [--runs N]         that fit the flow control, do not, or are too many
    python benchmarks/read.py ramp [--runs N]              of streams: the first batches of a backlog, 10 MB/s a stream
    python benchmarks/read.py streams                      10 MB/s a stream and a delay of 50 ms, against neither

Throughput is measured against `canned.py` in a process of its own, with `local[2]`, 100-byte payloads, 2 attributes, a
`noop` sink and staging on local disk, from the start of the first batch with rows to the end of the last.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from canned import PER_RESPONSE, SUBSCRIPTION  # noqa: E402
from ready_made import BATCH, ReadyMade  # noqa: E402

from pubsub_spark.source import PubSubDataSource  # noqa: E402

_WARM_BATCHES = 10  # before latency is measured: Spark's and Python's first batches take seconds
CANNED = (sys.executable, str(Path(__file__).parent / "canned.py"))


def session(cores: int = 2, master: str = "") -> SparkSession:
    """Return a Spark session on this machine whose workers are this Python with this tree."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    spark = (
        SparkSession.builder.master(master or f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    spark.dataSource.register(PubSubDataSource)
    spark.dataSource.register(ReadyMade)
    return spark


@contextlib.contextmanager
def canned(messages: int, command: Sequence[str] = CANNED) -> Iterator[str]:
    """Yield the endpoint of the canned server, or of another command's server, in a process of its own."""
    server = subprocess.Popen(
        [*command, str(messages)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None and server.stdin is not None
    try:
        yield f"127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.stdin.close()
        server.wait(10)


def drained(query: Any, messages: int, timeout: float = 600, skipped: int = 0) -> float:
    """Wait until a query has read its rows. Return messages/s from the start of its first batch with rows to the last.

    skipped: batches with rows before those that count.
    """
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if query.exception():
            raise RuntimeError(str(query.exception()))
        busy = [p for p in query.recentProgress if p["numInputRows"]][skipped:]
        if sum(p["numInputRows"] for p in busy) >= messages:
            break
        time.sleep(1)  # each look takes the JVM's time from the query
    query.stop()
    first = datetime.fromisoformat(busy[0]["timestamp"])
    last = datetime.fromisoformat(busy[-1]["timestamp"])
    seconds = (last - first).total_seconds() + busy[-1]["durationMs"]["triggerExecution"] / 1000
    return sum(p["numInputRows"] for p in busy) / seconds


def noop(stream: Any, options: Mapping[str, Any]) -> Any:
    """Start a query into Spark's `noop` sink."""
    checkpoint = tempfile.mkdtemp()
    return stream.options(**options).load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()


def read_canned(
    spark: SparkSession,
    messages: int,
    partitions: int = 2,
    server: Sequence[str] = CANNED,
    backlog: int | None = None,
    skipped: int = 0,
    **options: Any,
) -> float:
    """Return messages/s of the connector. backlog: the server's messages, if more than `messages`. skipped: batches."""
    with (
        canned(backlog or messages, server) as endpoint,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as staging,
    ):
        settings = {
            "subscriptionId": SUBSCRIPTION,
            "endpoint": endpoint,
            "stagingLocation": staging,
            "numFetchPartitions": partitions,
            "maxMessagesPerTrigger": BATCH,
            "maxBytesPerTrigger": "1g",
            "maxFetchPeriod": "10s",
        } | options
        return drained(noop(spark.readStream.format("pubsub"), settings), messages, skipped=skipped)


def throughput(messages: int, runs: int) -> None:
    """Print messages/s against ready-made batches, by the run, and the median of the ratios.

    Before the first run the JVM has compiled the code that 20 M messages need. Both have two batches more than are
    measured: the end of a backlog, where a pull waits half a second for more, is no part of it. The server's share is
    of the machine's processor time, in a run.
    """
    spark = session()
    backlog = messages + 2 * BATCH
    ratios = []
    read_canned(spark, 2 * messages)
    print("| run | ready-made batches | readStream | of it | server's share |\n|---|---|---|---|---|")
    for number in range(1, runs + 1):
        ready = noop(spark.readStream.format("ready_made"), {"messages": backlog, "partitions": 2})
        floor = drained(ready, messages)
        ours, share = _with_server_share(lambda: read_canned(spark, messages, backlog=backlog))
        ratios.append(ours / floor)
        print(f"| {number} | {floor:,.0f}/s | {ours:,.0f}/s | {ratios[-1]:.2f} | {share:.2f} |", flush=True)
    print(f"median of {runs}: {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


def _with_server_share(run: Callable[[], float]) -> tuple[float, float]:
    """Return the result of `run`, and the share of the server that it starts and ends in all processor time."""
    before, served = _processor_seconds(), resource.getrusage(resource.RUSAGE_CHILDREN)
    speed = run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    server = after.ru_utime + after.ru_stime - served.ru_utime - served.ru_stime
    return speed, server / (_processor_seconds() - before)


def _processor_seconds() -> float:
    """Return the time that the machine's processors have been busy, including processes that ended meanwhile."""
    user, nice, system, _idle, _waiting, *interrupts = Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


def _callback(messages: int) -> float:
    """Return messages/s of a SubscriberClient."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import pubsub_v1

    with canned(messages) as endpoint:
        os.environ["PUBSUB_EMULATOR_HOST"] = endpoint
        subscriber = pubsub_v1.SubscriberClient(credentials=AnonymousCredentials())
        del os.environ["PUBSUB_EMULATOR_HOST"]
        seen, done, start = 0, threading.Event(), 0.0

        def callback(message: Any) -> None:
            nonlocal seen, start
            start = start or time.monotonic()
            message.ack()
            seen += 1
            if seen >= messages:
                done.set()

        flow = pubsub_v1.types.FlowControl(max_messages=messages * 2, max_bytes=1 << 40)
        future = subscriber.subscribe(SUBSCRIPTION, callback, flow_control=flow)
        done.wait(300)
        speed = seen / (time.monotonic() - start)
        future.cancel()
    return speed


def client(messages: int) -> None:
    """Print messages/s against google-cloud-pubsub's SubscriberClient with a callback, the better of two."""
    spark = session()
    theirs = ours = 0.0
    for _ in range(2):
        theirs = max(theirs, _callback(min(messages, 200_000) // PER_RESPONSE * PER_RESPONSE))
        ours = max(ours, read_canned(spark, messages))
    print(f"SubscriberClient, callback {theirs:12,.0f} messages/s")
    print(f"readStream                 {ours:12,.0f} messages/s  {ours / theirs:.0f}x")


def latency(seconds: int) -> None:
    """Print the latency of three rates from a steady server, each next to a rate source's. Each lasts `seconds`.

    `driver's calls` are `latestOffset`, which waits for messages to join the first, and `getBatch`, which plans. `rest`
    is Spark's logs, planning and sink, and the tasks with their pulls.
    """
    spark = session()
    head = "| messages/s | source | rows | p50 ms | p99 ms | trigger ms | driver's calls, ms | rest, ms |"
    print(head + "\n" + "|---" * 8 + "|")
    for rate in (10, 1000, 20_000):
        floor = spark.readStream.format("rate").option("rowsPerSecond", rate)
        _latency("rate source", rate, floor.load(), "timestamp", seconds)
        steady = (*CANNED, "--rate", str(rate))
        with canned(10**12, steady) as endpoint, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as staging:
            options = {"subscriptionId": SUBSCRIPTION, "endpoint": endpoint, "stagingLocation": staging}
            ours = spark.readStream.format("pubsub").options(**options)
            _latency("pubsub", rate, ours.load(), "publish_time", seconds)


def _latency(name: str, rate: int, frame: Any, column: str, seconds: int) -> None:
    query, taken = timed(frame, column)
    while query.isActive and sum(p["numInputRows"] > 0 for p in query.recentProgress) < _WARM_BATCHES:
        time.sleep(0.5)
    taken.clear()
    first = len(query.recentProgress)
    time.sleep(seconds)
    durations = [p["durationMs"] for p in query.recentProgress[first:] if p["numInputRows"]]
    query.stop()
    if query.exception() or not taken:
        raise RuntimeError(str(query.exception() or f"no row of {name} in {seconds} s"))
    p50, p99 = percentile(taken, 0.5), percentile(taken, 0.99)
    trigger = statistics.median(each["triggerExecution"] for each in durations)
    ours = statistics.median(each.get("latestOffset", 0) + each.get("getBatch", 0) for each in durations)
    print(
        f"| {rate:,} | {name} | {sum(rows for _, rows in taken):,} | {p50 * 1000:.0f} | {p99 * 1000:.0f}"
        f" | {trigger:.0f} | {ours:.0f} | {trigger - ours:.0f} |",
        flush=True,
    )


def percentile(taken: Sequence[tuple[float, int]], share: float) -> float:
    """Return the latency that `share` of the rows have at most. taken: latencies, and the rows that have each."""
    rest = share * sum(rows for _, rows in taken)
    for seconds, rows in sorted(taken):
        rest -= rows
        if rest <= 0:
            return seconds
    return max(taken)[0]


def timed(frame: Any, column: str, **options: str) -> tuple[Any, list[tuple[float, int]]]:
    """Return a query into foreachBatch, and a growing list of pairs: seconds from `column` to there, and their rows."""
    taken: list[tuple[float, int]] = []

    def note(batch: Any, _number: int) -> None:
        counts = pc.value_counts(batch.select(column).toArrow().column(0).cast(pa.int64()))  # microseconds
        now = time.time()
        taken.extend((now - each["values"] / 1e6, each["counts"]) for each in counts.to_pylist())

    checkpoint = tempfile.mkdtemp()
    writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint)
    return writer.options(**options).start(), taken


def memory() -> None:
    """Print the peak memory of a Python worker (VmHWM) for two budgets and two backlogs, each in a new Spark."""
    for budget in (20_000, 200_000):
        for messages in (1_000_000, 10_000_000):
            code = (
                f"import read; s = read.session(); read.read_canned(s, {messages}, maxMessagesPerTrigger={budget});"
                " print(read.peak_of_workers())"
            )
            peak = subprocess.run(
                [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
            ).stdout.split()[-1]
            print(f"{budget:9,} a trigger, {messages:12,} messages  {int(peak) / 1024:6.0f} MiB")


def peak_of_workers() -> int:
    """Return the VmHWM in KiB of the largest living PySpark worker below this process."""
    mine = {os.getpid()}
    peaks = [0]
    for entry in sorted(int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()):
        with contextlib.suppress(OSError):
            status = dict(line.split(":", 1) for line in Path(f"/proc/{entry}/status").read_text().splitlines())
            if int(status["PPid"]) in mine:
                mine.add(entry)
                if Path(f"/proc/{entry}/cmdline").read_bytes().endswith(b"\0pyspark.worker\0"):
                    peaks.append(int(status["VmHWM"].split()[0]))
    return max(peaks)


def linear() -> None:
    """Print seconds per million messages, as messages and as partitions grow."""
    spark = session()
    read_canned(spark, 1_000_000)
    print("| messages | partitions | s per 1 M |\n|---|---|---|")
    for messages, partitions in ((1, 2), (2, 2), (4, 2), (8, 2), (4, 1), (4, 4), (4, 8)):
        speed = read_canned(spark, messages * 1_000_000, partitions)
        print(f"| {messages} M | {partitions} | {1e6 / speed:.2f} |")


def streams() -> None:
    """Print messages/s with the service's limit of 10 MB/s a stream and 50 ms of delay, against neither, by payload.

    Each run begins with one stream a task. The batches while their number grows are not measured. `its server` is
    the server's share of all processor time: with the limit it sends on dozens of streams, each in its own pace.
    """
    spark = session()
    read_canned(spark, 2_000_000)
    print("| payload | no limit | its server | limit, 50 ms | its server | of it | one stream a task | of it |")
    print("|---" * 8 + "|")
    for payload, messages in ((100, 10_000_000), (1000, 2_000_000), (10_000, 200_000), (1_000_000, 2000)):
        plain = (*CANNED, "--payload", str(payload))
        limited = (*plain, "--bytes-per-second", "10e6", "--delay", "0.05")

        def speed(server: Sequence[str], share: float = 1, messages: int = messages, **options: Any) -> float:
            most = int(messages * share)
            return read_canned(spark, most, server=server, backlog=10**9, skipped=7, maxFetchPeriod="2s", **options)

        free, server = _with_server_share(partial(speed, plain))
        many, limited_server = _with_server_share(partial(speed, limited))
        one = speed(limited, 0.2, streamsPerPartition=1)
        print(
            f"| {payload:,} B | {free:,.0f}/s | {server:.2f} | {many:,.0f}/s | {limited_server:.2f}"
            f" | {many / free:.2f} | {one:,.0f}/s | {one / free:.2f} |",
            flush=True,
        )


def responses(messages: int, runs: int) -> None:
    """Print messages/s from servers whose responses fit the flow control, do not, or overshoot it, of ready-made ones.

    The shares are of 499,800 messages, a response has 200: of a service that does not cut it, the last never comes.
    """
    spark = session()
    read_canned(spark, 2 * messages)
    print("| run | ready-made | as many as fit | one fewer | one more |\n|---|---|---|---|---|")
    for number in range(1, runs + 1):
        ready = noop(spark.readStream.format("ready_made"), {"messages": messages + 2 * BATCH, "partitions": 2})
        floor = drained(ready, messages)
        ratios = []
        for fit in (0, -1, 1):
            server = (*CANNED, "--per-response", "200", "--fit", str(fit))
            most = BATCH - 400 + 1000  # the driver's part has a thousand of it
            options = {"backlog": messages + 3 * BATCH, "skipped": 1, "maxMessagesPerTrigger": most}
            ours = read_canned(spark, messages, server=server, **options)
            ratios.append(f"{ours:,.0f}/s ({ours / floor:.2f})")
        print(f"| {number} | {floor:,.0f}/s | " + " | ".join(ratios) + " |", flush=True)


def ramp(runs: int) -> None:
    """Print messages/s of the first five batches of 240,000 messages of 1 KB, with 10 MB/s a stream and without."""
    spark = session()
    read_canned(spark, 2_000_000)
    print("| run | no limit | limit, 50 ms | of it |\n|---|---|---|---|")
    plain = (*CANNED, "--payload", "1000")
    limited = (*plain, "--bytes-per-second", "10e6", "--delay", "0.05")
    for number in range(1, runs + 1):
        free, many = (
            read_canned(spark, 1_200_000, server=server, backlog=10**8, maxMessagesPerTrigger=240_000)
            for server in (plain, limited)
        )
        print(f"| {number} | {free:,.0f}/s | {many:,.0f}/s | {many / free:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("throughput", "client", "latency", "memory", "linear", "responses", "ramp", "streams")
    parser.add_argument("what", choices=names)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    match given.what:
        case "throughput":
            throughput(given.messages, given.runs)
        case "client":
            client(given.messages)
        case "latency":
            latency(given.seconds)
        case "responses":
            responses(given.messages, given.runs)
        case "ramp":
            ramp(given.runs)
        case what:
            globals()[what]()
