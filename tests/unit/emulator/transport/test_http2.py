"""HTTP/2 without a socket: the frames of a client in, events and frames out. Sections are those of RFC 9113."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.emulator.transport.http2 import (
    LARGEST_FRAME,
    PREFACE,
    Body,
    Connection,
    Ended,
    Error,
    Flag,
    Frame,
    Opened,
    Reset,
    Setting,
    header_block,
)

HEADERS = [(b":method", b"POST"), (b":path", b"/a"), (b"x", b"y")]
BLOCK = header_block(HEADERS)
END = Flag.END_HEADERS | Flag.END_STREAM
FIRST_WINDOW = 65_535  # 6.9.2
STREAM_WINDOW = 1 << 24  # ours, as the first SETTINGS say


class Sent(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind, flags=0, stream=0, payload=b""):
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def setting(name, value):
    return frame(Frame.SETTINGS, payload=name.to_bytes(2) + value.to_bytes(4))


def widening(stream, size):
    return frame(Frame.WINDOW_UPDATE, 0, stream, size.to_bytes(4))


def sent(connection):
    """The frames that are to be written now."""
    out, frames = connection.take(), []
    while out:
        size = int.from_bytes(out[:3])
        frames.append(Sent(out[3], out[4], int.from_bytes(out[5:9]), out[9 : 9 + size]))
        out = out[9 + size :]
    return frames


def bodies(connection, stream=1):
    return b"".join(each.payload for each in sent(connection) if (each.kind, each.stream) == (Frame.DATA, stream))


@pytest.fixture
def connection():
    """One whose first words have been said."""
    connection = Connection()
    connection.receive(PREFACE + frame(Frame.SETTINGS))
    connection.take()
    return connection


def opened(connection, *streams, flags=END):
    for stream in streams:
        connection.receive(frame(Frame.HEADERS, flags, stream, BLOCK))
    connection.take()


def test_greeting_is_settings_and_a_wide_window():
    """They need not wait for the client (3.4); its own settings are acknowledged."""
    connection = Connection()
    [settings, window] = sent(connection)

    assert (Frame.SETTINGS, 0, 0) == settings[:3]
    assert (Setting.MAX_FRAME_SIZE.to_bytes(2) + LARGEST_FRAME.to_bytes(4)) in settings.payload
    assert (Frame.WINDOW_UPDATE, 0, 0, ((1 << 30) - FIRST_WINDOW).to_bytes(4)) == window
    assert [] == connection.receive(PREFACE + frame(Frame.SETTINGS))
    assert [(Frame.SETTINGS, Flag.ACK, 0, b"")] == sent(connection)


def test_request_is_headers_body_and_end(connection):
    """In one frame each, or with the end behind them."""
    events = connection.receive(
        frame(Frame.HEADERS, Flag.END_HEADERS, 1, BLOCK)
        + frame(Frame.DATA, 0, 1, b"a")
        + frame(Frame.DATA, Flag.END_STREAM, 1, b"b")
        + frame(Frame.HEADERS, END, 3, BLOCK)
    )

    assert [Opened(1, HEADERS), Body(1, b"a"), Body(1, b"b"), Ended(1), Opened(3, HEADERS), Ended(3)] == events


def test_trailers_of_a_request_are_its_end(connection):
    """gRPC clients send none, but may."""
    opened(connection, 1, flags=Flag.END_HEADERS)

    assert [Ended(1)] == connection.receive(frame(Frame.HEADERS, END, 1, BLOCK))


def test_headers_go_on_in_continuations(connection):
    """And the end of the stream is said by the first of them (6.2)."""
    first = frame(Frame.HEADERS, Flag.END_STREAM, 1, BLOCK[:3])

    assert [] == connection.receive(first + frame(Frame.CONTINUATION, 0, 1, BLOCK[3:5]))
    assert [Opened(1, HEADERS), Ended(1)] == connection.receive(
        frame(Frame.CONTINUATION, Flag.END_HEADERS, 1, BLOCK[5:])
    )


def test_padding_and_priority_are_left_out(connection):
    """6.1, 6.2: padding is zeros behind the payload, a priority five bytes before it."""
    flags = Flag.END_HEADERS | Flag.PADDED | Flag.PRIORITY
    events = connection.receive(frame(Frame.HEADERS, flags, 1, b"\x03" + bytes(5) + BLOCK + bytes(3)))
    events += connection.receive(frame(Frame.DATA, Flag.PADDED, 1, b"\x02data\0\0"))

    assert [Opened(1, HEADERS), Body(1, b"data")] == events


def test_compressed_headers_mean_what_the_table_says(connection):
    """The table changes with what is added to it, also when a block was seen before."""
    encoder = hpack.Encoder()
    one = [(b":path", b"/a"), (b"x", b"y")]
    other = [(b":path", b"/b"), (b"x", b"z")]
    requests = [one, one, one, other, one, other, other]

    events = [
        connection.receive(frame(Frame.HEADERS, END, 2 * number + 1, encoder.encode(headers)))[0]
        for number, headers in enumerate(requests)
    ]

    assert requests == [event.headers for event in events]


def test_answer_is_headers_body_and_trailers(connection):
    """The stream is forgotten with the last frame."""
    opened(connection, 1)
    connection.send_headers(1, b"head")
    assert [] == list(connection.send_body(1, b"bo", b"dy"))
    connection.send_trailers(1, b"tail")

    assert [
        (Frame.HEADERS, Flag.END_HEADERS, 1, b"head"),
        (Frame.DATA, 0, 1, b"body"),
        (Frame.HEADERS, END, 1, b"tail"),
    ] == sent(connection)
    assert not connection.is_open(1)


def test_answer_without_a_body_is_one_frame(connection):
    """Headers and trailers in one, as gRPC says no."""
    opened(connection, 1)
    connection.send_trailers(1, b"tail", b"head")

    assert [(Frame.HEADERS, END, 1, b"headtail")] == sent(connection)


def test_answer_before_the_request_has_ended_asks_for_no_more(connection):
    """8.1: RST_STREAM with NO_ERROR; what still comes is ignored, and its window given back."""
    opened(connection, 1, flags=Flag.END_HEADERS)
    connection.send_trailers(1, b"tail", b"head")

    assert (Frame.RST_STREAM, 0, 1, Error.NO_ERROR.to_bytes(4)) == sent(connection)[-1]
    assert [] == connection.receive(
        frame(Frame.DATA, Flag.END_STREAM, 1, b"late") + frame(Frame.HEADERS, END, 1, BLOCK)
    )
    assert not connection.broken


def test_long_headers_go_on_in_continuations(connection):
    """No frame is larger than the client takes."""
    opened(connection, 1)
    connection.send_trailers(1, bytes(40_000), b"")

    assert [
        (Frame.HEADERS, Flag.END_STREAM, 16_384),
        (Frame.CONTINUATION, 0, 16_384),
        (Frame.CONTINUATION, Flag.END_HEADERS, 7_232),
    ] == [(each.kind, each.flags, len(each.payload)) for each in sent(connection)]


@pytest.mark.parametrize("size", [0, 1024])
def test_client_that_shrinks_our_table_is_told_that_we_know(connection, size):
    """Strict ones, nghttp2 in Node and curl among them, take no headers otherwise (RFC 7541, 4.2)."""
    decoder = hpack.Decoder()
    connection.receive(setting(Setting.HEADER_TABLE_SIZE, size) + frame(Frame.HEADERS, END, 1, BLOCK))
    connection.take()
    decoder.max_allowed_table_size = size  # from the acknowledgement on

    connection.send_headers(1, BLOCK)
    connection.send_trailers(1, BLOCK)

    assert [HEADERS, HEADERS] == [decoder.decode(each.payload, raw=True) for each in sent(connection)]


def test_body_waits_for_the_streams_window(connection):
    """6.9: the rest, and what comes behind it, is sent when the client makes room."""
    opened(connection, 1)
    connection.receive(widening(0, 10**6))
    unsent = connection.send_body(1, bytes(FIRST_WINDOW + 10))
    connection.send_trailers(1, b"tail")

    assert FIRST_WINDOW == len(bodies(connection))
    assert 10 == sum(map(len, unsent))
    connection.receive(widening(1, 4))
    assert 4 == len(bodies(connection))
    connection.receive(widening(1, 100))
    assert [(Frame.DATA, 6), (Frame.HEADERS, 4)] == [(each.kind, len(each.payload)) for each in sent(connection)]
    assert not unsent


def test_body_waits_for_the_connections_window(connection):
    """It is one for all streams, and they take turns."""
    opened(connection, 1, 3, 5)
    for stream in (1, 3, 5):
        connection.send_body(stream, bytes(60_000))
    assert FIRST_WINDOW == sum(len(each.payload) for each in sent(connection))
    served = []
    for _ in range(3):
        connection.receive(widening(0, 20_000))
        served.append({each.stream for each in sent(connection)})

    assert [{3}, {5}, {3}] == served


def test_settings_change_the_windows_of_open_streams(connection):
    """6.9.2: also to below zero, out of which only WINDOW_UPDATE helps."""
    opened(connection, 1)
    connection.receive(widening(0, 10**6))
    connection.send_body(1, bytes(FIRST_WINDOW + 100))
    connection.take()

    connection.receive(setting(Setting.INITIAL_WINDOW_SIZE, FIRST_WINDOW - 50))
    assert b"" == bodies(connection)
    connection.receive(widening(1, 50))
    assert b"" == bodies(connection)
    connection.receive(widening(1, 1))
    assert 1 == len(bodies(connection))
    connection.receive(setting(Setting.INITIAL_WINDOW_SIZE, FIRST_WINDOW))
    assert 50 == len(bodies(connection))


def test_frames_are_as_large_as_the_client_takes(connection):
    """6.5.2: 16 KiB unless its settings say more."""
    opened(connection, 1)
    connection.send_body(1, bytes(20_000))
    assert [16_384, 3_616] == [len(each.payload) for each in sent(connection)]
    connection.receive(setting(Setting.MAX_FRAME_SIZE, 30_000))
    connection.take()
    connection.send_body(1, bytes(20_000))

    assert [20_000] == [len(each.payload) for each in sent(connection)]


def test_our_windows_are_widened_before_they_are_full(connection):
    """A stream's, for a stream that goes on, and the connection's."""
    opened(connection, 1, flags=Flag.END_HEADERS)
    widened = {0: 0, 1: 0}
    for _ in range(600):
        connection.receive(frame(Frame.DATA, 0, 1, bytes(LARGEST_FRAME)))
        for each in sent(connection):
            assert Frame.WINDOW_UPDATE == each.kind
            widened[each.stream] += int.from_bytes(each.payload)

    received = 600 * LARGEST_FRAME
    assert received - widened[1] <= STREAM_WINDOW
    assert 0 < widened[0] <= received


def test_client_that_ignores_our_window_loses_the_stream():
    """And no other. Ours are widened before they are full, so the test has to fill this one."""
    connection = Connection()
    connection.receive(PREFACE + frame(Frame.SETTINGS))
    opened(connection, 1, 3, flags=Flag.END_HEADERS)
    connection._streams[1].credit = STREAM_WINDOW

    assert [Reset(1)] == connection.receive(frame(Frame.DATA, 0, 1, b"x"))
    assert (Frame.RST_STREAM, 0, 1, Error.FLOW_CONTROL_ERROR.to_bytes(4)) == sent(connection)[-1]
    assert [Body(3, b"x")] == connection.receive(frame(Frame.DATA, 0, 3, b"x"))


def test_ping_is_answered(connection):
    """6.7; an answer to a ping is not."""
    connection.receive(frame(Frame.PING, 0, 0, b"12345678") + frame(Frame.PING, Flag.ACK, 0, b"12345678"))

    assert [(Frame.PING, Flag.ACK, 0, b"12345678")] == sent(connection)


def test_stream_that_the_client_gives_up_is_forgotten(connection):
    """What waited for its window is not sent, and can be seen not to have been."""
    opened(connection, 1)
    unsent = connection.send_body(1, bytes(FIRST_WINDOW + 1))
    connection.take()

    assert [Reset(1)] == connection.receive(frame(Frame.RST_STREAM, 0, 1, bytes(4)) + widening(0, 100))
    assert 1 == sum(map(len, unsent))
    assert list(connection.send_body(1, b"more"))
    connection.send_trailers(1, b"tail")
    assert [] == sent(connection)
    assert [] == connection.receive(frame(Frame.RST_STREAM, 0, 1, bytes(4)))


def test_closed_connection_takes_no_more_streams(connection):
    """GOAWAY names the last one that is answered; a later one can safely be tried elsewhere (6.8)."""
    opened(connection, 5)
    connection.close()
    assert [(Frame.GOAWAY, 0, 0, (5).to_bytes(4) + bytes(4))] == sent(connection)

    assert [] == connection.receive(frame(Frame.HEADERS, END, 7, BLOCK))
    assert [(Frame.RST_STREAM, 0, 7, Error.REFUSED_STREAM.to_bytes(4))] == sent(connection)
    connection.send_trailers(5, b"tail", b"head")
    assert [(Frame.HEADERS, END, 5, b"headtail")] == sent(connection)


def test_what_is_unknown_or_advice_is_ignored(connection):
    """4.1 and 5.5: other frames are extensions; PRIORITY is deprecated; a GOAWAY of the client says nothing to us."""
    other = frame(0x20, 0xFF, 7, b"x") + frame(Frame.PRIORITY, 0, 9, bytes(5)) + frame(Frame.GOAWAY, 0, 0, bytes(8))

    assert [] == connection.receive(other + setting(0x99, 1) + setting(Setting.ENABLE_PUSH, 0))
    assert not connection.broken


OPEN = frame(Frame.HEADERS, Flag.END_HEADERS, 1, BLOCK)


@pytest.mark.parametrize(
    ("error", "bad"),
    [
        (Error.PROTOCOL_ERROR, frame(Frame.DATA, 0, 0, b"x")),
        (Error.PROTOCOL_ERROR, frame(Frame.DATA, 0, 1, b"x")),
        (Error.PROTOCOL_ERROR, OPEN + frame(Frame.DATA, Flag.PADDED, 1, b"\x09x")),
        (Error.PROTOCOL_ERROR, OPEN + frame(Frame.DATA, Flag.PADDED, 1)),
        (Error.PROTOCOL_ERROR, frame(Frame.HEADERS, END, 2, BLOCK)),
        (Error.PROTOCOL_ERROR, frame(Frame.HEADERS, END, 0, BLOCK)),
        (Error.PROTOCOL_ERROR, frame(Frame.HEADERS, 0, 1, BLOCK) + frame(Frame.PING, 0, 0, bytes(8))),
        (Error.PROTOCOL_ERROR, frame(Frame.HEADERS, 0, 1, BLOCK) + frame(Frame.CONTINUATION, 0, 3, b"")),
        (Error.PROTOCOL_ERROR, frame(Frame.CONTINUATION, Flag.END_HEADERS, 1, BLOCK)),
        (Error.PROTOCOL_ERROR, frame(Frame.RST_STREAM, 0, 1, bytes(4))),
        (Error.PROTOCOL_ERROR, frame(Frame.PUSH_PROMISE, 0, 1, bytes(4))),
        (Error.PROTOCOL_ERROR, frame(Frame.PING, 0, 1, bytes(8))),
        (Error.PROTOCOL_ERROR, frame(Frame.SETTINGS, 0, 1)),
        (Error.PROTOCOL_ERROR, widening(1, 1)),
        (Error.PROTOCOL_ERROR, setting(Setting.ENABLE_PUSH, 2)),
        (Error.PROTOCOL_ERROR, setting(Setting.MAX_FRAME_SIZE, 16_383)),
        (Error.PROTOCOL_ERROR, setting(Setting.MAX_FRAME_SIZE, 1 << 24)),
        (Error.FLOW_CONTROL_ERROR, setting(Setting.INITIAL_WINDOW_SIZE, 1 << 31)),
        (Error.FLOW_CONTROL_ERROR, OPEN + widening(1, 2**30) + setting(Setting.INITIAL_WINDOW_SIZE, 2**31 - 1)),
        (Error.FLOW_CONTROL_ERROR, widening(0, 2**31 - 1)),
        (Error.FRAME_SIZE_ERROR, frame(Frame.SETTINGS, 0, 0, b"12345")),
        (Error.FRAME_SIZE_ERROR, frame(Frame.SETTINGS, Flag.ACK, 0, bytes(6))),
        (Error.FRAME_SIZE_ERROR, frame(Frame.PING, 0, 0, b"short")),
        (Error.FRAME_SIZE_ERROR, frame(Frame.WINDOW_UPDATE, 0, 0, b"")),
        (Error.FRAME_SIZE_ERROR, frame(Frame.PRIORITY, 0, 1, b"")),
        (Error.FRAME_SIZE_ERROR, frame(Frame.HEADERS, END | Flag.PRIORITY, 1, b"")),
        (Error.FRAME_SIZE_ERROR, (LARGEST_FRAME + 1).to_bytes(3) + bytes(6)),
        (Error.COMPRESSION_ERROR, frame(Frame.HEADERS, END, 1, b"\x80")),
        (Error.COMPRESSION_ERROR, frame(Frame.HEADERS, END, 1, b"\x00\x05a")),
        (Error.ENHANCE_YOUR_CALM, frame(Frame.HEADERS, 0, 1, bytes(70_000))),
        (Error.ENHANCE_YOUR_CALM, frame(Frame.HEADERS, END, 1, b"\x40\x01a\x7f\xb1\x1e" + bytes(4000) + b"\xbe" * 100)),
    ],
)
def test_broken_rule_ends_the_connection(connection, error, bad):
    """GOAWAY with the code that the RFC names for it; nothing that follows is looked at."""
    connection.receive(bad)

    assert connection.broken
    [goaway] = [each for each in sent(connection) if each.kind == Frame.GOAWAY]
    assert error == int.from_bytes(goaway.payload[4:8])
    assert connection.broken == goaway.payload[8:].decode()
    assert [] == connection.receive(frame(Frame.HEADERS, END, 101, BLOCK))


@pytest.mark.parametrize(
    ("error", "bad"),
    [
        (Error.STREAM_CLOSED, frame(Frame.DATA, Flag.END_STREAM, 1) + frame(Frame.DATA, 0, 1, b"x")),
        (Error.STREAM_CLOSED, frame(Frame.DATA, Flag.END_STREAM, 1) + frame(Frame.HEADERS, END, 1, BLOCK)),
        (Error.PROTOCOL_ERROR, frame(Frame.HEADERS, Flag.END_HEADERS, 1, BLOCK)),
        (Error.PROTOCOL_ERROR, widening(1, 0)),
        (Error.FLOW_CONTROL_ERROR, widening(1, 2**31 - 1)),
    ],
)
def test_broken_rule_of_a_stream_ends_the_stream(connection, error, bad):
    """The others go on."""
    opened(connection, 1, 3, flags=Flag.END_HEADERS)

    assert Reset(1) == connection.receive(bad)[-1]
    assert (Frame.RST_STREAM, 0, 1, error.to_bytes(4)) == sent(connection)[-1]
    assert [Body(3, b"x")] == connection.receive(frame(Frame.DATA, 0, 3, b"x"))


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + frame(Frame.PING, 0, 0, bytes(8))])
def test_connection_that_begins_otherwise_is_ended(start):
    """3.4: the preface, and SETTINGS behind it."""
    connection = Connection()

    assert [] == connection.receive(start)
    assert connection.broken
    assert Frame.GOAWAY == sent(connection)[-1].kind


CONVERSATION = (
    PREFACE
    + setting(Setting.INITIAL_WINDOW_SIZE, 100)
    + frame(Frame.HEADERS, Flag.END_HEADERS, 1, BLOCK)
    + frame(Frame.DATA, 0, 1, b"abc")
    + frame(Frame.HEADERS, Flag.END_STREAM, 3, BLOCK[:4])
    + frame(Frame.CONTINUATION, Flag.END_HEADERS, 3, BLOCK[4:])
    + frame(Frame.PING, 0, 0, bytes(8))
    + frame(Frame.DATA, Flag.END_STREAM, 1, b"de")
    + frame(Frame.RST_STREAM, 0, 3, bytes(4))
)


@given(st.lists(st.integers(0, len(CONVERSATION))))
def test_pieces_in_which_it_comes_do_not_matter(cuts):
    """A frame may come in any number of reads, and a read may have any number of frames."""
    edges = [0, *sorted(cuts), len(CONVERSATION)]
    whole, pieces = Connection(), Connection()

    events = [event for start, end in pairwise(edges) for event in pieces.receive(CONVERSATION[start:end])]

    assert whole.receive(CONVERSATION) == events
    assert whole.take() == pieces.take()


frames = st.builds(
    frame,
    st.one_of(st.sampled_from(Frame), st.integers(0, 255)),
    st.one_of(st.just(int(END)), st.integers(0, 255)),
    st.sampled_from([0, 1, 1, 1, 2, 3, 3, 5, 2**31 - 1]),
    st.one_of(st.binary(max_size=40), st.just(BLOCK), st.sampled_from([bytes(4), bytes(5), bytes(8), b"\0\0\0\1"])),
)


@given(st.lists(st.one_of(frames, st.binary(max_size=20)), max_size=30))
def test_whatever_comes_is_an_event_or_the_end(said):
    """No exception, no event of a stream that is not open, and a GOAWAY for everything else."""
    connection = Connection()
    is_open = set()
    connection.receive(PREFACE + frame(Frame.SETTINGS))

    for each in said:
        for event in connection.receive(each):
            if isinstance(event, Opened):
                is_open.add(event.stream)
            assert event.stream in is_open
            if isinstance(event, Reset):
                is_open.discard(event.stream)
            if isinstance(event, Ended):
                connection.send_headers(event.stream, BLOCK)
                connection.send_body(event.stream, b"answer")
                connection.send_trailers(event.stream, BLOCK)

    assert bool(connection.broken) == any(each.kind == Frame.GOAWAY for each in sent(connection))


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), max_size=5))
def test_header_block_is_read_as_it_was_meant(headers):
    """By a decoder that is not ours."""
    assert headers == hpack.Decoder().decode(header_block(headers), raw=True)
