"""Protobuf bytes of the hot calls, put together and taken apart without a proto object per message.

A published message is kept as the bytes that will be delivered: field `message` of a ReceivedMessage. Each delivery
then is a join of a head of known length, the ack id's digits, and those bytes.

An ack id is 164 characters, fewer than in the service: a head that names the subscription and 16 hexadecimal digits
that number the delivery.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat

ACK_ID_LENGTH = 164  # Node's client packs 3,000 into a request and forgets the framing
_DIGITS = 16
_HEAD_LENGTH = ACK_ID_LENGTH - _DIGITS
SPAN = 4096  # numbers from one batch of deliveries to the next. A batch has at most a quarter of them
_LAST_DIGITS = [b"%03x" % number for number in range(SPAN)]  # of an ack id. The other digits are the batch's
_THOUSAND = [b"%03d" % number for number in range(1000)]
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
_ACK_IDS = b"\x12"  # AcknowledgeRequest.ack_ids = 2, StreamingPullRequest.ack_ids = 2
_SUBSCRIPTION = 0x0A  # AcknowledgeRequest.subscription = 1
_MESSAGE = b"\x12"  # ReceivedMessage.message = 2
_DELIVERY_ATTEMPT = b"\x18"  # ReceivedMessage.delivery_attempt = 3


def varint(value: int) -> bytes:
    """Return protobuf's encoding of a non-negative integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(tag: bytes, value: bytes) -> bytes:
    return tag + varint(len(value)) + value


def attribute_fields(attributes: Mapping[str, str]) -> bytes:
    """Return entries of PubsubMessage.attributes. Appended to a message, they join or replace the existing ones."""
    return b"".join(
        _field(_ATTRIBUTES, _field(b"\x0a", key.encode()) + _field(b"\x12", value.encode()))
        for key, value in attributes.items()
    )


def publish_time_field(published: float) -> bytes:
    """Return PubsubMessage.publish_time. Both parts are written even if zero, to replace those of a publisher."""
    milliseconds = round(published * 1000)
    seconds, remainder = divmod(milliseconds, 1000)
    return _field(_PUBLISH_TIME, b"\x08" + varint(seconds) + b"\x10" + varint(remainder * 1_000_000))


def message_frames(bodies: Sequence[bytes], first_id: int, publish_time: bytes) -> list[bytes]:
    """Return each body as field `message` of a ReceivedMessage, with ids counted up from `first_id`."""
    ids = _decimals(range(first_id, first_id + len(bodies)))
    id_tag = _MESSAGE_ID + varint(len(ids[0]))
    extra = len(id_tag) + len(ids[0]) + len(publish_time)
    sizes = list(map(len, bodies))
    heads = {size: _MESSAGE + varint(size + extra) for size in set(sizes)}
    parts = zip(map(heads.__getitem__, sizes), bodies, repeat(id_tag), ids, repeat(publish_time))
    return list(map(b"".join, parts))


def publish_response(ids: range) -> bytes:
    parts = [_MESSAGE_IDS + varint(len(str(ids.start)))] * (2 * len(ids))
    parts[1::2] = _decimals(ids)
    return b"".join(parts)


@lru_cache(maxsize=1)  # a Publish needs them twice
def _decimals(numbers: range) -> list[bytes]:
    """A thousand numbers share all but three digits. They have at least four."""
    texts: list[bytes] = []
    while numbers:
        thousands, remainder = divmod(numbers.start, 1000)
        head = b"%d" % thousands
        texts += [head + digits for digits in _THOUSAND[remainder : remainder + len(numbers)]]
        numbers = numbers[1000 - remainder :]
    return texts


def is_data_alone(body: bytes) -> bool:
    """Return whether a serialized PubsubMessage has only data. May return False for data of 16 KiB and more."""
    size = len(body)
    if size < 3 or body[0] != _DATA:
        return False
    length = body[1]
    return length + 2 == size if length < 0x80 else (length & 0x7F | body[2] << 7) + 3 == size and body[2] < 0x80


def bodies_of_data_alone(raw: bytes) -> list[bytes] | None:
    """Return the messages of a well-formed PublishRequest, or None unless each has only data."""
    bodies: list[bytes] = []
    at, end = 0, len(raw)
    while at < end:
        tag, size, start = raw[at], raw[at + 1], at + 2
        if size >= 0x80:
            size, start = _read_varint(raw, at + 1)
        if tag == _PUBLISHED:
            body = raw[start : start + size]
            if not is_data_alone(body):
                return None
            bodies.append(body)
            if len(bodies) == 1 and _is_repeated(raw, at, start + 2 + (body[1] >= 0x80), start + size):
                return [raw[offset : offset + size] for offset in range(start, end, start + size - at)]
        elif tag != _TOPIC:
            return None
        at = start + size
    return bodies


