"""Which RPC is answered by which handler, and what stands around every one of them.

Bytes in, bytes out: requests are parsed here, except those of the hot calls, whose handlers take bytes. Around a
handler: the call is recorded, a fault that a test has ordered is met, and what cannot be parsed is a RpcError. The same
answers are given to gRPC, call by call as `connections` brings them, and to REST.

An answer is bytes, or, when it has to be waited for, a function to be called on a thread that may wait.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from pubsub_spark.emulator.api.errors import RpcError, invalid, unimplemented
from pubsub_spark.emulator.handlers.streaming_pull import Stream
from pubsub_spark.emulator.rpc.registry import PUBLISHER, SUBSCRIBER, Registry, Rpc
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Fault, Faults
from pubsub_spark.emulator.transport.calls import Caller, Metadata
from pubsub_spark.emulator.transport.connections import Call, Connections, Talk

_log = logging.getLogger("pubsub_spark.emulator")

_STREAMING_PULL = f"/{SUBSCRIBER}/StreamingPull"
_GRACE = 1.0  # seconds for calls to end; all that wait are told to, so it takes a blink

T = TypeVar("T")

Answer = bytes | Callable[[], bytes]
Handler = Callable[[bytes, Caller], Answer]


class Recorded(NamedTuple):
    """One call that came in."""

    rpc: str
    metadata: Metadata


class Server:
    """Hands each call to its handler."""

    def __init__(self, engine: Engine, services: Registry, faults: Faults, *, record: bool = False) -> None:
        self.calls: list[Recorded] = []
        self._record = record
        self._faults = faults
        self._engine = engine
        self._services = services
        self._streams: set[Stream] = set()
        self._stopping = threading.Event()
        self._waiting: set[Future[Any]] = set()  # each open stream and each waiting Pull occupies a thread
        self._handlers = self._table()
        self.rpcs = frozenset(path.rpartition("/")[2] for path in (*self._handlers, _STREAMING_PULL))
        self._connections = Connections(self._open)

    def _table(self) -> dict[str, Handler]:
        """The unary RPCs by path."""
        subscriber, publisher = self._services.subscriber, self._services.publisher
        handlers = {
            f"/{service}/{name}": _parsing(rpc)
            for service, rpcs in self._services.table().items()
            for name, rpc in rpcs.items()
        }
        hot: dict[str, Handler] = {
            f"/{PUBLISHER}/Publish": lambda raw, _: publisher.publish(raw),
            f"/{SUBSCRIBER}/Pull": self._pull,
            f"/{SUBSCRIBER}/Acknowledge": lambda raw, _: subscriber.acknowledge(raw),
            f"/{SUBSCRIBER}/ModifyAckDeadline": lambda raw, _: subscriber.modify_ack_deadline(raw),
        }
        return handlers | hot

    def serve(self, connection: socket.socket) -> None:
        """Take over a connection that speaks HTTP/2."""
        self._connections.add(connection)

    def stop(self) -> None:
        """End every call and connection."""
        self._stopping.set()
        self.close_streams(_stopping())
        self._engine.cancel_all()
        wait(list(self._waiting), timeout=_GRACE)  # longer only for a client that does not read
        self._connections.close()
        wait(list(self._waiting))

    def close_streams(self, error: RpcError) -> int:
        """End every open stream with an error; returns how many there were."""
        with self._engine.open():
            streams = list(self._streams)
        for stream in streams:
            stream.refuse(error)
        return len(streams)

    def streams(self) -> int:
        """How many streams are open."""
        with self._engine.open():
            return len(self._streams)

    def answer(self, path: str, raw: bytes, caller: Caller) -> Answer:
        """The answer of an RPC that is not a stream; a RpcError when there is none."""
        handler = self._handlers.get(path)
        if handler is None:
            raise unimplemented(f"Method not found: `{path}`.")
        fault = self._match_fault(path, caller)
        if fault is None:
            return _parsed(handler, raw, caller)

        def met() -> bytes:
            self._apply(fault)
            answer = _parsed(handler, raw, caller)
            return answer if isinstance(answer, bytes) else answer()

        return met if fault.delay else met()

    def aside(self, work: Callable[[], T]) -> Future[T]:
        """Do something on a thread that may wait; one that does not keep a process from ending, as a pool's would."""
        self._check_open()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        try:
            threading.Thread(target=run, name="pubsub-emulator-call", daemon=True).start()
        except RuntimeError as problem:
            error = RpcError("RESOURCE_EXHAUSTED", f"The emulator has no thread left for this call: {problem}.")
            future.set_exception(error)
            raise error from None
        return future

    def _check_open(self) -> None:
        if self._stopping.is_set():
            raise _stopping()

    def _open(self, call: Call) -> Talk:
        self._check_open()
        if call.path != _STREAMING_PULL:
            return _Unary(self, call)
        fault = self._match_fault(call.path, call)
        if fault is not None and fault.delay:
            return _Late(self, fault, call)
        if fault is not None:
            self._apply(fault)
        return self._stream(call)

    def _stream(self, call: Call) -> Stream:
        return Stream(self._engine, self._services.subscriber, call, self.aside, self._streams)

    def _match_fault(self, path: str, caller: Caller) -> Fault | None:
        """Record a call; the fault that waits for it."""
        rpc = path.rpartition("/")[2]
        if self._record:
            self.calls.append(Recorded(rpc, caller.metadata))
        _log.info("%s from %s", rpc, caller.peer)
        return self._faults.meet(rpc)

    def _apply(self, fault: Fault) -> None:
        if fault.delay:
            self._stopping.wait(fault.delay)
            self._check_open()
        if fault.code is not None:
            raise RpcError(fault.code, fault.message or f"This {fault.rpc} was told to fail with {fault.code}.")

    def _pull(self, raw: bytes, caller: Caller) -> Answer:
        pull = self._services.subscriber.pull
        return pull(raw, caller, wait=False) or (lambda: pull(raw, caller, wait=True))


