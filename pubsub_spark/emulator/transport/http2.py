"""HTTP/2, a server's side of one connection (RFC 9113). Pure: bytes in, events out, and bytes to be sent when asked.

`receive` takes what the client sent and says what happened: a stream was opened, a piece of its body came, its client
has said everything, it was given up. `send_headers`, `send_body` and `send_trailers` queue an answer, and `take` gives
the bytes that may be written now: of bodies only as much as the client's windows have room for, the streams in turn.
So this object knows at any moment how much of an answer has left.

The rules kept here are those of frames, streams, settings and flow control. Who breaks one of a stream loses the
stream, who breaks one of the connection loses that: `broken` is set, and `take` ends with a GOAWAY that says why. What
the headers mean is not known here. Header compression is the library `hpack`'s; we send headers uncompressed.

Windows: what a client sends is handed on at once, so ours are wide, and are widened again when they are half full.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

import hpack

from pubsub_spark.emulator.state.wire_format import varint

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_FRAME = 1 << 20  # bytes of a frame that we take; few large ones are read faster than many small ones
_LARGEST_HEADERS = 1 << 16  # bytes, compressed or not
_MOST_KNOWN = 256  # header blocks whose meaning is remembered
_LARGEST_WINDOW = 2**31 - 1
_FIRST_WINDOW = 2**16 - 1  # of a connection, and of a stream when settings do not say otherwise
_CONNECTION_WINDOW = 1 << 30
_STREAM_WINDOW = 1 << 24
_NO_TABLE = b"\x20"  # our headers use a table of 0 bytes (RFC 7541, 6.3)
_FIRST_FRAME = 1 << 14  # the largest frame that a client takes when its settings do not say otherwise
_HEAD = struct.Struct(">HBBBL")  # length (16 and 8 bits), type, flags, stream
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")


class Frame(IntEnum):
    """Types of frames (section 6)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntFlag):
    """What a frame's flags say; ACK is of SETTINGS and PING, END_STREAM of DATA and HEADERS."""

    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(IntEnum):
    """Parameters of SETTINGS (section 6.5.2) that concern us."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Error(IntEnum):
    """Error codes (section 7) that we send."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


Headers = list[tuple[bytes, bytes]]


class Opened(NamedTuple):
    """A client opened a stream."""

    stream: int
    headers: Headers


class Body(NamedTuple):
    """A piece of a stream's body."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The client has said everything on a stream."""

    stream: int


class Reset(NamedTuple):
    """A stream is over before its answer was: the client gave it up, or broke a rule."""

    stream: int


Event = Opened | Body | Ended | Reset

# How many bytes a frame has, where that is fixed.
_LENGTHS = {Frame.PRIORITY: 5, Frame.RST_STREAM: 4, Frame.PING: 8, Frame.WINDOW_UPDATE: 4}
_OF_STREAMS = {Frame.DATA, Frame.HEADERS, Frame.PRIORITY, Frame.RST_STREAM, Frame.CONTINUATION}
_OF_THE_CONNECTION = {Frame.SETTINGS, Frame.PING, Frame.GOAWAY}


class _Broken(Exception):  # noqa: N818 - a way out of `receive`; nobody else sees it
    """The client broke a rule of the connection."""

    def __init__(self, error: Error, why: str) -> None:
        super().__init__(why)
        self.error = error


class _Stream:
    """One stream that is open in one direction at least."""

    __slots__ = ("begun", "credit", "ended", "pending", "trailers", "window")

    def __init__(self, window: int) -> None:
        self.window = window  # bytes of body that the client takes
        self.credit = 0  # bytes of body that we took since we last said so
        self.ended = False  # the client has said everything
        self.begun = False  # the answer has
        self.pending: deque[memoryview] = deque()  # of the answer's body
        self.trailers: bytes | None = None  # the answer's end, once it is known


