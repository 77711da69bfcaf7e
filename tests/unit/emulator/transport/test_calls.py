"""gRPC's words, without a socket: what headers and bodies of a call say, and what its end looks like."""

from __future__ import annotations

import base64
import gzip
import time
import zlib
from itertools import pairwise
from urllib.parse import unquote

import hpack
import pytest
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.transport import calls
from pubsub_spark.emulator.transport.calls import Caller, Messages, NotGrpcError, bad_end, opening, prefix

CALL = [
    (b":method", b"POST"),
    (b":path", b"/google.pubsub.v1.Publisher/Publish"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]


def test_opening_is_path_metadata_and_time():
    """What belongs to the protocol is no metadata; the rest is, as text, or as bytes where the name says so."""
    said = opening([*CALL, (b"grpc-timeout", b"1500m"), (b"user-agent", b"me"), (b"x-bin", b"AQ, Ag=="), (b"x", b"1")])

    assert "/google.pubsub.v1.Publisher/Publish" == said.path
    assert (("user-agent", "me"), ("x-bin", b"\x01"), ("x-bin", b"\x02"), ("x", "1")) == said.metadata
    assert 1.5 == said.seconds


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"4m", 0.004),
        (b"5u", 5e-6),
        (b"6n", 6e-9),
        (b"99999999H", 365 * 86_400),
    ],
)
def test_timeout_has_a_unit(timeout, seconds):
    """Hours to nanoseconds, eight digits at the most; nobody waits longer than a year."""
    assert seconds == pytest.approx(opening([*CALL, (b"grpc-timeout", timeout)]).seconds)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ((b"grpc-timeout", b"1"), "INVALID_ARGUMENT"),
        ((b"grpc-timeout", b"123456789S"), "INVALID_ARGUMENT"),
        ((b"x-bin", b"a"), "INVALID_ARGUMENT"),
        ((b"grpc-encoding", b"snappy"), "UNIMPLEMENTED"),
    ],
)
def test_header_that_makes_no_sense_is_refused(header, code):
    """In a sentence that names it."""
    with pytest.raises(RpcError, match=r"timeout|x-bin|snappy") as refused:
        opening([*CALL, header])

    assert code == refused.value.code


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        (b":method", b"GET", b"405"),
        (b"content-type", b"application/json", b"415"),
        (b"content-type", b"application/grpc-web", b"415"),
    ],
)
def test_what_is_no_call_is_answered_in_http(name, value, status):
    """With a status that browsers and curl understand."""
    with pytest.raises(NotGrpcError) as error:
        opening([*CALL, (name, value)])

    assert [(b":status", status)] == hpack.Decoder().decode(error.value.block, raw=True)


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(0, 400)))
def test_messages_come_in_any_pieces(messages, cuts):
    """Whatever a read or a frame ends with."""
    body = b"".join(prefix(each) + each for each in messages)
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    reader = Messages(b"identity")

    taken = [message for start, end in pairwise(edges) for message in reader.take(body[start:end])]

    assert messages == taken
    assert not reader.rest


def test_message_that_has_begun_is_known():
    """So that a body that breaks off is no request."""
    reader = Messages(b"identity")

    assert [] == list(reader.take(prefix(b"four") + b"fou"))
    assert reader.rest


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_message_is_read(encoding, compress):
    """Each message says whether it is, the headers say how."""
    packed = compress(b"request")
    body = b"\x01" + prefix(packed)[1:] + packed + prefix(b"plain") + b"plain"

    assert [b"request", b"plain"] == list(Messages(encoding).take(body))
    assert [b"request"] == list(Messages(encoding).take(body[: 5 + len(packed)]))


@pytest.mark.parametrize(
    ("encoding", "body", "code"),
    [
        (b"identity", b"\x01" + prefix(b"x")[1:] + b"x", "INVALID_ARGUMENT"),
        (b"gzip", b"\x01" + prefix(b"x")[1:] + b"x", "INVALID_ARGUMENT"),
        (b"identity", b"\0\xff\xff\xff\xff", "RESOURCE_EXHAUSTED"),
    ],
)
def test_unreadable_message_is_refused(encoding, body, code):
    """Before more of it is waited for."""
    with pytest.raises(RpcError) as refused:
        list(Messages(encoding).take(body))

    assert code == refused.value.code


def test_message_that_is_too_large_when_inflated_is_refused(monkeypatch):
    """A small body can be a large message."""
    monkeypatch.setattr(calls, "LARGEST_MESSAGE", 1000)
    packed = gzip.compress(bytes(1001))

    with pytest.raises(RpcError, match="larger than 1000"):
        list(Messages(b"gzip").take(b"\x01" + prefix(packed)[1:] + packed))


@given(st.text(max_size=400))
def test_sentence_travels_in_ascii(text):
    """Percent-encoded, as PROTOCOL-HTTP2 has it; a long one is cut between characters."""
    trailers = dict(hpack.Decoder().decode(bad_end(RpcError("NOT_FOUND", text)), raw=True))

    assert b"5" == trailers[b"grpc-status"]
    sent = trailers[b"grpc-message"]
    assert all(0x20 <= byte <= 0x7E for byte in sent)
    said = unquote(sent.decode(), errors="strict")
    assert said == text or (said.endswith("...") and text.startswith(said[:-3]) and len(text.encode()) > 1000)


def test_reason_travels_as_a_detail():
    """A google.rpc.Status in a trailer of bytes."""
    error = RpcError("INVALID_ARGUMENT", "no", reason="WHY", metadata={"a": "b"})
    trailers = dict(hpack.Decoder().decode(bad_end(error), raw=True))
    detail = trailers[b"grpc-status-details-bin"]

    status = status_pb2.Status.FromString(base64.b64decode(detail + b"=" * (-len(detail) % 4)))

    assert (3, "no", 1) == (status.code, status.message, len(status.details))
    assert b"WHY" in status.details[0].value


def test_end_of_a_call_is_told_once_and_to_late_comers():
    """Whoever asks afterwards is told that it is over."""
    caller, told = Caller(deadline=time.monotonic() + 5), []
    assert caller.add_callback(lambda: told.append(1))
    assert 4 < (caller.time_remaining() or 0) <= 5
    assert Caller().time_remaining() is None

    caller.end()
    caller.end()

    assert [1] == told
    assert not caller.is_active()
    assert not caller.add_callback(lambda: told.append(2))