def _is_repeated(raw: bytes, at: int, head_end: int, end: int) -> bool:
    """Return whether all following records are as long as the one from `at` to `end` and have its head."""
    count, remainder = divmod(len(raw) - at, end - at)
    return not remainder and all(raw[i :: end - at] == raw[i : i + 1] * count for i in range(at, head_end))


def message_body(frame: bytes) -> bytes:
    start = 1
    while frame[start] & 0x80:
        start += 1
    return frame[start + 1 :]


def fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields (strings, bytes, messages) as (field number, value), in wire order."""
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
    entries = {}
    for number, entry in fields(body):
        if number == 2:
            pair = dict(fields(entry))
            entries[pair.get(1, b"").decode()] = pair.get(2, b"").decode()
    return entries


def data(body: bytes) -> bytes:
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


def subscription_and_rest(raw: bytes) -> tuple[str, bytes]:
    """Return the `subscription` of a request, if it is the first field, and the rest. Otherwise the name is empty."""
    if len(raw) < 3 or raw[0] != _SUBSCRIPTION:
        return "", raw
    size, at = _read_varint(raw[:12] + b"\0", 1)
    return raw[at : at + size].decode(errors="replace"), raw[at + size :]


class AckIds:
    def __init__(self, subscription: str) -> None:
        digest = hashlib.shake_256(subscription.encode()).digest(_HEAD_LENGTH * 3 // 4 + 1)
        self._head = base64.urlsafe_b64encode(digest).decode()[:_HEAD_LENGTH]
        self._asked = _ACK_IDS + varint(ACK_ID_LENGTH) + self._head.encode()
        self._given = _ACK_ID + varint(ACK_ID_LENGTH) + self._head.encode()

    def text(self, number: int) -> str:
        return f"{self._head}{number:016x}"

    def numbers(self, ack_ids: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers behind the texts. A ValueError carries the first text that is not one of ours."""
        head = self._head
        digits = "".join([ack_id[_HEAD_LENGTH:] for ack_id in ack_ids if ack_id.startswith(head)])
        if len(digits) == _DIGITS * len(ack_ids):
            with contextlib.suppress(ValueError, struct.error):
                return _unpacked(digits)
        raise ValueError(next((ack_id for ack_id in ack_ids if not self._is_ours(ack_id)), ""))

    def numbers_in(self, raw: bytes) -> Sequence[int] | None:
        """Return the numbers in serialized fields, or None unless these are only `ack_ids` of ours, at least one."""
        head = self._asked
        width = len(head) + _DIGITS
        count = len(raw) // width
        with contextlib.suppress(ValueError, struct.error):
            [first] = _unpacked(raw[len(head) : width].decode("ascii"))
            run = range(first, first + count)
            if raw == _repeated(head, run):  # most requests acknowledge messages that were handed out together
                return run
            digits = [raw[at : at + _DIGITS] for at in range(len(head), len(raw), width)]
            if raw == head + head.join(digits):
                return _unpacked(b"".join(digits).decode("ascii"))
        return None

    def _is_ours(self, ack_id: str) -> bool:
        return ack_id.startswith(self._head) and _DIGITS_ONLY.fullmatch(ack_id, _HEAD_LENGTH) is not None

    def received(self, numbers: range, frames: Sequence[bytes], attempts: Sequence[int] | None = None) -> bytes:
        """Return `received_messages` of a PullResponse or StreamingPullResponse.

        numbers: of one batch, so that all but the last three digits are the same.
        """
        if not frames:
            return b""
        if attempts is not None:
            frames = [
                b"%b%b%b" % (frame, _DELIVERY_ATTEMPT, varint(attempt))
                for frame, attempt in zip(frames, attempts, strict=True)
            ]
        head, last = _split(self._given, numbers)
        sizes = list(map(len, frames))
        openings = {size: _RECEIVED_MESSAGES + varint(len(head) + 3 + size) + head for size in set(sizes)}
        parts = [b""] * (3 * len(frames))
        parts[0::3] = map(openings.__getitem__, sizes)
        parts[1::3] = last
        parts[2::3] = frames
        return b"".join(parts)


@lru_cache(maxsize=1 << 14)
def ack_ids_of(subscription: str) -> AckIds:
    """The ack ids of a subscription that was deleted and created again are the same."""
    return AckIds(subscription)


def _repeated(head: bytes, numbers: range) -> bytes:
    head, last = _split(head, numbers)
    return head + head.join(last)


def _split(head: bytes, numbers: range) -> tuple[bytes, Sequence[bytes]]:
    high, low = divmod(numbers.start, SPAN)
    return head + b"%013x" % high, _LAST_DIGITS[low : low + len(numbers)]


def _unpacked(digits: str) -> tuple[int, ...]:
    return struct.unpack(f">{len(digits) // _DIGITS}Q", bytes.fromhex(digits))
