"""A gRPC client that speaks in HTTP/2 frames, to do things that no gRPC library would do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TypeVar

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, ResponseReceived, TrailersReceived

T = TypeVar("T")


class FrameClient:
    """One connection, with a window of 64 KB that it widens only on request."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.h2 = H2Connection(H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False))
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def headers(self, path: str, stream: int = 1, **more: str) -> None:
        known = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        known |= {"content-type": "application/grpc", "te": "trailers"}
        known |= {name.replace("_", "-"): value for name, value in more.items()}
        self.h2.send_headers(stream, list(known.items()))

    def body(self, data: bytes, stream: int = 1, *, end: bool = False) -> None:
        self.h2.send_data(stream, data, end_stream=end)
        self.flush()

    def call(self, path: str, message: bytes = b"", stream: int = 1, *, end: bool = True, **more: str) -> None:
        """Send headers, and a message behind them."""
        self.headers(path, stream, **more)
        self.body(b"\0" + len(message).to_bytes(4) + message, stream, end=end)

    def reset(self, stream: int = 1) -> None:
        self.h2.reset_stream(stream, 8)
        self.flush()

    def events(self, kind: type[T]) -> Iterator[T]:
        """Yield the next events of a kind, until the connection ends."""
        while data := self.socket.recv(65_536):
            yield from [each for each in self.h2.receive_data(data) if isinstance(each, kind)]
            self.flush()

    def end(self, stream: int = 1) -> dict[str, str]:
        """Return the trailers of a call, or its headers when they are its end."""
        for each in self.events(Event):
            ends = isinstance(each, TrailersReceived | ResponseReceived) and each.stream_ended
            if ends and each.stream_id == stream:  # type: ignore[attr-defined]
                return {name.decode(): value.decode() for name, value in each.headers}  # type: ignore[attr-defined]
        raise ConnectionError

    def widen(self, stream: int) -> None:
        for each in (None, stream):
            self.h2.increment_flow_control_window(10**7, each)
        self.flush()

    def close(self) -> None:
        self.socket.close()
