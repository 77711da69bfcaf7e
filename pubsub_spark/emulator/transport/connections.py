"""Carries calls over connections: one thread reads them all and answers what can be answered at once.

A connection is read when the selector says so, its frames become events (`http2`), and those become calls (`calls`).
A call whose request is complete is answered on this very thread, because a hand-over to another costs more than most
answers. What has to wait is handed to a thread by whoever answers, and writes from there: any thread may write, and
what the client does not take at once is kept and written when it does. This thread never waits for anybody.

A message that is sent on a stream counts as sent when its last byte has been given to the kernel, and not before.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pubsub_spark.emulator.api.errors import RpcError, invalid
from pubsub_spark.emulator.transport import calls, http2
from pubsub_spark.emulator.transport.calls import Caller, Messages, NotGrpcError

_log = logging.getLogger("pubsub_spark.emulator")

_CHUNK = 1 << 18  # bytes read at a time; a megabyte is no faster
_MOST_UNWRITTEN = 1 << 26  # bytes: a client that asks and does not read, PING after PING, is not heard until it does
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_FLUSH_SECONDS = 1.0  # for what is left to write when the connections are closed


class Talk(Protocol):
    """What a call's messages are given to, on the thread that reads."""

    def receive(self, message: bytes) -> None: ...

    def receive_end(self) -> None: ...


Open = Callable[["Call"], Talk]


class Call(Caller):
    """One RPC on a connection."""

    def __init__(self, link: _Link, stream: int, said: calls.Opening, peer: str) -> None:
        deadline = None if said.seconds is None else time.monotonic() + said.seconds
        super().__init__(said.metadata, peer, deadline)
        self.path = said.path
        self._link = link
        self._stream = stream

    def begin(self) -> None:
        """Tell the client that the call is under way, though there is nothing to say yet."""
        self._link.begin(self._stream)

    def send(self, message: bytes) -> bool:
        """Wait until a message is written; False when the client left before it was. Not for the thread that reads."""
        return self._link.send(self._stream, message)

    def answer(self, message: bytes) -> None:
        """The only message of a call, and its end."""
        self._link.answer(self._stream, message)
        self.end()

    def finish(self, error: RpcError | None = None) -> None:
        """The end of a call, good or bad."""
        if error is not None:
            _log.info("%s refused: %s: %s", self.path, error.code, calls.sentence(error))
        self._link.finish(self._stream, calls.bad_end(error) if error else calls.GOOD_END)
        self.end()

    def attempt(self, work: Callable[[], None]) -> None:
        """Do something for the call; what goes wrong is its end."""
        try:
            work()
        except RpcError as error:
            self.finish(error)
        except Exception:
            _log.exception("%s from %s failed", self.path, self.peer)
            self.finish(RpcError("INTERNAL", "The emulator failed; its log has more."))

    def end(self) -> None:
        self._link.forget(self._stream)
        super().end()


