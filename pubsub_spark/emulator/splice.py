"""Joins connections in pairs: what comes in on one goes out on the other, byte for byte, until both have ended.

One thread for all pairs. Threads of their own would be simpler and cost a busy emulator twice as much: each hand-over
of Python's lock takes time, and one thread that finds ten connections ready needs few of them.

The thread never waits for a peer: what a connection does not take at once is kept for it, and nothing more is read for
it until it has taken that. An end of one direction is passed on; a break ends both.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import deque

_CHUNK = 1 << 18  # bytes moved at a time; a megabyte is no faster


class _End:
    """One of two joined connections."""

    __slots__ = ("ended", "interest", "other", "pending", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.other: _End
        self.pending = b""  # what the other end sent and this one has not taken yet
        self.ended = False  # nothing more comes from here
        self.interest = 0  # what the selector watches it for

    @property
    def wants(self) -> int:
        reads = selectors.EVENT_READ if not self.ended and not self.other.pending else 0
        return reads | (selectors.EVENT_WRITE if self.pending else 0)


class Splicer:
    """The thread and its pairs."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._new: deque[tuple[socket.socket, socket.socket]] = deque()
        self._ends: set[_End] = set()
        self._buffer = memoryview(bytearray(_CHUNK))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pubsub-emulator-splice", daemon=True)
        self._thread.start()

    def join(self, one: socket.socket, other: socket.socket) -> None:
        """Take over two connections, and close them when they have ended."""
        self._new.append((one, other))
        self._ring()
        if self._closing.is_set():
            self._refuse()

    def close(self) -> None:
        """End every connection."""
        self._closing.set()
        self._ring()
        self._thread.join()
        self._refuse()

    def _refuse(self) -> None:
        """Close what came too late."""
        with contextlib.suppress(IndexError):
            while True:
                for each in self._new.popleft():
                    each.close()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # closed already
            self._ringer.send(b".")

    def _run(self) -> None:
        while not self._closing.is_set():
            for key, events in self._selector.select():
                end = key.data
                if end is None:
                    self._bell.recv(64)
                    self._admit()
                    continue
                try:
                    if events & selectors.EVENT_WRITE and end in self._ends:
                        self._flush(end)
                    if events & selectors.EVENT_READ and end in self._ends:
                        self._move(end)
                except OSError:
                    self._drop(end)
        for end in list(self._ends):
            self._drop(end)
        for each in (self._selector, self._bell, self._ringer):
            each.close()

    def _admit(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                one, other = (_End(each) for each in self._new.popleft())
                one.other, other.other = other, one
                for end in (one, other):
                    end.socket.setblocking(False)
                    self._ends.add(end)
                    self._watch(end)

    def _move(self, end: _End) -> None:
        """Read once, and pass on what came."""
        try:
            size = end.socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        other = end.other
        if size == 0:
            end.ended = True
            other.socket.shutdown(socket.SHUT_WR)
            self._settle(end)
            return
        try:
            sent = other.socket.send(self._buffer[:size])
        except BlockingIOError:
            sent = 0
        if sent < size:
            other.pending = bytes(self._buffer[sent:size])
            self._settle(end)

    def _flush(self, end: _End) -> None:
        """Send more of what this end has not taken yet."""
        with contextlib.suppress(BlockingIOError):
            end.pending = end.pending[end.socket.send(end.pending) :]
        if not end.pending:
            self._settle(end)

    def _settle(self, end: _End) -> None:
        """Watch both ends for what is of interest now, or let them go when there is nothing more."""
        if end.ended and end.other.ended:
            self._drop(end)
            return
        self._watch(end)
        self._watch(end.other)

    def _watch(self, end: _End) -> None:
        wants = end.wants
        if wants == end.interest:
            return
        if not wants:
            self._selector.unregister(end.socket)
        elif not end.interest:
            self._selector.register(end.socket, wants, end)
        else:
            self._selector.modify(end.socket, wants, end)
        end.interest = wants

    def _drop(self, end: _End) -> None:
        for each in (end, end.other):
            if each in self._ends:
                self._ends.discard(each)
                if each.interest:
                    self._selector.unregister(each.socket)
                with contextlib.suppress(OSError):
                    each.socket.shutdown(socket.SHUT_RDWR)
                each.socket.close()
