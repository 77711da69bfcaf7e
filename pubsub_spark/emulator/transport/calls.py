"""gRPC over HTTP/2: what a call says in its headers and bodies, and what its end looks like.

Pure, but for the threads that may wait for a call's end. A request or response is a message with five bytes before it:
whether it is compressed, and its length. A call ends with trailers: a status, a sentence, and for some a detail.
See https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from pubsub_spark.emulator.api.errors import NUMBERS, RpcError, invalid, unimplemented
from pubsub_spark.emulator.transport.http2 import Headers, header_block

LARGEST_MESSAGE = 64 * 1024 * 1024  # bytes; Publish is refused at 10 MB by its handler, with the service's sentence
Metadata = tuple[tuple[str, str | bytes], ...]

_PREFIX = struct.Struct(">BL")
_CONTENT_TYPE = re.compile(rb"application/grpc(\+proto)?(;.*)?")
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST_WAIT = 365 * 86_400.0  # a client may name 11,000 years, for which no thread can wait
_INFLATES = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}
_NOT_METADATA = frozenset({b"te", b"content-type"})
_UNSAFE = re.compile(rb"[^ -$&-~]")  # in a sentence that travels as a header
# An error travels in the trailers, of which clients take 8 KB, and there a byte that is not ASCII is three.
_SENTENCE_BYTES = 1000
_DOMAIN = "pubsub.googleapis.com"

_OK = b"\x88"  # `:status: 200`, of HPACK's static table
HEADERS = _OK + header_block([(b"content-type", b"application/grpc")])
GOOD_END = header_block([(b"grpc-status", b"0")])


class Caller:
    """Who asks: with what metadata, from where, until when; and whether somebody still waits for the answer."""

    def __init__(self, metadata: Metadata = (), peer: str = "", deadline: float | None = None) -> None:
        self.metadata = metadata
        self.peer = peer
        self._deadline = deadline  # of the monotonic clock
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] | None = []  # None once the call is over

    def time_remaining(self) -> float | None:
        """Seconds until nobody waits any more; None when that is not known."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def is_active(self) -> bool:
        return self._callbacks is not None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have `callback` called when the call is over; False when it is."""
        with self._lock:
            if self._callbacks is None:
                return False
            self._callbacks.append(callback)
            return True

    def end(self) -> None:
        """The call is over, for whatever reason."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks or [], None
        for each in callbacks:
            each()


class Opening(NamedTuple):
    """What a call's headers say."""

    path: str
    metadata: Metadata
    seconds: float | None  # the client waits so long
    encoding: bytes  # of compressed messages


class NotGrpcError(Exception):
    """Headers that are no call's; the answer is an HTTP status."""

    def __init__(self, status: bytes) -> None:
        super().__init__(status)
        self.block = header_block([(b":status", status)])


def opening(headers: Headers) -> Opening:
    """The call behind the headers of a stream; NotGrpcError or a RpcError when there is none."""
    known = dict(headers)
    if known.get(b":method") != b"POST":
        raise NotGrpcError(b"405")
    if not _CONTENT_TYPE.fullmatch(known.get(b"content-type", b"")):
        raise NotGrpcError(b"415")
    encoding = known.get(b"grpc-encoding", b"identity")
    if encoding != b"identity" and encoding not in _INFLATES:
        raise unimplemented(f"Messages compressed with `{encoding.decode(errors='replace')}` cannot be read.")
    seconds = None
    if b"grpc-timeout" in known:
        timeout = _TIMEOUT.fullmatch(known[b"grpc-timeout"])
        if timeout is None:
            raise invalid(f"Invalid grpc-timeout `{known[b'grpc-timeout'].decode(errors='replace')}`.")
        seconds = min(int(timeout[1]) * _SECONDS[timeout[2]], _LONGEST_WAIT)
    path = known.get(b":path", b"").decode(errors="replace")
    return Opening(path, tuple(_metadata(headers)), seconds, encoding)


