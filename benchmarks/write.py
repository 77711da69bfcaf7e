"""The speed of the write path, each figure as a ratio taken in one run.

    python benchmarks/write.py throughput [--messages N]   df.write, without and with 1000 ordering keys, against a sink
                                                           that counts Arrow batches, and against PublisherClient
    python benchmarks/write.py keys [--messages N]         with more and more ordering keys, and the time of gRPC alone
    python benchmarks/write.py payloads                    large payloads, against bytes that only cross a socket
    python benchmarks/write.py memory                      peak memory of a task as its rows grow

Everything publishes to `write_server.py`, which answers at once, in a process of its own on the same cores. `local[2]`,
100-byte payloads, 2 attributes, the default options, rows cached by Spark so that making them is not measured. A figure
is the best of three after a run that does not count. A run fails unless there were as many ids as messages.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.pubsub_v1 import types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from pubsub_spark.backend import EmulatorBackend  # noqa: E402
from pubsub_spark.options import WriteOptions  # noqa: E402
from pubsub_spark.source import PubSubDataSource  # noqa: E402
from pubsub_spark.write import WriteSummary  # noqa: E402
from pubsub_spark.write.column_mapping import ColumnMapping  # noqa: E402
from pubsub_spark.write.data_writer import PartitionId, write_partition  # noqa: E402
from pubsub_spark.write.plan import WritePlan  # noqa: E402

TOPIC = "projects/bench/topics/write"
REPETITIONS = 3
KEYS = 1000
MANY_KEYS = (1000, 10_000, 100_000, 500_000)
PAYLOADS = (100, 10_000, 1_000_000)  # bytes


@contextmanager
def server() -> Iterator[str]:
    """Yield the address of a server that answers at once."""
    command = [sys.executable, str(Path(__file__).parent / "write_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


@dataclass
class Counted(WriterCommitMessage):
    """The rows of a task."""

    rows: int


class CountingWriter(DataSourceArrowWriter):
    """Accept Arrow batches and do nothing: the time of Spark itself."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(len(batch) for batch in iterator))


