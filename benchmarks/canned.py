"""A Pub/Sub server that is never the bottleneck: canned StreamingPullResponse bytes, over HTTP/2 without a library.

    python benchmarks/canned.py MESSAGES          prints its port, ends with its standard input

It delivers MESSAGES messages in all, to any number of streams, each up to its own `max_outstanding_messages`, and
accepts every Acknowledge and ModifyAckDeadline. The responses are made once and sent again and again: 100-byte
payloads, 2 attributes, ack ids as long as the service's. These are 190 random characters, so that nothing compresses
better than in production.

--bytes-per-second is the most that each stream is sent, as with the service (10 MB/s). With --delay a client's data
arrives `n` seconds later, as on a network. With --rate messages are sent at a steady rate, in responses of ten
milliseconds of it. Their publish time is the time at which they were due, so the age of messages that wait here shows
it.

The service does not run on the reader's machine. A server that does takes processor time from the measurement: gRPC's
own took 0.8 us a message, this one takes 0.3. It frames ready bytes and counts received ones, and knows no more of
HTTP/2 than gRPC's C core needs (RFC 9113, and the gRPC protocol over it). Its windows are wide, so that only the client
holds back. Its frames are as large as the client accepts, like those of gRPC's own servers.
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from google.pubsub_v1 import types

PER_RESPONSE = 1000  # messages, of 100 bytes
UNLIMITED = 1e15  # bytes per second
_RESPONSE_BYTES = 2**20  # at most, of larger messages
_BURST_SECONDS = 0.05  # that a stream that was not read may catch up
_PIECE_SECONDS = 0.02  # that a limited stream sends at a time: smaller pieces take more of the processor on both sides
POOL_SIZE = 100  # different responses
SUBSCRIPTION = "projects/bench/subscriptions/canned"

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DEFAULT_FRAME_BYTES = 16384  # of payload, unless the client allows more
_MAX_WINDOW_BYTES = 2**31 - 1
_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 1, 4, 5
_POLL_SECONDS = 0.01  # between two looks at whether there is something to send
_PULL = b"/google.pubsub.v1.Subscriber/StreamingPull"
_ACKNOWLEDGE = b"/google.pubsub.v1.Subscriber/Acknowledge"
_RESPONSE = types.StreamingPullResponse.pb()
_RESPONSES_PER_SECOND = 100  # of a steady rate, at most
_UNSTAMPED_NANOS = 999_999_999  # in a publish time that is written when the response is sent


def responses(count: int = POOL_SIZE, size: int = PER_RESPONSE, payload: int = 100, seed: int = 7) -> list[bytes]:
    """Return serialized StreamingPullResponses of `size` messages each, with `payload` bytes of payload."""
    rng, published = random.Random(seed), int(time.time()) - 60
    made = []
    for number in range(count):
        message = _RESPONSE()
        for row in range(size):
            received = message.received_messages.add()
            received.ack_id = base64.urlsafe_b64encode(rng.randbytes(142)).decode()
            received.message.message_id = str(10**16 + number * size + row)
            received.message.data = rng.randbytes(payload)
            received.message.attributes["kind"] = "flight"
            received.message.attributes["origin"] = rng.choice(("JFK", "LGA", "EWR"))
            received.message.publish_time.seconds = published
            received.message.publish_time.nanos = _UNSTAMPED_NANOS
        made.append(message.SerializeToString())
    return made


class Canned:
    """The server's content: `messages` messages from `pool`, and for any other call the response in `answers`."""

    def __init__(
        self,
        messages: int,
        pool: Sequence[bytes] | None = None,
        answers: Mapping[bytes, bytes] | None = None,
        per_response: int = PER_RESPONSE,
        bytes_per_second: float = UNLIMITED,
        delay: float = 0.0,
        rate: float = 0.0,
        fit: int = 0,
    ) -> None:
        subscription = types.Subscription.pb()(name=SUBSCRIPTION, topic="projects/bench/topics/t")
        *most, last = pool or responses()
        self.pool = [_message(response) for response in most]
        [self.small_ack_id, *_] = [r.ack_id.encode() for r in _RESPONSE.FromString(last).received_messages]
        # For streams that take few messages at a time, the driver stream: known by their first ack id.
        self.small = [_message(response) for response in (self._as_small(each) for each in (last, *most))]
        self.answers = {
            _ACKNOWLEDGE: b"",
            b"/google.pubsub.v1.Subscriber/ModifyAckDeadline": b"",
            b"/google.pubsub.v1.Subscriber/GetSubscription": subscription.SerializeToString(),
            **(answers or {}),
        }
        self.requests = 0
        self.small_acknowledged = 0  # times
        self._lock = threading.Lock()
        self._left = messages // per_response
        self.per_response = per_response
        self.bytes_per_second = bytes_per_second  # of each stream
        self.delay = delay  # seconds until data of the client arrives
        self.rate = rate  # messages per second of all streams, or 0 for as fast as they are read
        self.fit = fit  # responses more than fit into the flow control, when it is nearly used up
        self._due = 0.0  # seconds since the epoch, of the next response of a steady rate
        publish_time = _RESPONSE.FromString(last).received_messages[0].message.publish_time
        self._unstamped = publish_time.SerializeToString()

    def _as_small(self, response: bytes) -> bytes:
        first = _RESPONSE.FromString(response).received_messages[0].ack_id.encode()
        return response.replace(first, self.small_ack_id)

    def take(self) -> float | None:
        """Take the next response to send and return when it is due, or None if no response is due."""
        with self._lock:
            now = time.time()
            due = (self._due or now) if self.rate else now
            if self._left <= 0 or due > now:
                return None
            self._left -= 1
            if self.rate:
                self._due = due + self.per_response / self.rate
            return due

    def stamped(self, response: bytes, due: float) -> bytes:
        """Return the response, of a steady rate with the publish time at which it was due."""
        if not self.rate:
            return response
        seconds, nanos = divmod(int(due * 1e9), 10**9)
        stamp = b"\x08" + _varint(seconds) + b"\x10" + _varint(nanos)
        return response.replace(self._unstamped, stamp)

    def serve(self) -> NoReturn:
        """Print a free port of the loopback interface and answer there, until standard input ends."""
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        sys.stdin.read()
        print(f"{self.requests} requests besides streams", file=sys.stderr)
        os._exit(0)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_Connection(self, connection).run, daemon=True).start()


