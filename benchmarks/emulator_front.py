"""What one port for gRPC and REST costs: the same emulator, by its gRPC port and through the front that splices.

    python benchmarks/emulator_front.py

The emulator runs in another process; the ways in take turns, round by round, so that both see the same machine. Beside
the rates stands what a streamed message costs the emulator's process in CPU time, which a busy machine does not change.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from emulator import Client, latency, publish_request, publishing, pulling, streaming

from pubsub_spark.emulator import Emulator, protos
from pubsub_spark.emulator.front import Front

ROUNDS = 5
STREAMED = 200_000
FANNED = 50  # streams, each with a connection of its own


def fan_out(endpoint: str) -> float:
    """Messages per second to many streams, one message a response: the most that a splice can be bothered with."""
    clients = [Client(endpoint) for _ in range(FANNED)]
    counts = [0] * FANNED
    calls = []
    for client in clients:
        client.topic = clients[0].topic
    clients[0].create()
    for index, client in enumerate(clients):
        if index:
            subscription = protos.Subscription(name=client.subscription, topic=client.topic)
            client.call("Subscriber", "CreateSubscription", subscription)
        first = protos.StreamingPullRequest(subscription=client.subscription, stream_ack_deadline_seconds=600)
        done = threading.Event()
        call = client.stream(_once(first.SerializeToString(), done))
        calls.append((call, done))
        threading.Thread(target=_count, args=(call, counts, index), daemon=True).start()
    request = publish_request(clients[0].topic, 1)
    begin = time.perf_counter()
    for _ in range(200):
        clients[0].call("Publisher", "Publish", request)
    while sum(counts) < 200 * FANNED:
        time.sleep(0.005)
    rate = sum(counts) / (time.perf_counter() - begin)
    for call, done in calls:
        call.cancel()
        done.set()
    for client in clients:
        client.delete()
        client.close()
    return rate


def _once(request: bytes, done: threading.Event) -> Iterator[bytes]:
    yield request
    done.wait()


def _count(call: Any, counts: list[int], index: int) -> None:
    with contextlib.suppress(grpc.RpcError):  # cancelled
        for raw in call:
            counts[index] += len(protos.StreamingPullResponse.FromString(raw).received_messages)


MEASURES: dict[str, tuple[Callable[[str], float], str]] = {
    "StreamingPull with acks": (streaming, "messages/s"),
    "StreamingPull, 50 streams, 1 by 1": (fan_out, "messages/s"),
    "Publish, 1000 a request": (publishing, "messages/s"),
    "Pull, 1000 a request, with acks": (pulling, "messages/s"),
    "latency p50": (latency, "ms"),
}


def cpu_seconds(pid: int) -> float:
    """What a process has used so far; Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve() -> None:
    """Both ways into one emulator, until stdin ends."""
    with Emulator(rest=False) as emulator:
        listener = socket.create_server(("127.0.0.1", 0))
        front = Front(listener, ("127.0.0.1", emulator.port), lambda _: None)
        front.start()
        print(emulator.port, listener.getsockname()[1], flush=True)
        sys.stdin.read()
        front.close()


def main() -> None:
    command = [sys.executable, __file__, "serve"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    print(f"{'':34}{'direct':>12}{'front':>12}")
    direct, front = (f"127.0.0.1:{port}" for port in server.stdout.readline().split())
    try:
        for name, (measure, unit) in MEASURES.items():
            figures: dict[str, list[float]] = {direct: [], front: []}
            for _ in range(ROUNDS):
                for endpoint, held in figures.items():
                    held.append(measure(endpoint))
            plain, spliced = (statistics.median(held) for held in figures.values())
            print(f"{name:34}{plain:12,.1f}{spliced:12,.1f} {unit:12}{spliced / plain:6.0%}", flush=True)
        costs: dict[str, list[float]] = {direct: [], front: []}
        for _ in range(ROUNDS):
            for endpoint, held in costs.items():
                before = cpu_seconds(server.pid)
                streaming(endpoint, STREAMED)
                held.append((cpu_seconds(server.pid) - before) / STREAMED * 1e6)
        plain, spliced = (statistics.median(held) for held in costs.values())
        print(f"{'publish and stream, CPU':34}{plain:12,.1f}{spliced:12,.1f} {'µs/message':12}{spliced / plain:6.0%}")
    finally:
        server.stdin.close()
        server.wait(30)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