class Connections:
    """The thread and its connections; `open_call` is told of each call, and says who takes its messages."""

    def __init__(self, open_call: Open) -> None:
        self.open_call = open_call
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._asking: deque[_Link] = deque()  # connections that are new, or of which another thread wants something
        self._links: set[_Link] = set()
        self.buffer = memoryview(bytearray(_CHUNK))  # what is read, for a moment: one serves all connections
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pubsub-emulator-connections", daemon=True)
        self._thread.start()

    def add(self, connection: socket.socket) -> None:
        """Take over a connection that speaks HTTP/2, and close it when it has ended."""
        connection.setblocking(False)
        self.ask(_Link(self, connection))
        if self._closing.is_set():
            self._refuse()

    def ask(self, link: _Link) -> None:
        """Have a connection looked after, which another thread has written to."""
        self._asking.append(link)
        self._notify()

    def is_here(self) -> bool:
        """Whether this is the thread that reads."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Let each connection write what it has, for a moment, and end it."""
        self._closing.set()
        self._notify()
        self._thread.join()
        self._refuse()

    def _refuse(self) -> None:
        """Close what came too late."""
        with contextlib.suppress(IndexError):
            while True:
                self._asking.popleft().close()

    def _notify(self) -> None:
        with contextlib.suppress(OSError):  # closed already, or rung so often that it need not be heard again
            self._ringer.send(b".", socket.MSG_DONTWAIT)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._serve(None)
        ends = time.monotonic() + _FLUSH_SECONDS
        for link in list(self._links):
            link.retire()
            self._watch(link)
        while any(link.has_more for link in self._links) and (rest := ends - time.monotonic()) > 0:
            self._serve(rest)
        for link in self._links:
            link.close()
        for each in (self._selector, self._bell, self._ringer):
            each.close()

    def _serve(self, seconds: float | None) -> None:
        """Wait until some connection has something to read or can be written to, and do that."""
        for key, events in self._selector.select(seconds):
            link = key.data
            if link is None:
                self._bell.recv(4096)
                self._answer_the_bell()
                continue
            if events & selectors.EVENT_WRITE:
                link.write()
            if events & selectors.EVENT_READ:
                link.read()
            self._watch(link)

    def _answer_the_bell(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                link = self._asking.popleft()
                if not link.closed:
                    self._links.add(link)
                    self._watch(link)

    def _watch(self, link: _Link) -> None:
        """Wait for what is of interest now, or let the connection go when it is over."""
        with link.lock:  # or what another thread leaves to be written meanwhile would be asked for by nobody
            wants = link.wants
            if wants != link.interest:
                if not link.interest:
                    self._selector.register(link.socket, wants, link)
                elif not wants:
                    self._selector.unregister(link.socket)
                else:
                    self._selector.modify(link.socket, wants, link)
                link.interest = wants
        if not wants:
            self._links.discard(link)
            link.close()


class _Sending:
    """A message that a thread waits for to be written."""

    __slots__ = ("mark", "stream", "unsent", "written")

    def __init__(self, stream: int, unsent: Sequence[memoryview]) -> None:
        self.stream = stream
        self.unsent = unsent  # by the stream, because of its window
        self.mark = -1  # bytes of the connection with its last byte; -1 as long as some are unsent
        self.written = threading.Event()


class _Open(NamedTuple):
    """A call that is open. The call does not know of its talk: in a circle they would outlive it, with its request."""

    call: Call
    messages: Messages
    talk: Talk


class _Link:
    """One connection. Its lock guards the protocol's state and the socket; no call is told anything inside it."""

    def __init__(self, owner: Connections, connection: socket.socket) -> None:
        self.socket = connection
        self.interest = 0  # what the selector watches it for
        self.closed = False
        self._owner = owner
        self._peer = _peer(connection)
        self._http = http2.Connection()
        self._calls: dict[int, _Open] = {}
        self.lock = threading.Lock()
        self._over = False  # nothing can be read or written any more
        self._out: deque[memoryview] = deque()  # bytes that the kernel has not taken yet
        self._queued = self._written = 0  # bytes so far
        self._sendings: list[_Sending] = []

    @property
    def wants(self) -> int:
        """What the selector is to watch the connection for; nothing when it is over."""
        if self._over:
            return 0
        reads = selectors.EVENT_READ if self._queued - self._written < _MOST_UNWRITTEN else 0
        return reads | (selectors.EVENT_WRITE if self._out else 0)

    @property
    def has_more(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._out) and not self._over

    # The thread that reads

    def read(self) -> None:
        """Read once, and let what came take effect."""
        with self.lock:
            try:
                events, over = self._receive()
            except OSError:
                events, over = [], True
            self._flush()
        for event in events:
            self._match_fault(event)
        if over:
            self._end()

    def _receive(self) -> tuple[list[http2.Event], bool]:
        """What happened, and whether the connection is over with it."""
        events: list[http2.Event] = []
        more = True
        while more:
            try:
                size = self.socket.recv_into(self._owner.buffer)
            except _WOULD_BLOCK:
                break
            events += self._http.receive(self._owner.buffer[:size])
            if self._http.broken:
                _log.info("The connection from %s ends: %s", self._peer, self._http.broken)
            if not size or self._http.broken:
                return events, True
            more = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0  # no selector knows of these
        return events, False

    def write(self) -> None:
        """Write what waited for the client."""
        with self.lock:
            self._flush()

    def retire(self) -> None:
        """Take no more calls."""
        with self.lock:
            self._http.close()
            self._flush()

    def close(self) -> None:
        """End the connection, and with it every call."""
        if self.closed:
            return
        self.closed = True
        self._end()
        lost, self._calls = self._calls, {}
        for each in list(lost.values()):
            each.call.end()
        with contextlib.suppress(OSError):
            # Not the method of an SSLSocket, which forgets its state.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
        self.socket.close()

    def _end(self) -> None:
        with self.lock:
            self._over = True
            self._flush()

    def _match_fault(self, event: http2.Event) -> None:
        if isinstance(event, http2.Opened):
            self._open(event)
        elif known := self._calls.get(event.stream):
            known.call.attempt(lambda: self._tell(known, event))

    def _tell(self, known: _Open, event: http2.Event) -> None:
        if isinstance(event, http2.Body):
            for message in known.messages.take(event.data):
                known.talk.receive(message)
        elif isinstance(event, http2.Reset):
            known.call.end()
        elif known.messages.rest:
            raise invalid("The request breaks off.")
        else:
            known.talk.receive_end()

    def _open(self, event: http2.Opened) -> None:
        try:
            said = calls.opening(event.headers)
        except NotGrpcError as error:
            self.finish(event.stream, b"", error.block)
        except RpcError as error:
            self.finish(event.stream, calls.bad_end(error))
        else:
            call = Call(self, event.stream, said, self._peer)
            call.attempt(lambda: self._keep(event.stream, call, Messages(said.encoding)))

    def _keep(self, stream: int, call: Call, messages: Messages) -> None:
        talk = self._owner.open_call(call)
        self._calls[stream] = _Open(call, messages, talk)
        if not call.is_active():  # it ended on another thread, before it was kept
            self.forget(stream)

    # Any thread

    def begin(self, stream: int) -> None:
        with self.lock:
            self._http.send_headers(stream, calls.HEADERS)
            self._flush()

    def answer(self, stream: int, message: bytes) -> None:
        with self.lock:
            self._http.send_headers(stream, calls.HEADERS)
            self._http.send_body(stream, calls.prefix(message), message)
            self._http.send_trailers(stream, calls.GOOD_END)
            self._flush()

    def finish(self, stream: int, trailers: bytes, headers: bytes = calls.HEADERS) -> None:
        with self.lock:
            self._http.send_trailers(stream, trailers, headers)
            self._flush()

    def send(self, stream: int, message: bytes) -> bool:
        with self.lock:
            sending = _Sending(stream, self._http.send_body(stream, calls.prefix(message), message))
            self._sendings.append(sending)
            self._flush()
        sending.written.wait()
        return not sending.unsent and self._written >= sending.mark

    def forget(self, stream: int) -> None:
        """The stream's call is over."""
        self._calls.pop(stream, None)

    def _flush(self) -> None:
        """Inside the lock: write what the kernel takes, and tell who waited for that."""
        if data := self._http.take():
            self._out.append(memoryview(data))
            self._queued += len(data)  # also when it is never written: then nobody who sent it may believe it was
        try:
            while self._out and not self._over:
                size = self.socket.send(self._out[0])
                self._written += size
                if size < len(self._out[0]):
                    self._out[0] = self._out[0][size:]
                else:
                    self._out.popleft()
        except _WOULD_BLOCK:
            pass
        except OSError:
            self._over = True
        if self._sendings:
            self._sendings = [each for each in self._sendings if self._is_under_way(each)]
        if self.wants != self.interest and not (self.closed or self._owner.is_here()):
            self._owner.ask(self)

    def _is_under_way(self, sending: _Sending) -> bool:
        if sending.mark < 0 and not sending.unsent:
            sending.mark = self._queued
        if not self._over and (self._http.is_open(sending.stream) if sending.unsent else self._written < sending.mark):
            return True
        sending.written.set()
        return False


def _peer(connection: socket.socket) -> str:
    """As gRPC names it."""
    with contextlib.suppress(OSError, ValueError):  # gone already, or not of the internet
        host, port, *rest = connection.getpeername()
        return f"ipv6:[{host}]:{port}" if rest else f"ipv4:{host}:{port}"
    return "unknown"