class _Unary:
    """A call with one request and one answer."""

    def __init__(self, server: Server, call: Call) -> None:
        self._server = server
        self._call = call
        self._request: bytes | None = None

    def receive(self, message: bytes) -> None:
        if self._request is not None:
            raise invalid("The RPC takes one request, got another one.")
        self._request = message

    def receive_end(self) -> None:
        if self._request is None:
            raise invalid("The RPC takes one request, got none.")
        call, answer = self._call, self._server.answer(self._call.path, self._request, self._call)
        if isinstance(answer, bytes):
            call.answer(answer)
        else:
            self._server.aside(lambda: call.attempt(lambda: call.answer(answer())))


class _Late:
    """A stream that a fault keeps waiting: what is said meanwhile is said to it afterwards."""

    def __init__(self, server: Server, fault: Fault, call: Call) -> None:
        self._said: list[Callable[[Talk], None]] = []
        self._stream: Talk | None = None
        self._lock = threading.Lock()

        def begin() -> None:
            server._apply(fault)
            with self._lock:
                self._stream = server._stream(call)
                for each in self._said:
                    each(self._stream)

        server.aside(lambda: call.attempt(begin))

    def receive(self, message: bytes) -> None:
        self._say(lambda stream: stream.receive(message))

    def receive_end(self) -> None:
        self._say(lambda stream: stream.receive_end())

    def _say(self, saying: Callable[[Talk], None]) -> None:
        with self._lock:
            if self._stream is None:
                self._said.append(saying)
            else:
                saying(self._stream)


def _stopping() -> RpcError:
    return RpcError("UNAVAILABLE", "The emulator is stopping.")


def _parsing(rpc: Rpc) -> Handler:
    def parse_and_handle(raw: bytes, _: Caller) -> bytes:
        response: bytes = rpc.handler(rpc.request.FromString(raw)).SerializeToString()
        return response

    return parse_and_handle


def _parsed(handler: Handler, raw: bytes, caller: Caller) -> Answer:
    try:
        return handler(raw, caller)
    except DecodeError:
        raise invalid("The request could not be parsed.") from None