class Connection:
    """The state of one connection."""

    def __init__(self) -> None:
        self.broken = ""  # why the connection has to end; empty as long as it goes on
        self._decoder = hpack.Decoder(max_header_list_size=_LARGEST_HEADERS)
        self._known: dict[bytes, Headers] = {}  # header blocks that mean the same as long as the table does not change
        self._inbox = bytearray()
        self._greeted = self._settled = False  # the preface has come, and the first SETTINGS
        self._streams: dict[int, _Stream] = {}
        self._last = 0  # the highest stream that a client opened
        self._block = bytearray()  # a header block that is not complete
        self._continued = 0  # its stream
        self._block_ends_stream = False
        self._window = _FIRST_WINDOW  # bytes of bodies that the client takes on all streams
        self._stream_window = _FIRST_WINDOW  # and on a new one
        self._largest_frame = _FIRST_FRAME
        self._credit = 0  # bytes of bodies that we took since we last said so
        self._closing = False
        self._table = b""  # what the next header block has to say of our table
        self._writing: deque[int] = deque()  # streams with a body to send
        self._out: list[bytes | memoryview] = []
        self._frame(
            Frame.SETTINGS,
            0,
            0,
            b"".join(
                _SETTING.pack(*each)
                for each in (
                    (Setting.INITIAL_WINDOW_SIZE, _STREAM_WINDOW),
                    (Setting.MAX_FRAME_SIZE, LARGEST_FRAME),
                    (Setting.MAX_HEADER_LIST_SIZE, _LARGEST_HEADERS),
                )
            ),
        )
        self._frame(Frame.WINDOW_UPDATE, 0, 0, _NUMBER.pack(_CONNECTION_WINDOW - _FIRST_WINDOW))

    # What comes in

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """What happened, in order."""
        events: list[Event] = []
        if self.broken:
            return events
        inbox = self._inbox
        inbox += data
        at = 0
        try:
            if not self._greeted:
                if not PREFACE.startswith(inbox[: len(PREFACE)]):
                    raise _Broken(Error.PROTOCOL_ERROR, "The connection does not begin like one of HTTP/2.")
                if len(inbox) < len(PREFACE):
                    return events
                self._greeted, at = True, len(PREFACE)
            while len(inbox) - at >= _HEAD.size:
                high, low, kind, flags, stream = _HEAD.unpack_from(inbox, at)
                size = high << 8 | low
                if size > LARGEST_FRAME:
                    raise _Broken(Error.FRAME_SIZE_ERROR, "A frame is larger than our settings allow.")
                end = at + _HEAD.size + size
                if end > len(inbox):
                    break
                with memoryview(inbox) as view:
                    payload = bytes(view[at + _HEAD.size : end])
                at = end
                self._take(kind, flags, stream & _LARGEST_WINDOW, payload, events)
        except _Broken as broken:
            self.close(broken.error, str(broken))
            self.broken = str(broken)
        del inbox[:at]
        self._pump()
        return events

    def _take(self, kind: int, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        """One frame."""
        if self._continued and (kind != Frame.CONTINUATION or stream != self._continued):
            raise _Broken(Error.PROTOCOL_ERROR, "A header block is interrupted by another frame.")
        if not self._settled and kind != Frame.SETTINGS:
            raise _Broken(Error.PROTOCOL_ERROR, "The first frame is not SETTINGS.")
        if (kind in _OF_STREAMS and not stream) or (kind in _OF_THE_CONNECTION and stream):
            raise _Broken(Error.PROTOCOL_ERROR, f"A frame of type {kind} belongs on no stream {stream}.")
        if kind in _LENGTHS and len(payload) != _LENGTHS[Frame(kind)]:
            raise _Broken(Error.FRAME_SIZE_ERROR, f"A frame of type {kind} has {len(payload)} bytes.")
        if kind == Frame.DATA:
            self._take_data(flags, stream, payload, events)
        elif kind == Frame.WINDOW_UPDATE:
            self._take_window(stream, _NUMBER.unpack(payload)[0] & _LARGEST_WINDOW, events)
        elif kind == Frame.HEADERS:
            self._take_headers(flags, stream, payload, events)
        elif kind == Frame.CONTINUATION:
            self._take_continuation(flags, stream, payload, events)
        elif kind == Frame.RST_STREAM:
            if stream > self._last:
                raise _Broken(Error.PROTOCOL_ERROR, "A stream is given up that was never opened.")
            if self._streams.pop(stream, None) is not None:
                events.append(Reset(stream))
        elif kind == Frame.SETTINGS:
            self._take_settings(flags, payload)
        elif kind == Frame.PING:
            if not flags & Flag.ACK:
                self._frame(Frame.PING, Flag.ACK, 0, payload)
        elif kind == Frame.PUSH_PROMISE:
            raise _Broken(Error.PROTOCOL_ERROR, "A client promises nothing.")
        # PRIORITY is advice that RFC 9113 deprecates; GOAWAY says that no stream will be opened; others are extensions.

    def _take_data(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if number > self._last:
            raise _Broken(Error.PROTOCOL_ERROR, "A body comes on a stream that was never opened.")
        self._credit += len(payload)
        if self._credit > _CONNECTION_WINDOW:
            raise _Broken(Error.FLOW_CONTROL_ERROR, "More came than the connection's window has room for.")
        if self._credit > _CONNECTION_WINDOW // 2:
            self._frame(Frame.WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._credit))
            self._credit = 0
        stream = self._streams.get(number)
        if stream is None:
            return  # it was over before the client knew
        if stream.ended:
            self._break_stream(number, Error.STREAM_CLOSED, events)
            return
        stream.credit += len(payload)
        if stream.credit > _STREAM_WINDOW:
            self._break_stream(number, Error.FLOW_CONTROL_ERROR, events)
            return
        if stream.credit > _STREAM_WINDOW // 2 and not flags & Flag.END_STREAM:
            self._frame(Frame.WINDOW_UPDATE, 0, number, _NUMBER.pack(stream.credit))
            stream.credit = 0
        data = _without_padding(payload) if flags & Flag.PADDED else payload
        if data:
            events.append(Body(number, data))
        if flags & Flag.END_STREAM:
            self._end(number, stream, events)

    def _take_window(self, number: int, more: int, events: list[Event]) -> None:
        if not number:
            self._window += more
            if not more or self._window > _LARGEST_WINDOW:
                raise _Broken(Error.FLOW_CONTROL_ERROR, f"The connection's window cannot be {self._window}.")
            return
        if number > self._last:
            raise _Broken(Error.PROTOCOL_ERROR, "A window is widened of a stream that was never opened.")
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.window += more
        if not more or stream.window > _LARGEST_WINDOW:
            self._break_stream(number, Error.FLOW_CONTROL_ERROR if more else Error.PROTOCOL_ERROR, events)

    def _take_headers(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if flags & Flag.PADDED:
            payload = _without_padding(payload)
        if flags & Flag.PRIORITY:
            if len(payload) < 5:
                raise _Broken(Error.FRAME_SIZE_ERROR, "A HEADERS frame is too short for its priority.")
            payload = payload[5:]
        if not number % 2:
            raise _Broken(Error.PROTOCOL_ERROR, "A client's streams have odd numbers.")
        self._block_ends_stream = bool(flags & Flag.END_STREAM)
        self._take_block(flags, number, payload, events)

    def _take_continuation(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if not self._continued:
            raise _Broken(Error.PROTOCOL_ERROR, "A CONTINUATION continues nothing.")
        self._take_block(flags, number, payload, events)

    def _take_block(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Headers that are complete with this, or not yet."""
        self._block += payload
        if len(self._block) > _LARGEST_HEADERS:
            raise _Broken(Error.ENHANCE_YOUR_CALM, f"The headers of a stream have more than {_LARGEST_HEADERS} bytes.")
        if not flags & Flag.END_HEADERS:
            self._continued = number
            return
        block, self._block, self._continued = bytes(self._block), bytearray(), 0
        headers = self._decoded(block)
        stream = self._streams.get(number)
        if stream is not None:  # trailers
            if stream.ended:
                self._break_stream(number, Error.STREAM_CLOSED, events)
            elif not self._block_ends_stream:
                self._break_stream(number, Error.PROTOCOL_ERROR, events)
            else:
                self._end(number, stream, events)
            return
        if number <= self._last:
            return  # trailers of a stream that was over before the client knew
        self._last = number
        if self._closing:
            self._reset(number, Error.REFUSED_STREAM)
            return
        stream = self._streams[number] = _Stream(self._stream_window)
        events.append(Opened(number, headers))
        if self._block_ends_stream:
            self._end(number, stream, events)

    def _decoded(self, block: bytes) -> Headers:
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            headers: Headers = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except hpack.OversizedHeaderListError as error:
            raise _Broken(Error.ENHANCE_YOUR_CALM, f"The headers of a stream are too large: {error}") from None
        except hpack.HPACKError as error:
            raise _Broken(Error.COMPRESSION_ERROR, f"The headers of a stream cannot be read: {error}") from None
        # Nothing but references to the table (RFC 7541, 6.1) leaves that as it is.
        if not block or min(block) < 0x80 or len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        else:
            self._known[block] = headers
        return headers

    def _take_settings(self, flags: int, payload: bytes) -> None:
        self._settled = True
        if flags & Flag.ACK:
            if payload:
                raise _Broken(Error.FRAME_SIZE_ERROR, "An acknowledgement of settings has settings.")
            return
        if len(payload) % _SETTING.size:
            raise _Broken(Error.FRAME_SIZE_ERROR, "Settings have six bytes each.")
        for name, value in _SETTING.iter_unpack(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                if value > _LARGEST_WINDOW:
                    raise _Broken(Error.FLOW_CONTROL_ERROR, f"A window cannot be {value}.")
                for stream in self._streams.values():
                    stream.window += value - self._stream_window
                    if stream.window > _LARGEST_WINDOW:
                        raise _Broken(Error.FLOW_CONTROL_ERROR, f"A window cannot be {stream.window}.")
                self._stream_window = value
            elif name == Setting.MAX_FRAME_SIZE:
                if not _FIRST_FRAME <= value < 1 << 24:
                    raise _Broken(Error.PROTOCOL_ERROR, f"Frames cannot be limited to {value} bytes.")
                self._largest_frame = value
            elif name == Setting.HEADER_TABLE_SIZE:
                self._table = _NO_TABLE  # we use none; who made it smaller wants to be told (RFC 7541, 4.2)
            elif name == Setting.ENABLE_PUSH and value > 1:
                raise _Broken(Error.PROTOCOL_ERROR, f"ENABLE_PUSH is 0 or 1, got {value}.")
        self._frame(Frame.SETTINGS, Flag.ACK, 0, b"")

    def _end(self, number: int, stream: _Stream, events: list[Event]) -> None:
        stream.ended = True
        events.append(Ended(number))

    def _break_stream(self, number: int, error: Error, events: list[Event]) -> None:
        del self._streams[number]  # what is left of its answer is not sent
        self._reset(number, error)
        events.append(Reset(number))

    # What goes out

    def is_open(self, stream: int) -> bool:
        """Whether an answer to the stream can still be sent, or is being sent."""
        return stream in self._streams

    def send_headers(self, stream: int, block: bytes) -> None:
        """Begin the answer, once."""
        known = self._streams.get(stream)
        if known is not None and not known.begun:
            known.begun = True
            self._headers(stream, block, 0)

    def send_body(self, stream: int, *pieces: bytes) -> Sequence[memoryview]:
        """More of the answer's body; what of it is still here, now and whenever one looks again."""
        views = deque(memoryview(each) for each in pieces if each)
        known = self._streams.get(stream)
        if known is None or known.trailers is not None:
            return views
        if not known.pending:
            self._writing.append(stream)
        known.pending.extend(views)
        self._pump()
        return known.pending

    def send_trailers(self, stream: int, block: bytes, headers: bytes = b"") -> None:
        """The answer's end, behind its body; with it the headers of an answer that has no body."""
        known = self._streams.get(stream)
        if known is None or known.trailers is not None:
            return
        known.trailers = block if known.begun else headers + block
        if not known.pending:
            self._finish(stream, known)

    def close(self, error: Error = Error.NO_ERROR, why: str = "") -> None:
        """Take no more streams; those that are open go on."""
        if not self._closing:
            self._closing = True
            self._frame(Frame.GOAWAY, 0, 0, _NUMBER.pack(self._last) + _NUMBER.pack(error) + why.encode())

    def take(self) -> bytes:
        """What is to be written now."""
        out, self._out = self._out, []
        return b"".join(out)

    def _pump(self) -> None:
        """Queue as much of the bodies as the client has room for, one stream after the other."""
        for _ in range(len(self._writing)):
            if self._window <= 0:
                return
            number = self._writing.popleft()
            stream = self._streams.get(number)
            if stream is None:
                continue
            self._send_some(number, stream)
            if stream.pending:
                self._writing.append(number)
            elif stream.trailers is not None:
                self._finish(number, stream)

    def _send_some(self, number: int, stream: _Stream) -> None:
        pending = stream.pending
        while pending and (room := min(self._window, stream.window, self._largest_frame)) > 0:
            pieces, size = [], 0
            while pending and size < room:
                piece = pending.popleft()
                if len(piece) > room - size:
                    pending.appendleft(piece[room - size :])
                    piece = piece[: room - size]
                pieces.append(piece)
                size += len(piece)
            self._out.append(_HEAD.pack(size >> 8, size & 0xFF, Frame.DATA, 0, number))
            self._out += pieces
            self._window -= size
            stream.window -= size

    def _finish(self, number: int, stream: _Stream) -> None:
        assert stream.trailers is not None
        self._headers(number, stream.trailers, Flag.END_STREAM)
        if not stream.ended:
            self._reset(number, Error.NO_ERROR)
        del self._streams[number]

    def _reset(self, number: int, error: Error) -> None:
        self._frame(Frame.RST_STREAM, 0, number, _NUMBER.pack(error))

    def _headers(self, number: int, block: bytes, flags: int) -> None:
        block, self._table = self._table + block, b""
        kind, most = Frame.HEADERS, self._largest_frame
        while len(block) > most:
            self._frame(kind, flags, number, block[:most])
            kind, flags, block = Frame.CONTINUATION, 0, block[most:]
        self._frame(kind, flags | Flag.END_HEADERS, number, block)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._out.append(_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload)


def header_block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as literals that no table remembers (RFC 7541, 6.2.2)."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in headers)


def _string(text: bytes) -> bytes:
    """A length, seven bits of it in the first byte, and the bytes as they are (RFC 7541, 5.1 and 5.2)."""
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    return b"\x7f" + varint(size - 0x7F) + text


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _Broken(Error.PROTOCOL_ERROR, "A frame has more padding than bytes.")
    return payload[1 : len(payload) - payload[0]]
