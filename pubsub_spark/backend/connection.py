"""A gRPC channel to Pub/Sub and its hot calls as raw bytes: Publish, StreamingPull, Acknowledge, ModifyAckDeadline.

No protobuf object is made here. Headers are those of google-cloud-pubsub: the routing header (x-goog-request-params)
and the client's version (x-goog-api-client). They are written here, because Google's client library takes 0.2 s to
import, and tasks that pull nothing need none of it.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

import grpc

from ..errors import ServiceError
from ..service_options import host_of, is_loopback

if TYPE_CHECKING:
    from .admin import Admin

# gRPC would wait two minutes between two attempts to connect after a long outage, and 20 s for each of them.
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 5000),  # how long one attempt may take
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_CLIENT = f"gl-python/{platform.python_version()} grpc/{grpc.__version__} gccl/pubsub_spark"

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # in gRPC's order, in lower case only

Metadata = tuple[tuple[str, str], ...]


def channel_options(address: str) -> list[tuple[str, int]]:
    """Return gRPC's options for a channel to `host:port`. A channel to this machine uses no proxy."""
    return [*_CHANNEL_OPTIONS, ("grpc.enable_http_proxy", int(not is_loopback(host_of(address))))]


def proxy_variable(address: str, environ: Mapping[str, str]) -> str | None:
    """Return the environment variable that makes gRPC call `host:port` through a proxy, or None."""
    host = host_of(address)
    exempt = [entry.strip() for entry in (environ.get("no_grpc_proxy") or environ.get("no_proxy") or "").split(",")]
    if is_loopback(host) or any(entry and host.endswith(entry) for entry in exempt):
        return None
    return next((name for name in _PROXIES if environ.get(name)), None)


@lru_cache(maxsize=64)
def _headers(field: str, name: str) -> Metadata:
    return (("x-goog-request-params", urlencode({field: name}, safe="/")), ("x-goog-api-client", _CLIENT))


class Connection:
    """An open channel to one Pub/Sub endpoint, as a context manager.

    Calls return gRPC's own call objects: `result()` of a unary one returns response bytes or raises grpc.RpcError. A
    `timeout` is in seconds.

    probe_after: seconds without a response on a stream after which its user checks the service. Infinity if HTTP/2's
    keepalive does.
    """

    def __init__(
        self, channel: grpc.Channel, address: str, connect_timeout: float, probe_after: float = math.inf
    ) -> None:
        self.address = address
        self.connect_timeout = connect_timeout
        self.probe_after = probe_after
        self._channel = channel
        self._failure: ServiceError | None = None
        self._publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        self._acknowledge = channel.unary_unary("/google.pubsub.v1.Subscriber/Acknowledge")
        self._modify = channel.unary_unary("/google.pubsub.v1.Subscriber/ModifyAckDeadline")
        self._streaming_pull = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")

    @cached_property
    def admin(self) -> Admin:
        """The clients of all other calls, on the same channel."""
        from .admin import Admin

        return Admin(self._channel, self.address, self.connect_timeout, proxy_variable(self.address, os.environ))

    def publish(self, topic: str, request: bytes, timeout: float) -> Any:
        return self._start(self._publish.future, "topic", topic, request, timeout=timeout)

    def acknowledge(self, subscription: str, request: bytes, timeout: float) -> Any:
        return self._start(self._acknowledge.future, "subscription", subscription, request, timeout=timeout)

    def modify_ack_deadline(self, subscription: str, request: bytes, timeout: float) -> Any:
        return self._start(self._modify.future, "subscription", subscription, request, timeout=timeout)

    def streaming_pull(self, subscription: str, requests: Iterator[bytes]) -> Any:
        """Open a StreamingPull. The call is an iterator of StreamingPullResponse bytes, ended by `cancel()`."""
        return self._start(self._streaming_pull, "subscription", subscription, requests)

    def _start(self, call: Callable[..., Any], field: str, name: str, request: Any, **how: float) -> Any:
        """Start a call. Raises ServiceError if the process has no thread for it, and from then on: gRPC serves none."""
        if self._failure is None:
            try:
                return call(request, metadata=_headers(field, name), **how)
            except RuntimeError as error:
                self._failure = ServiceError(
                    f"This process could not start a thread for calls to `{self.address}` ({error}). Raise its limit "
                    "of threads (`ulimit -u`, or the pids limit of its container) and start it again."
                )
        raise self._failure.with_traceback(None)

    def close(self, timeout: float = 5.0) -> None:
        """Close the channel, within `timeout` seconds: gRPC waits for ever for a call that it had no thread for."""
        closing = Thread(target=self._channel.close, name="close channel", daemon=True)
        with suppress(RuntimeError):  # no thread for this either
            closing.start()
            closing.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