class CountingSink(DataSource):
    """`format("counting")`."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: Any, overwrite: bool) -> CountingWriter:  # noqa: ARG002
        return CountingWriter()


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
    made = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = made.config("spark.log.level", "ERROR").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.dataSource.register(PubSubDataSource)
    spark.dataSource.register(CountingSink)
    return spark


def best(runs: Mapping[str, Callable[[], int]]) -> dict[str, float]:
    """Return messages per second of the best of some runs. They take turns, so a busy minute affects all of them."""
    rates: dict[str, float] = {}
    for lap in range(REPETITIONS + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            rate = run() / (time.perf_counter() - start)
            rates[name] = max(rate, rates.get(name, 0.0) if lap > 1 else 0.0)
    return rates


def throughput(messages: int) -> None:
    """Print the table of rates and ratios."""
    spark = session()
    rows, keyed = cached(made(spark, messages)), cached(made(spark, messages, KEYS))
    with server() as address:
        rates = best(
            {
                "client": lambda: publisher_client(address, messages // 20),
                "counting": lambda: counted(rows, messages),
                "unordered": lambda: written(spark, rows, address, messages),
                "ordered": lambda: written(spark, keyed, address, messages),
            }
        )
    spark.stop()
    client, counting, unordered, ordered = rates.values()
    print(f"{messages:,} messages of 100 bytes and 2 attributes, local[2], {os.cpu_count()} cores\n")
    print(f"{'PublisherClient, batches of 1000':36}{client:12,.0f}/s")
    print(f"{'a sink that counts Arrow batches':36}{counting:12,.0f}/s")
    print(f"{'df.write':36}{unordered:12,.0f}/s{unordered / client:8.1f} x PublisherClient")
    print(f"{'':36}{'':14}{unordered / counting:8.2f} x counting")
    print(f"{f'df.write, {KEYS} ordering keys':36}{ordered:12,.0f}/s{ordered / unordered:8.2f} x unordered")


def keys(messages: int) -> None:
    """Print the table of rates by the number of ordering keys: a request has messages of one key only."""
    spark = session()
    print(f"{'ordering keys':>16}{'messages/s':>14}{'of unordered':>14}{'a request':>12}{'requests/s':>12}")
    with server() as address:
        written(spark, made(spark, messages // 10), address, messages // 10)
        unordered = 0.0
        for count in (0, *MANY_KEYS):
            rows = cached(made(spark, messages, count))
            summary = WriteSummary(spark)
            start = time.perf_counter()
            written(spark, rows, address, messages, summary)
            seconds = time.perf_counter() - start
            rows.unpersist()
            unordered = unordered or messages / seconds
            requests = summary.value.requests
            ratio = messages / seconds / unordered
            print(f"{count:16,}{messages / seconds:14,.0f}{ratio:14.3f}{messages / requests:12.1f}", end="")
            print(f"{requests / seconds:12,.0f}", flush=True)
        spark.stop()
        print(f"\ngRPC alone, requests of one message, one process: {requests_of_grpc(address):,.0f} requests/s")


def requests_of_grpc(address: str, requests: int = 50_000) -> float:
    """Return requests/s of calls with a ready-made body, eight in flight, and nothing done with their answers."""
    body = types.PublishRequest.pb()(topic=TOPIC, messages=[types.PubsubMessage.pb()(data=b"x" * 100)])
    data, slots, ended = body.SerializeToString(), threading.Semaphore(8), threading.Semaphore(0)

    def on_end(_: Any) -> None:
        slots.release()
        ended.release()

    with EmulatorBackend(address).connect() as connection:
        start = time.perf_counter()
        for _ in range(requests):
            slots.acquire()
            connection.publish(TOPIC, data, 60).add_done_callback(on_end)
        for _ in range(requests):
            ended.acquire()
        return requests / (time.perf_counter() - start)


def payloads() -> None:
    """Print the table of MB/s by the size of the payload, and the MB/s of two senders through a socket."""
    spark = session()
    total = 2 * 10**9
    sockets = max(megabytes_through_sockets(total) for _ in range(REPETITIONS))
    print(f"two processes that send bytes to a third, which drops them: {sockets:,.0f} MB/s\n")
    print(f"{'payload':>12}{'df.write, MB/s':>16}{'of the socket':>16}{'gRPC, MB/s':>14}{'of gRPC':>10}")
    with server() as address:
        for size in PAYLOADS:
            messages = min(2_000_000, total // 4 // size)
            rows = cached(spark.range(0, messages, 1, 2).selectExpr(f"cast(repeat('x', {size}) AS binary) data"))
            rates = best(
                {
                    "write": lambda rows=rows, messages=messages: written(spark, rows, address, messages),  # type: ignore[misc]
                    "grpc": lambda size=size, messages=messages: ready_made(address, size, messages),  # type: ignore[misc]
                }
            )
            rows.unpersist()
            write, grpc = (rate * size / 1e6 for rate in rates.values())
            print(f"{size:12,}{write:16,.0f}{write / sockets:16.2f}{grpc:14,.0f}{write / grpc:10.2f}", flush=True)
    spark.stop()


def ready_made(address: str, size: int, messages: int) -> int:
    """Run two processes that send ready-made requests by gRPC and do nothing else."""
    command = [sys.executable, __file__, "ready-made", "--address", address, "--size", str(size)]
    senders = [subprocess.Popen([*command, "--messages", str(messages // 2)]) for _ in range(2)]
    assert not any(sender.wait() for sender in senders)
    return messages


def send_ready_made(address: str, size: int, messages: int) -> None:
    """Send the messages in requests as large as the options let ours be, four in flight."""
    of_request = max(1, min(1000, WriteOptions.parse({"topicId": TOPIC}, {}).max_batch_bytes // (size + 10)))
    many = [types.PubsubMessage.pb()(data=b"x" * size)] * of_request
    body = types.PublishRequest.pb()(topic=TOPIC, messages=many).SerializeToString()
    slots = threading.Semaphore(4)
    with EmulatorBackend(address).connect() as connection:
        for _ in range(-(-messages // of_request)):
            slots.acquire()
            connection.publish(TOPIC, body, 60).add_done_callback(lambda _: slots.release())
        for _ in range(4):
            slots.acquire()


def megabytes_through_sockets(total: int) -> float:
    """Return MB/s of two processes that send to this one. A thread reads each connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    send = (
        "import socket, sys\n"
        "connection, data = socket.create_connection(('127.0.0.1', int(sys.argv[1]))), bytes(2**20)\n"
        "for _ in range(int(sys.argv[2]) // 2**20): connection.sendall(data)\n"
    )
    command = [sys.executable, "-c", send, str(listener.getsockname()[1]), str(total // 2)]
    senders = [subprocess.Popen(command) for _ in range(2)]

    def drain(connection: socket.socket) -> None:
        buffer = bytearray(2**20)
        while connection.recv_into(buffer):
            pass

    threads = [threading.Thread(target=drain, args=[listener.accept()[0]]) for _ in senders]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    assert not any(sender.wait() for sender in senders)
    listener.close()
    return total / 1e6 / seconds


def made(spark: SparkSession, messages: int, count: int = 0) -> DataFrame:
    """Return messages of 100 bytes with two attributes, and with `keys` ordering keys unless that is 0."""
    columns = [
        "cast(lpad(string(id), 100, '0') AS binary) data",
        "map('kind', 'flight', 'origin', if(id % 2 = 0, 'JFK', 'LGA')) attributes",
    ]
    columns += [f"concat('key', id % {count}) ordering_key"] if count else []
    return spark.range(0, messages, 1, 2).selectExpr(*columns)


def cached(rows: DataFrame) -> DataFrame:
    rows.cache().count()
    return rows


def counted(rows: DataFrame, messages: int) -> int:
    rows.write.format("counting").mode("append").save()
    return messages


def written(
    spark: SparkSession, rows: DataFrame, address: str, messages: int, summary: WriteSummary | None = None
) -> int:
    summary = summary or WriteSummary(spark)
    options = {"backend": "emulator", "endpoint": address, "topicId": TOPIC}
    rows.write.format(summary.format).mode("append").options(**options).save()
    assert messages == summary.value.messages, f"{summary.value} of {messages}"
    return messages


def publisher_client(address: str, messages: int) -> int:
    """Publish with google-cloud-pubsub as its documentation has it, with the largest batches."""
    os.environ["PUBSUB_EMULATOR_HOST"] = address
    from google.cloud import pubsub_v1

    settings = pubsub_v1.types.BatchSettings(max_messages=1000, max_bytes=9_000_000, max_latency=0.05)
    publisher = pubsub_v1.PublisherClient(batch_settings=settings)
    payload = b"x" * 100
    futures = [publisher.publish(TOPIC, payload, kind="flight", origin="JFK") for _ in range(messages)]
    ids = [future.result() for future in futures]
    publisher.stop()
    del os.environ["PUBSUB_EMULATOR_HOST"]
    return len(ids)


def memory() -> None:
    """Print the peak memory of a process that runs one task, for more and more rows."""
    print(f"{'rows':>12}{'unordered, MB':>16}{f'{KEYS} keys, MB':>16}")
    for rows in (100_000, 1_000_000, 5_000_000):
        peaks = []
        for keys in (0, KEYS):
            command = [sys.executable, __file__, "task", "--messages", str(rows), "--keys", str(keys)]
            peaks.append(int(subprocess.check_output(command)))
        print(f"{rows:12,}{peaks[0]:16}{peaks[1]:16}")


def task(rows: int, keys: int) -> None:
    """Run one task in this process and print its peak memory in MB."""
    at_once = 10_000
    columns = {
        "data": pa.array([os.urandom(100) for _ in range(at_once)]),
        "attributes": pa.array([[("kind", "flight"), ("origin", "JFK")]] * at_once, pa.map_(pa.string(), pa.string())),
    }
    text = spark_types.StringType()
    schema = spark_types.StructType().add("data", "binary").add("attributes", spark_types.MapType(text, text))
    if keys:
        columns["ordering_key"] = pa.array([f"key{row * 7919 % keys}" for row in range(at_once)])
        schema = schema.add("ordering_key", text)
    batch = pa.RecordBatch.from_pydict(columns)
    with server() as address:
        options = WriteOptions.parse({"topicId": TOPIC}, {})
        plan = WritePlan(options, EmulatorBackend(address), ColumnMapping.of(schema, options), None)
        metrics = write_partition(plan, (batch for _ in range(rows // at_once)), PartitionId(0, "bench/0"))
    assert rows == metrics.messages
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "keys", "payloads", "memory", "task", "ready-made"])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--address", default="")
    parser.add_argument("--size", type=int, default=0)
    given = parser.parse_args()
    if given.what == "throughput":
        throughput(given.messages)
    elif given.what == "keys":
        keys(min(given.messages, 500_000))
    elif given.what == "payloads":
        payloads()
    elif given.what == "ready-made":
        send_ready_made(given.address, given.size, given.messages)
    elif given.what == "memory":
        memory()
    else:
        task(given.messages, given.keys)


if __name__ == "__main__":
    main()
