"""Protobuf bytes of the hot calls, put together and taken apart without a proto object per message.

Pure. A published message is kept as the bytes it will be delivered in: field `message` of a ReceivedMessage, complete
with message id and publish time. Each delivery then is a join of pieces: a head of known length, the ack id's digits,
those bytes. Field numbers and wire types are those of google/pubsub/v1/pubsub.proto.

An ack id is 190 characters, as in the service: a head that names the subscription and 16 hexadecimal digits that number
the delivery. Clients see an opaque text; we see at once whether it is ours.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

ACK_ID_LENGTH = 190
_DIGITS = 16
_HEAD_LENGTH = ACK_ID_LENGTH - _DIGITS
_DIGITS_ONLY = re.compile(r"[0-9a-f]{16}")

# tag = field number << 3 | wire type (0 varint, 2 bytes)
_TOPIC = 0x0A  # PublishRequest.topic = 1
_PUBLISHED = 0x12  # PublishRequest.messages = 2
_DATA = 0x0A  # PubsubMessage.data = 1
_ATTRIBUTES = b"\x12"  # PubsubMessage.attributes = 2
_MESSAGE_ID = b"\x1a"  # PubsubMessage.message_id = 3
_PUBLISH_TIME = b"\x22"  # PubsubMessage.publish_time = 4
_MESSAGE_IDS = b"\x0a"  # PublishResponse.message_ids = 1
_RECEIVED_MESSAGES = b"\x0a"  # StreamingPullResponse.received_messages = 1, PullResponse.received_messages = 1
_ACK_ID = b"\x0a"  # ReceivedMessage.ack_id = 1
_MESSAGE = b"\x12"  # ReceivedMessage.message = 2
_DELIVERY_ATTEMPT = b"\x18"  # ReceivedMessage.delivery_attempt = 3


def varint(value: int) -> bytes:
    """A non-negative integer as protobuf writes it: seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(tag: bytes, value: bytes) -> bytes:
    return tag + varint(len(value)) + value


def attribute_fields(attributes: Mapping[str, str]) -> bytes:
    """Entries of PubsubMessage.attributes; appended to a message they join, or replace, those it has."""
    return b"".join(
        _field(_ATTRIBUTES, _field(b"\x0a", key.encode()) + _field(b"\x12", value.encode()))
        for key, value in attributes.items()
    )


def publish_time_field(published: float) -> bytes:
    """PubsubMessage.publish_time; both parts are written even when zero, so that they replace a publisher's own."""
    milliseconds = round(published * 1000)
    seconds, rest = divmod(milliseconds, 1000)
    return _field(_PUBLISH_TIME, b"\x08" + varint(seconds) + b"\x10" + varint(rest * 1_000_000))


def message_frames(bodies: Sequence[bytes], first_id: int, publish_time: bytes) -> list[bytes]:
    """Each body as field `message` of a ReceivedMessage, ids counted up from `first_id`."""
    id_tag = _MESSAGE_ID + varint(len(str(first_id)))
    extra = len(id_tag) + len(str(first_id)) + len(publish_time)
    frame = b"%%b%%b%b%%d%b" % (id_tag.replace(b"%", b"%%"), publish_time.replace(b"%", b"%%"))
    heads = {size: _MESSAGE + varint(size + extra) for size in set(map(len, bodies))}
    return [frame % (heads[len(body)], body, number) for number, body in enumerate(bodies, first_id)]


def publish_response(ids: Sequence[int]) -> bytes:
    """A PublishResponse."""
    one = _MESSAGE_IDS + varint(len(str(ids[0]))) + b"%d"
    return b"".join(map(one.__mod__, ids))


def is_data_alone(body: bytes) -> bool:
    """Whether a serialized PubsubMessage has data and nothing else; may say no for data of 16 KiB and more."""
    size = len(body)
    if size < 3 or body[0] != _DATA:
        return False
    length = body[1]
    return length + 2 == size if length < 0x80 else (length & 0x7F | body[2] << 7) + 3 == size and body[2] < 0x80


