"""A Pub/Sub server that is never the bottleneck: canned StreamingPullResponse bytes over raw gRPC.

    python benchmarks/canned.py MESSAGES          prints its port; ends with its standard input

It hands out MESSAGES messages in all, to as many streams as ask, each up to its own `max_outstanding_messages`, and
takes every Acknowledge and ModifyAckDeadline. The responses are made once, 100-byte payloads, 2 attributes, ack ids as
long as the service's (190 characters, random, so that nothing compresses better than in life), and are sent over again.
"""

from __future__ import annotations

import base64
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.pubsub_v1 import types

PER_RESPONSE = 1000
POOL = 100  # different responses
SUBSCRIPTION = "projects/bench/subscriptions/canned"


def responses(count: int = POOL, size: int = PER_RESPONSE) -> list[bytes]:
    """Serialized StreamingPullResponses of `size` messages each."""
    rng = random.Random(7)
    response = types.StreamingPullResponse.pb()
    made = []
    for number in range(count):
        message = response()
        for row in range(size):
            received = message.received_messages.add()
            received.ack_id = base64.urlsafe_b64encode(rng.randbytes(142)).decode()
            received.message.message_id = str(10**16 + number * size + row)
            received.message.data = rng.randbytes(100)
            received.message.attributes["kind"] = "flight"
            received.message.attributes["origin"] = rng.choice(("JFK", "LGA", "EWR"))
            received.message.publish_time.seconds = int(time.time()) - 60
        made.append(message.SerializeToString())
    return made


class Canned:
    """The handlers; `left` is what is still to be handed out."""

    def __init__(self, messages: int) -> None:
        self._pool = responses()
        self._lock = threading.Lock()
        self._left = messages // PER_RESPONSE
        self.acknowledge_requests = 0

    def streaming_pull(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Send until the stream's limit or the end of all messages; then wait for the client to go."""
        first = types.StreamingPullRequest.pb().FromString(next(requests))
        most = first.max_outstanding_messages if first.max_outstanding_messages > 0 else 1 << 40
        gone = threading.Event()
        context.add_callback(gone.set)
        threading.Thread(target=_until_end, args=(requests, gone), daemon=True).start()
        sent = 0
        while not gone.is_set():
            acknowledged = self.acknowledge_requests
            while sent * PER_RESPONSE < most and self._take():
                yield self._pool[sent % POOL]
                sent += 1
            while not gone.wait(0.01) and self.acknowledge_requests == acknowledged:
                pass
            if most <= PER_RESPONSE:  # the door: what it had is acknowledged, so there is room again
                sent = 0

    def _take(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0

    def take(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        """Acknowledge and ModifyAckDeadline: fine."""
        self.acknowledge_requests += 1
        return b""

    def subscription(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        """GetSubscription."""
        return bytes(types.Subscription.pb()(name=SUBSCRIPTION, topic="projects/bench/topics/t").SerializeToString())


def _until_end(requests: Iterator[bytes], gone: threading.Event) -> None:
    try:
        for _ in requests:
            pass
    except grpc.RpcError:
        pass
    gone.set()


def serve(messages: int) -> tuple[Any, int, Canned]:
    """Start on a free port of the loopback interface."""
    canned = Canned(messages)
    server = grpc.server(ThreadPoolExecutor(64), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                "google.pubsub.v1.Subscriber",
                {
                    "StreamingPull": grpc.stream_stream_rpc_method_handler(canned.streaming_pull),
                    "Acknowledge": grpc.unary_unary_rpc_method_handler(canned.take),
                    "ModifyAckDeadline": grpc.unary_unary_rpc_method_handler(canned.take),
                    "GetSubscription": grpc.unary_unary_rpc_method_handler(canned.subscription),
                },
            )
        ]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port, canned


if __name__ == "__main__":
    running, bound, state = serve(int(sys.argv[1]))
    print(bound, flush=True)
    sys.stdin.read()
    print(f"{state.acknowledge_requests} ack requests", file=sys.stderr)
    running.stop(0)
    os._exit(0)