@dataclass
class _Call:
    """One call of a connection: its path, its limits, its progress."""

    path: bytes
    window: int
    most: int | None = None  # messages of a StreamingPull, or None until its first request is there
    most_bytes: int = 0  # of a StreamingPull
    answered: bool = False  # whether the response headers are out
    half_closed: bool = False  # whether the client has sent all
    sent: int = 0  # responses
    acknowledged: int = 0  # of the small ones, when the call began
    request: bytearray = field(default_factory=bytearray)
    response: memoryview | None = None  # the rest of the response that is being sent
    allowance: float = 0.0  # bytes that may be sent now
    allowed_at: float = 0.0  # time.monotonic() of the last look


class _Connection:
    def __init__(self, canned: Canned, connection: socket.socket) -> None:
        self._canned = canned
        self._socket = connection
        self._calls: dict[int, _Call] = {}
        self._window = self._initial_window = 65535
        self._largest = _DEFAULT_FRAME_BYTES
        self._next_look = 0.0  # time.monotonic() of the next check of the streams for responses that they may send
        self._unacknowledged = 0  # bytes of DATA that the client has not been told we have read

    def run(self) -> None:
        with self._socket, suppress(OSError):  # the client is gone
            self._run()

    def _run(self) -> None:
        connection, buffer, filled = self._socket, bytearray(2**20), 0
        while filled < len(_PREFACE):
            filled += connection.recv_into(memoryview(buffer)[filled : len(_PREFACE)])
        # No header table: then each path comes as it is. HPACK is not needed.
        settings = struct.pack(">HIHI", _HEADER_TABLE_SIZE, 0, _INITIAL_WINDOW_SIZE, _MAX_WINDOW_BYTES)
        widen = struct.pack(">I", _MAX_WINDOW_BYTES - 65535)
        connection.sendall(_frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, widen))
        view, filled = memoryview(buffer), 0
        underway: deque[tuple[float, bytes]] = deque()  # data of the client, and when it arrives
        pause = _PIECE_SECONDS / 4 if self._canned.bytes_per_second < UNLIMITED else 0.0
        while True:
            if select.select([connection], [], [], _POLL_SECONDS)[0]:
                if self._canned.delay:
                    late = connection.recv(2**18)
                    underway.append((time.monotonic() + self._canned.delay, late))
                    count = len(late)
                else:
                    count = connection.recv_into(view[filled:])
                    filled += count
                if not count:
                    return
            while underway and underway[0][0] <= time.monotonic() and filled + len(underway[0][1]) <= len(buffer):
                _, late = underway.popleft()
                view[filled : filled + len(late)] = late
                filled += len(late)
            done = self._read(view[:filled])
            view[: filled - done] = bytes(view[done:filled])
            filled -= done
            now = time.monotonic()
            may_send = now >= self._next_look
            if may_send:
                self._next_look = now + pause
            for number, call in list(self._calls.items()):
                if call.most is not None and may_send:
                    self._send(number, call)
                if call.half_closed and call.response is None:
                    self._end(number, call)

    def _read(self, received: memoryview) -> int:
        """Process the complete frames and return the number of their bytes."""
        at = 0
        while len(received) - at >= 9:
            length = int.from_bytes(received[at : at + 3], "big")
            if len(received) - at - 9 < length:
                break
            kind, flags = received[at + 3], received[at + 4]
            number = int.from_bytes(received[at + 5 : at + 9], "big")
            self._take(kind, flags, number, received[at + 9 : at + 9 + length])
            at += 9 + length
        return at

    def _take(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        call = self._calls.get(number)
        if kind == _DATA:
            self._unacknowledged += len(payload)
            if self._unacknowledged > 2**26:
                self._socket.sendall(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged)))
                self._unacknowledged = 0
            if call is not None and call.path == _ACKNOWLEDGE:
                call.request += payload
            elif call is not None and call.path == _PULL and call.most is None:
                call.request += payload
                self._open(call)
        elif kind == _HEADERS:
            block = bytes(payload)
            path = next((path for path in (_PULL, *self._canned.answers) if path in block), b"")
            call = self._calls[number] = _Call(path, self._initial_window, acknowledged=self._canned.small_acknowledged)
        elif kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if number == 0:
                self._window += more
            elif call is not None:
                call.window += more
        elif kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW_SIZE:
                    for other in self._calls.values():
                        other.window += value - self._initial_window
                    self._initial_window = value
                elif name == _MAX_FRAME_SIZE:
                    self._largest = value
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, bytes(payload)))
        elif kind == _RST_STREAM and call is not None:
            del self._calls[number]
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM and call is not None:
            call.half_closed = True

    def _open(self, call: _Call) -> None:
        length = int.from_bytes(call.request[1:5], "big") if len(call.request) >= 5 else _MAX_WINDOW_BYTES
        if len(call.request) >= 5 + length:
            first = types.StreamingPullRequest.pb().FromString(bytes(call.request[5 : 5 + length]))
            call.most = first.max_outstanding_messages if first.max_outstanding_messages > 0 else _MAX_WINDOW_BYTES
            call.most_bytes = first.max_outstanding_bytes if first.max_outstanding_bytes > 0 else _MAX_WINDOW_BYTES

    def _end(self, number: int, call: _Call) -> None:
        """Send the response of a unary call, or the end of a stream."""
        if call.path == _ACKNOWLEDGE:
            self._canned.small_acknowledged += call.request.count(self._canned.small_ack_id)
        answer = b"" if call.answered else _frame(_HEADERS, _END_HEADERS, number, _RESPONSE_HEADERS)
        if call.path in self._canned.answers:
            answer += _frame(_DATA, 0, number, _message(self._canned.answers[call.path]))
            self._canned.requests += 1
        status = b"0" if call.path else b"12"  # UNIMPLEMENTED
        trailers = _header(b"grpc-status", status)
        self._socket.sendall(answer + _frame(_HEADERS, _END_HEADERS | _END_STREAM, number, trailers))
        del self._calls[number]

    def _send(self, number: int, call: _Call) -> None:
        """Send until the client's windows are full, its limit is reached or there are no more messages."""
        assert call.most is not None
        canned, per_response = self._canned, self._canned.per_response
        now = time.monotonic()
        burst = canned.bytes_per_second * _BURST_SECONDS
        call.allowance = min(burst, call.allowance + canned.bytes_per_second * (now - call.allowed_at))
        call.allowed_at = now
        if call.allowance < canned.bytes_per_second * _PIECE_SECONDS:
            return
        while True:
            if call.response is None:
                small = call.most <= PER_RESPONSE
                outstanding = call.sent - canned.small_acknowledged + call.acknowledged if small else call.sent
                counted = outstanding - canned.fit
                is_full = counted * per_response >= call.most or counted * len(canned.pool[0]) >= call.most_bytes
                if is_full or call.half_closed or (due := canned.take()) is None:
                    return
                if not call.answered:
                    self._socket.sendall(_frame(_HEADERS, _END_HEADERS, number, _RESPONSE_HEADERS))
                    call.answered = True
                pool = canned.small if small else canned.pool
                call.response = memoryview(canned.stamped(pool[call.sent % len(pool)], due))
                call.sent += 1
            size = int(min(len(call.response), call.window, self._window, call.allowance))
            if size <= 0:
                return
            buffers: list[bytes | memoryview] = []
            for start in range(0, size, self._largest):
                buffer = call.response[start : min(start + self._largest, size)]
                buffers += [_head(len(buffer), _DATA, 0, number), buffer]
            sent = self._socket.sendmsg(buffers)
            if sent < size + 9 * len(buffers) // 2:
                self._socket.sendall(memoryview(b"".join(buffers))[sent:])
            call.allowance -= size
            call.window -= size
            self._window -= size
            call.response = call.response[size:] if size < len(call.response) else None


