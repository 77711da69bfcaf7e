"""A write of 200,000 ordering keys through an outage of 30 seconds: threads, memory, and the order of each key.

    python benchmarks/write_outage.py [--keys 200000] [--seconds 30]

The server is a process of its own. After the first 1,000 requests it closes its port for `--seconds` seconds. Every
request has one message, and every tenth key has two. It fails unless each message was published, those of a key in
their order.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import grpc  # noqa: E402
import pyarrow as pa  # noqa: E402
from google.pubsub_v1.types import PublishRequest, PublishResponse  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from pubsub_spark.backend import EmulatorBackend  # noqa: E402
from pubsub_spark.options import WriteOptions  # noqa: E402
from pubsub_spark.write.column_mapping import ColumnMapping  # noqa: E402
from pubsub_spark.write.data_writer import PartitionId, write_partition  # noqa: E402
from pubsub_spark.write.plan import WritePlan  # noqa: E402

REQUESTS_BEFORE_OUTAGE = 1000


class Recorder(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Publish, which records the messages of each key in the order of their arrival."""

    def __init__(self) -> None:
        self.arrived: dict[str, list[int]] = {}
        self.requests = 0
        self.outage = threading.Event()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method.endswith("/Publish"):
            return grpc.unary_unary_rpc_method_handler(self.publish)
        return None

    def publish(self, body: bytes, _: grpc.ServicerContext) -> bytes:
        messages = PublishRequest.pb().FromString(body).messages
        for message in messages:
            self.arrived.setdefault(message.ordering_key, []).append(int(message.data))
        self.requests += 1
        if self.requests == REQUESTS_BEFORE_OUTAGE:
            self.outage.set()
        answer: bytes = PublishResponse.pb()(message_ids=["1"] * len(messages)).SerializeToString()
        return answer


def serve(seconds: float) -> None:
    """Serve until standard input ends, with one outage. Print the port, then a summary of the received messages."""
    recorder, port = Recorder(), 0

    def started() -> tuple[grpc.Server, int]:
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((recorder,))
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        return server, bound

    def fail() -> None:
        nonlocal server
        recorder.outage.wait()
        server.stop(None).wait()
        time.sleep(seconds)
        server, _ = started()

    server, port = started()
    print(port, flush=True)
    threading.Thread(target=fail, daemon=True).start()
    sys.stdin.read()
    first_arrivals = [
        list(dict.fromkeys(numbers)) for numbers in recorder.arrived.values()
    ]  # a retry may repeat a message
    tally = {
        "keys": len(first_arrivals),
        "messages": sum(map(len, first_arrivals)),
        "repeated": sum(map(len, recorder.arrived.values())) - sum(map(len, first_arrivals)),
        "keys out of order": sum(each != sorted(each) for each in first_arrivals),
    }
    print(json.dumps(tally), flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.seconds)
        return
    keys = [f"key-{i}" for i in range(given.keys)] + [f"key-{i}" for i in range(0, given.keys, 10)]
    columns = pa.RecordBatch.from_pydict(
        {"data": pa.array([b"%d" % i for i in range(len(keys))]), "ordering_key": pa.array(keys)}
    )
    options = WriteOptions.parse({"topicId": "projects/p/topics/outage", "maxBatchMessages": "1"}, {})
    schema = StructType().add("data", "binary").add("ordering_key", "string")
    threads, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            threads.append(threading.active_count())

    threading.Thread(target=watch, daemon=True).start()
    command = [sys.executable, __file__, "--serve", "--seconds", str(given.seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        plan = WritePlan(
            options,
            EmulatorBackend(f"127.0.0.1:{int(server.stdout.readline())}"),
            ColumnMapping.of(schema, options),
            None,
        )
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        batches = (columns.slice(at, 10_000) for at in range(0, len(columns), 10_000))
        metrics = write_partition(plan, batches, PartitionId(0, "outage/0"))
        took = time.monotonic() - started
        server.stdin.close()
        tally = json.loads(server.stdout.readline())
    over.set()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{took:.0f} s, {max(threads)} threads, {(peak - before) // 1024} MB more than before; {metrics}; {tally}")
    assert (given.keys, len(keys), 0) == (tally["keys"], tally["messages"], tally["keys out of order"])


if __name__ == "__main__":
    main()
