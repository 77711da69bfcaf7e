"""`Connection` and `Backend` of a simulated process: the client's half of every call.

A request that was sent takes effect though its process is killed meanwhile. Calls of a killed process raise and do
nothing.
"""

from __future__ import annotations

import datetime
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import grpc
from google.pubsub_v1 import types

from pubsub_spark.backend.status import failure
from pubsub_spark.errors import PubSubError
from tests.simulation import product
from tests.simulation.hub import EPOCH, Process, ProcessGone, Thread
from tests.simulation.service import Code, Service, SimRpcError, Stream

ADDRESS = "simulated:443"
_TCP_NOTICES = (0.01, 0.01, 0.01, 15.0, 300.0)  # seconds until the service knows that a client is gone
_backends: dict[int, SimBackend] = {}


def _backend(key: int) -> SimBackend:
    """Return the backend that was pickled."""
    return _backends[key]


class SimBackend:
    """The `Backend` of a history. Pickled by reference."""

    def __init__(self, service: Service, connect_timeout: float = 20.0, probe_after: float = math.inf) -> None:
        self.address = ADDRESS
        self._service, self._connect_timeout, self._probe_after = service, connect_timeout, probe_after
        _backends[id(self)] = self

    def connect(self) -> SimConnection:
        """Return a connection of the process that runs."""
        process = self._service.hub.running().process
        return SimConnection(self._service, process, self._connect_timeout, self._probe_after)

    def close(self) -> None:
        """Forget this backend. The history is over."""
        _backends.pop(id(self), None)

    def __reduce__(self) -> Any:
        return _backend, (id(self),)


