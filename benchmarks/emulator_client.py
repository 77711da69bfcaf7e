"""A raw gRPC client (bytes, no client library), and the processes of the emulators, for emulator.py."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from pubsub_spark.emulator.api import protos

PAYLOAD = b"x" * 100
PER_REQUEST = 1000
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Client:
    """The RPCs, with bytes."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint, _UNLIMITED)
        self.topic = f"projects/bench/topics/t{uuid.uuid4().hex}"
        self.subscription = f"projects/bench/subscriptions/s{uuid.uuid4().hex}"

    def call(self, service: str, rpc: str, request: Any, timeout: float = 60) -> bytes:
        method = self._channel.unary_unary(f"/google.pubsub.v1.{service}/{rpc}")
        raw: bytes = method(request if isinstance(request, bytes) else request.SerializeToString(), timeout=timeout)
        return raw

    def stream(self, requests: Iterator[bytes]) -> Any:
        return self._channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(requests)

    def create(self, **settings: Any) -> None:
        self.call("Publisher", "CreateTopic", protos.Topic(name=self.topic))
        self.call(
            "Subscriber",
            "CreateSubscription",
            protos.Subscription(name=self.subscription, topic=self.topic, ack_deadline_seconds=600, **settings),
        )

    def publish(self, count: int, topic: str = "") -> None:
        request = publish_request(topic or self.topic, PER_REQUEST)
        for _ in range(count // PER_REQUEST):
            self.call("Publisher", "Publish", request)

    def delete(self) -> None:
        """Delete the subscription, and its unread messages."""
        request = protos.DeleteSubscriptionRequest(subscription=self.subscription)
        self.call("Subscriber", "DeleteSubscription", request)

    def close(self) -> None:
        self._channel.close()


def publish_request(topic: str, messages: int, payload: bytes = PAYLOAD) -> bytes:
    raw: bytes = protos.PublishRequest(
        topic=topic, messages=[protos.PubsubMessage(data=payload)] * messages
    ).SerializeToString()
    return raw


def drain(client: Client, count: int, streams: int = 1, seconds: float = 60) -> float:
    """Return messages per second through StreamingPull, every one acked on its stream."""
    got = [0] * streams
    done = threading.Event()

    def pull(index: int) -> None:
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        first = protos.StreamingPullRequest(subscription=client.subscription, stream_ack_deadline_seconds=600)
        outgoing.put(first.SerializeToString())
        call = client.stream(iter(outgoing.get, None))
        try:
            for raw in call:
                received = protos.StreamingPullResponse.FromString(raw).received_messages
                acks = protos.StreamingPullRequest(ack_ids=[message.ack_id for message in received])
                outgoing.put(acks.SerializeToString())
                got[index] += len(received)
                if sum(got) >= count:
                    done.set()
        except grpc.RpcError:
            pass  # cancelled below
        finally:
            outgoing.put(None)

    threads = [threading.Thread(target=pull, args=(index,), daemon=True) for index in range(streams)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    done.wait(seconds)
    rate = sum(got) / (time.perf_counter() - begin)
    client.close()
    return rate


@contextlib.contextmanager
def ours(data_dir: str = "", fsync: str = "group") -> Iterator[tuple[str, int]]:
    """Yield endpoint and process id of our emulator, in a process of its own, with or without a data directory."""
    command = [sys.executable, "-c", "from pubsub_spark.cli import app; app()", "emulator", "--port", "0"]
    command += ["--data-dir", data_dir, "--fsync", fsync] if data_dir else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip().partition("=")[2], process.pid
        process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def googles() -> Iterator[tuple[str, int]]:
    """Yield endpoint and process id of Google's emulator, through gcloud."""
    port = 8900 + os.getpid() % 100
    command = ["gcloud", "beta", "emulators", "pubsub", "start", f"--host-port=127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
        yield f"127.0.0.1:{port}", process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def resident(pid: int) -> float:
    """Return megabytes of memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