def _metadata(headers: Headers) -> Iterator[tuple[str, str | bytes]]:
    for name, value in headers:
        if name.startswith((b":", b"grpc-")) or name in _NOT_METADATA:
            continue
        if not name.endswith(b"-bin"):
            yield name.decode(errors="replace"), value.decode(errors="replace")
            continue
        for each in value.split(b","):
            try:
                yield name.decode(errors="replace"), base64.b64decode(each + b"=" * (-len(each) % 4))
            except binascii.Error:
                raise invalid(f"Invalid base64 in the metadata `{name.decode(errors='replace')}`.") from None


class Messages:
    """The messages in a call's body, which comes in pieces."""

    def __init__(self, encoding: bytes) -> None:
        self._encoding = encoding
        self._inbox = bytearray()

    def take(self, data: bytes) -> Iterator[bytes]:
        """Those that are complete with this piece; a RpcError for one that cannot be read."""
        inbox = self._inbox
        if not inbox and _is_whole(data):
            yield self._inflated(data[_PREFIX.size :]) if data[0] else data[_PREFIX.size :]
            return
        inbox += data
        at = 0
        while len(inbox) - at >= _PREFIX.size:
            compressed, size = _PREFIX.unpack_from(inbox, at)
            if size > LARGEST_MESSAGE:
                raise _too_large(size)
            end = at + _PREFIX.size + size
            if end > len(inbox):
                break
            with memoryview(inbox) as view:
                message = bytes(view[at + _PREFIX.size : end])
            at = end
            yield self._inflated(message) if compressed else message
        del inbox[:at]

    @property
    def rest(self) -> bool:
        """Whether a message has begun that is not complete."""
        return bool(self._inbox)

    def _inflated(self, message: bytes) -> bytes:
        if self._encoding not in _INFLATES:
            raise invalid("A message is compressed, and the call's headers do not say how.")
        try:
            whole = inflated(message, _INFLATES[self._encoding], LARGEST_MESSAGE)
        except ValueError as error:
            raise invalid(f"A message cannot be decompressed: {error}.") from None
        if len(whole) > LARGEST_MESSAGE:
            raise _too_large(len(whole))
        return whole


def inflated(data: bytes, window_bits: int, most: int) -> bytes:
    """What zlib compressed; one byte more than `most` when it is larger, ValueError when it cannot be read."""
    inflater = zlib.decompressobj(window_bits)
    try:
        whole = inflater.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not inflater.eof and len(whole) <= most:
        raise ValueError("it breaks off")
    return whole


def _is_whole(data: bytes) -> bool:
    """Whether a piece is exactly one message, as most are."""
    return len(data) >= _PREFIX.size and _PREFIX.unpack_from(data)[1] == len(data) - _PREFIX.size <= LARGEST_MESSAGE


def _too_large(size: int) -> RpcError:
    return RpcError("RESOURCE_EXHAUSTED", f"A message of {size} bytes is larger than {LARGEST_MESSAGE}.")


def prefix(message: bytes) -> bytes:
    """What goes before a message."""
    return _PREFIX.pack(0, len(message))


def sentence(error: RpcError) -> str:
    """What an error says, cut to what clients take."""
    whole = error.message.encode()
    if len(whole) <= _SENTENCE_BYTES:
        return error.message
    return f"{whole[:_SENTENCE_BYTES].decode(errors='ignore')}..."


def details(error: RpcError) -> bytes:
    """An error with a reason, as a serialized google.rpc.Status; empty for one without."""
    if not error.reason:
        return b""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN, metadata=error.metadata))
    status = status_pb2.Status(code=NUMBERS[error.code], message=sentence(error), details=[detail])
    raw: bytes = status.SerializeToString()
    return raw


def bad_end(error: RpcError) -> bytes:
    """The trailers of a call that is refused."""
    text = _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], sentence(error).encode())
    trailers = [(b"grpc-status", b"%d" % NUMBERS[error.code]), (b"grpc-message", text)]
    if detail := details(error):
        trailers.append((b"grpc-status-details-bin", base64.b64encode(detail).rstrip(b"=")))
    return header_block(trailers)