class SimConnection:
    """The `Connection` of one process."""

    def __init__(self, service: Service, process: Process, connect_timeout: float, probe_after: float) -> None:
        self.address, self.connect_timeout, self.probe_after = ADDRESS, connect_timeout, probe_after
        self._service, self._process = service, process
        self._calls: dict[SimCall, None] = {}  # in order, so that a seed is one history
        self._futures: dict[SimFuture, None] = {}
        self._closed = False
        process.on_kill.append(self._lose)
        self.admin = SimAdmin(service, process, connect_timeout)

    def acknowledge(self, subscription: str, request: bytes, timeout: float) -> SimFuture:
        return self._unary(lambda: self._service.acknowledge(request, self._process.name), timeout)

    def modify_ack_deadline(self, subscription: str, request: bytes, timeout: float) -> SimFuture:
        return self._unary(lambda: self._service.modify(request, self._process.name), timeout)

    def _unary(self, effect: Callable[[], SimRpcError | None], timeout: float) -> SimFuture:
        service, hub = self._service, self._service.hub
        self._check()
        future = SimFuture(self._process, self._futures)
        hub.after(timeout, lambda: future.answer(SimRpcError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")))

        def arrive() -> None:
            if service.is_silent:
                return
            if service.is_down or service.faults.hits("call refused"):
                error: SimRpcError | None = SimRpcError(Code.UNAVAILABLE, "try again")
            else:
                error = effect()
                if service.faults.hits("answer lost"):
                    error = SimRpcError(Code.UNAVAILABLE, "connection reset") if service.chooser.chance(0.5) else None
                    if error is None:
                        return  # until the timeout
            hub.after(service.latency(), lambda: future.answer(error))

        hub.after(service.latency(), arrive)
        self._process.operation()
        return future

    def streaming_pull(self, subscription: str, requests: Iterator[bytes]) -> SimCall:
        self._check()
        call = SimCall(self._service, self._process, requests, self._calls)
        self._calls[call] = None
        self._process.operation()
        return call

    def close(self) -> None:
        """Cancel all calls."""
        self._closed = True
        if self._process.dead or self._service.hub.is_over:
            return
        for call in list(self._calls):
            call.cancel()
        for future in list(self._futures):
            future.answer(SimRpcError(Code.CANCELLED, "Channel closed!"))

    def _lose(self) -> None:
        """Lose the process: the service notices at once, or only when TCP or HTTP/2 does."""
        for call in self._calls:
            self._service.hub.after(self._service.chooser.pick(_TCP_NOTICES), call.stream.leave_if_open)

    def _check(self) -> None:
        if self._process.dead or self._service.hub.is_over:
            raise ProcessGone
        if self._closed:
            raise ValueError("Cannot invoke RPC on closed channel!")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Waiting:
    """A thing that threads of a process wait for."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._threads: list[Thread] = []

    def _wait(self) -> None:
        hub = self._process.hub
        if self._process.dead or hub.is_over:
            raise ProcessGone
        self._threads.append(hub.running())
        hub.wait()

    def _wake(self) -> None:
        threads, self._threads = self._threads, []
        for thread in threads:
            self._process.hub.wake(thread)


class SimFuture(_Waiting):
    """A unary call."""

    def __init__(self, process: Process, open_futures: dict[SimFuture, None]) -> None:
        super().__init__(process)
        self._is_answered = False
        self._error: SimRpcError | None = None
        self._open = open_futures
        open_futures[self] = None

    def answer(self, error: SimRpcError | None) -> None:
        """End the call, unless it has ended."""
        if not self._is_answered:
            self._is_answered, self._error = True, error
            self._open.pop(self, None)
            self._wake()

    def done(self) -> bool:
        return self._is_answered

    def result(self, timeout: float | None = None) -> bytes:
        while not self._is_answered:
            self._wait()
        if self._error is not None:
            raise self._error
        return b""


class SimCall(_Waiting):
    """The client's half of a StreamingPull: an iterator of responses."""

    def __init__(
        self, service: Service, process: Process, requests: Iterator[bytes], open_calls: dict[SimCall, None]
    ) -> None:
        super().__init__(process)
        self.name = process.name
        self.stream = _ClientStream(service, self)
        self._service, self._open = service, open_calls
        self._responses: deque[bytes] = deque()
        self._has_headers = self._ended = False
        self._error: SimRpcError | None = None
        process.start(lambda: self._send(requests), "requests of a stream")

    def _send(self, requests: Iterator[bytes]) -> None:
        """Consume the requests, as gRPC does on a thread of its own."""
        hub = self._service.hub
        for request in requests:
            if self._ended:
                return
            hub.after(self._service.latency(), lambda request=request: self.stream.request(request))  # type: ignore[misc]
        if not self._ended:
            hub.after(self._service.latency(), self.stream.half_close)

    def receive(self, response: bytes | None, error: SimRpcError | None = None) -> None:
        if self._ended:
            return
        self._has_headers = True
        if error is not None or response == b"":
            self._ended, self._error = True, error
            self._open.pop(self, None)
        elif response is not None:
            self._responses.append(response)
            self._process.operation()
        self._wake()

    def initial_metadata(self) -> tuple[()]:
        while not (self._has_headers or self._ended):
            self._wait()
        return ()

    def is_active(self) -> bool:
        return not self._ended

    def cancel(self) -> bool:
        if self._ended or self._process.dead or self._service.hub.is_over:
            return False
        self._responses.clear()
        self.receive(None, SimRpcError(Code.CANCELLED, "Locally cancelled by application!"))
        self._service.hub.after(self._service.latency(), self.stream.leave_if_open)
        return True

    def code(self) -> grpc.StatusCode | None:
        if not self._ended:
            return None
        return Code.OK if self._error is None else self._error.code()

    def details(self) -> str:
        return "" if self._error is None else self._error.details()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        while not self._responses:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopIteration
            self._wait()
        return self._responses.popleft()


class _ClientStream(Stream):
    """The service's half of a call, which may notice that the client is gone."""

    def leave_if_open(self) -> None:
        if not self.ended:
            self.leave()


class SimAdmin:
    """The rare calls of `Admin` that reading needs."""

    def __init__(self, service: Service, process: Process, timeout: float) -> None:
        self._service, self._process, self._timeout = service, process, timeout

    def topic(self, name: str) -> types.Topic:
        self._ask("look at", "Topic", name)
        return types.Topic(name=name)

    def subscription(self, name: str) -> types.Subscription:
        self._ask("look at", "Subscription", name)
        if name not in self._service.broker.subscriptions:
            raise self._failure(Code.NOT_FOUND, "look at", "Subscription", name)
        settings = self._service.settings
        return types.Subscription(
            name=name,
            topic=self._service.topic.name,
            enable_message_ordering=settings.ordering,
            enable_exactly_once_delivery=settings.exactly_once,
        )

    def schema(self, name: str) -> types.Schema:
        self._ask("look at", "Schema", name)
        schema = self._service.schema
        found = None if schema is None else schema.find(name, self._service.hub.now)
        if found is None:
            raise self._failure(Code.NOT_FOUND, "look at", "Schema", name)
        kind = types.Schema.Type.AVRO
        return types.Schema(name=found.name, type_=kind, definition=found.definition, revision_id=found.revision_id)

    def check_permission(self, verb: str, collection: str, name: str, permission: str) -> None:
        self._ask(verb, collection, name)

    def publish(self, topic: str, messages: Sequence[types.PubsubMessage], seconds: float) -> None:
        """Publish to a dead-letter topic."""
        self._ask("publish to", "Topic", topic)
        self._service.record.dead_letters.update(each.attributes[product.ID_ATTRIBUTE] for each in messages)
        self._process.operation()

    def seek(self, name: str, target: datetime.datetime | str) -> None:
        self._ask("seek", "Subscription", name)
        if isinstance(target, datetime.datetime):
            self._service.seek(target.timestamp() - EPOCH)

    def _ask(self, verb: str, kind: str, name: str) -> None:
        """Wait for an answer. Raises ServiceError without an answer."""
        service, hub = self._service, self._service.hub
        if self._process.dead or hub.is_over:
            raise ProcessGone
        end = hub.now + self._timeout
        hub.wait(hub.now + service.latency())
        while service.is_down or service.is_silent or service.faults.hits("call refused"):
            if hub.now >= end:
                raise self._failure(Code.UNAVAILABLE, verb, kind, name)
            hub.wait(hub.now + 1.0)

    def _failure(self, code: grpc.StatusCode, verb: str, kind: str, name: str) -> PubSubError:
        return failure(code, f"simulated (resource={name})", verb, kind, name, ADDRESS)