def _head(length: int, kind: int, flags: int, number: int) -> bytes:
    return struct.pack(">HBBBI", length >> 8, length & 0xFF, kind, flags, number)


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return _head(len(payload), kind, flags, number) + payload


def _varint(number: int) -> bytes:
    """Return five bytes, whatever the number, so that a response keeps its length."""
    return bytes([*(number >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)), number >> 28])


def _message(content: bytes) -> bytes:
    """Return a message with gRPC's prefix: not compressed, its length."""
    return b"\0" + struct.pack(">I", len(content)) + content


def _header(name: bytes, value: bytes) -> bytes:
    """Return a header without indexing, for HPACK."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


_RESPONSE_HEADERS = b"\x88" + _header(b"content-type", b"application/grpc")  # 0x88: ":status: 200"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("messages", type=int)
    parser.add_argument("--payload", type=int, default=100)
    parser.add_argument("--bytes-per-second", type=float, default=UNLIMITED)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0, help="messages a second of all streams")
    parser.add_argument("--per-response", type=int, default=PER_RESPONSE, help="messages of a response at the most")
    parser.add_argument("--fit", type=int, default=0, help="responses more than fit into the flow control; -1: fewer")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    each = max(1, min(given.per_response, _RESPONSE_BYTES // given.payload))
    if given.rate:
        each = max(1, min(each, int(given.rate / _RESPONSES_PER_SECOND)))
    count = max(2, min(POOL_SIZE, POOL_SIZE * PER_RESPONSE // each // max(1, given.payload // 100)))
    pool = responses(count if given.rate else max(2, POOL_SIZE * each // PER_RESPONSE), each, given.payload, given.seed)
    Canned(given.messages, pool, None, each, given.bytes_per_second, given.delay, given.rate, given.fit).serve()
