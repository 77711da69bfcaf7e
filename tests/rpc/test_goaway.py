"""A service that ends its connections with GOAWAY, as Google's front ends do from time to time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.pubsub_v1 import types

from pubsub_spark.backend import EmulatorBackend
from pubsub_spark.read.pull.streaming_pull import StreamingPull, StreamSettings

SETTINGS = StreamSettings(
    "projects/test/subscriptions/sub", client_id="me", lease_seconds=60, max_messages=1000, max_bytes=10**6
)
RESPONSE = types.StreamingPullResponse.pb()(received_messages=[{"ack_id": "ack", "message": {"data": b"x"}}])


@pytest.fixture
def opened() -> list[str]:
    """Return the client id of every stream that was opened."""
    return []


@pytest.fixture
def address(opened: list[str]) -> Iterator[str]:
    """Yield a server with one message for each stream, and an end of the connection soon after."""

    def deliver(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        opened.append(types.StreamingPullRequest.pb().FromString(next(requests)).client_id)
        yield RESPONSE.SerializeToString()
        for _ in requests:  # until the client has sent all, or is gone
            pass

    age = [("grpc.max_connection_age_ms", 100), ("grpc.max_connection_age_grace_ms", 50)]
    server = grpc.server(ThreadPoolExecutor(), options=age)
    rpcs = {"StreamingPull": grpc.stream_stream_rpc_method_handler(deliver)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", rpcs)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_goaway_is_no_end(address: str, opened: list[str]):
    """After GOAWAY the stream is opened again on another connection by the same client id, and no error is raised."""
    with EmulatorBackend(address).connect() as connection:
        stream = StreamingPull(connection, SETTINGS)
        taken = [response for _ in range(4) for response in stream.take(10)]
        stream.close()

    assert [RESPONSE.SerializeToString()] * 4 == taken
    assert ["me"] * 4 == opened[:4]
    assert stream.health.reopened >= 3