def bodies_of_data_alone(raw: bytes) -> list[bytes] | None:
    """The messages of a well-formed PublishRequest; None unless each is data alone, the form that has no rules."""
    bodies = []
    at, end = 0, len(raw)
    while at < end:
        tag, size, at = raw[at], raw[at + 1], at + 2
        if size >= 0x80:
            size, at = _read_varint(raw, at - 1)
        if tag == _PUBLISHED:
            body = raw[at : at + size]
            if not is_data_alone(body):
                return None
            bodies.append(body)
        elif tag != _TOPIC:
            return None
        at += size
    return bodies


def message_body(frame: bytes) -> bytes:
    """The serialized PubsubMessage inside a frame."""
    start = 1
    while frame[start] & 0x80:
        start += 1
    return frame[start + 1 :]


def fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message (strings, bytes, messages) as (field number, value), in wire order."""
    at, end = 0, len(body)
    while at < end:
        tag, at = _read_varint(body, at)
        wire_type = tag & 7
        if wire_type == 2:
            size, at = _read_varint(body, at)
            yield tag >> 3, body[at : at + size]
            at += size
        elif wire_type == 0:
            _, at = _read_varint(body, at)
        else:
            at += {1: 8, 5: 4}[wire_type]


def attributes(body: bytes) -> dict[str, str]:
    """The attributes of a serialized PubsubMessage."""
    found = {}
    for number, entry in fields(body):
        if number == 2:
            pair = dict(fields(entry))
            found[pair.get(1, b"").decode()] = pair.get(2, b"").decode()
    return found


def data(body: bytes) -> bytes:
    """The data of a serialized PubsubMessage."""
    return next((value for number, value in fields(body) if number == 1), b"")


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


class AckIds:
    """The ack ids of one subscription: numbers to texts and back."""

    def __init__(self, subscription: str) -> None:
        digest = hashlib.shake_256(subscription.encode()).digest(_HEAD_LENGTH * 3 // 4 + 1)
        self._head = base64.urlsafe_b64encode(digest).decode()[:_HEAD_LENGTH]
        self._field = _field(_ACK_ID, b"%b%016x" % (self._head.encode(), 0))[:-_DIGITS]
        self._openings: dict[int, bytes] = {}

    def text(self, number: int) -> str:
        return f"{self._head}{number:016x}"

    def numbers(self, ack_ids: Sequence[str]) -> tuple[int, ...]:
        """The numbers behind the texts; ValueError carries the first text that is none of ours."""
        head = self._head
        digits = "".join([each[_HEAD_LENGTH:] for each in ack_ids if each.startswith(head)])
        if len(digits) == _DIGITS * len(ack_ids):
            with contextlib.suppress(ValueError, struct.error):
                return struct.unpack(f">{len(ack_ids)}Q", bytes.fromhex(digits))
        raise ValueError(next((each for each in ack_ids if not self._is_ours(each)), ""))

    def _is_ours(self, ack_id: str) -> bool:
        return ack_id.startswith(self._head) and _DIGITS_ONLY.fullmatch(ack_id, _HEAD_LENGTH) is not None

    def received(self, deliveries: Iterable[tuple[int, bytes, int]]) -> bytes:
        """`received_messages` of a PullResponse or StreamingPullResponse, from (number, frame, attempt)s."""
        pieces: list[bytes] = []
        openings = self._openings
        for number, frame, attempt in deliveries:
            size = len(frame)
            if attempt:
                frame = b"%b%b%b" % (frame, _DELIVERY_ATTEMPT, varint(attempt))
                size = len(frame)
            opening = openings.get(size)
            if opening is None:
                if len(openings) > 4096:
                    openings.clear()
                body = len(self._field) + _DIGITS + size
                opening = openings[size] = _RECEIVED_MESSAGES + varint(body) + self._field
            pieces.append(b"%b%016x%b" % (opening, number, frame))
        return b"".join(pieces)
