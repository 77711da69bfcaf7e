"""What a connection does with calls: grpc's own client, and clients that no library would be, against the emulator."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import selectors
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import hpack
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.handlers.streaming_pull import Stream
from pubsub_spark.emulator.rpc.dispatcher import _Unary
from pubsub_spark.emulator.transport import connections as connections_module
from pubsub_spark.emulator.transport.connections import Call, Connections
from pubsub_spark.emulator.transport.http2 import PREFACE, Flag, Frame, Setting, header_block
from tests.rpc.conftest import SUB, TOPIC, Client, wait_until

PULL = b"/google.pubsub.v1.Subscriber/Pull"
STREAMING_PULL = b"/google.pubsub.v1.Subscriber/StreamingPull"
END = Flag.END_HEADERS | Flag.END_STREAM


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(record=True) as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUB, TOPIC)
        yield emulator


@pytest.fixture
def client(emulator) -> Iterator[Client]:
    client = Client(emulator.endpoint)
    yield client
    client.channel.close()


class Raw:
    """A client that speaks in frames."""

    def __init__(self, emulator: Emulator | SimpleNamespace, settings: bytes = b"") -> None:
        self.socket = socket.create_connection((emulator.host, emulator.port), timeout=10)
        self._file = self.socket.makefile("rb")
        self._decoder = hpack.Decoder()
        self.socket.sendall(PREFACE)
        self.send(Frame.SETTINGS, payload=settings)

    def send(self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> None:
        self.socket.sendall(len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload)

    def call(self, path: bytes, message: bytes = b"", stream: int = 1, flags: int = Flag.END_STREAM, **more: bytes):
        """Headers, and a message behind them."""
        known = {b":method": b"POST", b":path": path, b"content-type": b"application/grpc"}
        headers = known | {name.replace("_", "-").encode(): value for name, value in more.items()}
        self.send(Frame.HEADERS, Flag.END_HEADERS, stream, header_block(headers.items()))
        self.send(Frame.DATA, flags, stream, b"\0" + len(message).to_bytes(4) + message)

    def frame(self) -> tuple[int, int, int, bytes]:
        """The next one; the end of the connection is ConnectionError."""
        head = self._file.read(9)
        if len(head) < 9:
            raise ConnectionError
        return head[3], head[4], int.from_bytes(head[5:9]), self._file.read(int.from_bytes(head[:3]))

    def frames(self, kind: int) -> Iterator[tuple[int, bytes]]:
        """Stream and payload of the next frames of a kind."""
        while True:
            found, _, stream, payload = self.frame()
            if found == kind:
                yield stream, payload

    def end(self, stream: int = 1) -> dict[bytes, bytes]:
        """The trailers of a call, or its headers when they are its end."""
        while True:
            kind, flags, found, payload = self.frame()
            if kind == Frame.HEADERS:
                headers = dict(self._decoder.decode(payload, raw=True))
                if found == stream and flags & Flag.END_STREAM:
                    return headers

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.fixture
def raw(emulator) -> Iterator[Raw]:
    raw = Raw(emulator)
    yield raw
    raw.close()


class Unanswered:
    """Takes what is said on a call, and says nothing."""

    def receive(self, message: bytes) -> None: ...

    def receive_end(self) -> None: ...


@pytest.fixture
def carried() -> Iterator[tuple[Connections, Call, Raw]]:
    """A call that nobody answers, and its client, who has room for everything."""
    opened: list[Call] = []

    def open_call(call: Call) -> Unanswered:
        opened.append(call)
        return Unanswered()

    connections = Connections(open_call)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        wide = Setting.INITIAL_WINDOW_SIZE.to_bytes(2) + (1 << 30).to_bytes(4)
        raw = Raw(SimpleNamespace(host=host, port=port), wide)
        connections.add(listener.accept()[0])
    raw.send(Frame.WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4))
    raw.call(STREAMING_PULL, flags=0)
    wait_until(lambda: 1 == len(opened))
    yield connections, opened[0], raw
    raw.close()
    connections.close()


def request(**fields):
    return protos.PullRequest(subscription=SUB, max_messages=10, **fields).SerializeToString()


def opening():
    return protos.StreamingPullRequest(subscription=SUB, stream_ack_deadline_seconds=600).SerializeToString()


def deliveries(emulator):
    return [message.deliveries for message in emulator.messages(SUB)]


def test_compressed_requests_are_read(emulator):
    """gRPC clients compress when they are told to."""
    with grpc.insecure_channel(emulator.endpoint, compression=grpc.Compression.Gzip) as channel:
        publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        publish(protos.PublishRequest(topic=TOPIC, messages=[{"data": b"x" * 5000}]).SerializeToString(), timeout=10)

    assert [b"x" * 5000] == [message.data for message in emulator.messages(SUB)]


def test_unknown_rpc_is_unimplemented(emulator, client):
    """Under its name."""
    with pytest.raises(grpc.RpcError, match=r"/google\.pubsub\.v2\.Publisher/Publish") as error:
        client.channel.unary_unary("/google.pubsub.v2.Publisher/Publish")(b"", timeout=10)

    assert grpc.StatusCode.UNIMPLEMENTED == error.value.code()


def test_metadata_arrive(emulator, client):
    """Text and bytes, as they were sent."""
    sent = (("x-goog-request-params", "topic=a"), ("x-bin", b"\xff\x00"))
    get = client.channel.unary_unary("/google.pubsub.v1.Publisher/GetTopic")
    get(protos.GetTopicRequest(topic=TOPIC).SerializeToString(), metadata=sent, timeout=10)

    assert set(sent) <= set(emulator.calls[-1].metadata)


def test_calls_of_one_connection_do_not_wait_for_each_other(emulator, client):
    """A Pull that waits, one that is delayed by a fault, and what is asked meanwhile."""
    emulator.fail("GetTopic", None, delay=30)
    slow = client.channel.unary_unary("/google.pubsub.v1.Publisher/GetTopic").future(b"", timeout=60)
    waiting = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request(), timeout=60)
    wait_until(lambda: {"GetTopic", "Pull"} <= {call.rpc for call in emulator.calls})

    client.publish({"data": b"a"})

    received = protos.PullResponse.FromString(waiting.result(timeout=10)).received_messages
    assert [b"a"] == [each.message.data for each in received]
    assert not slow.done()
    slow.cancel()


def test_pull_that_was_cancelled_takes_nothing(emulator, client):
    """Its client is gone, so the next message is somebody else's."""
    waiting = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request(), timeout=60)
    wait_until(lambda: emulator._running.engine.broker.subscriptions[SUB].connected)
    waiting.cancel()
    wait_until(lambda: 0 == emulator._running.engine.broker.subscriptions[SUB].connected)
    emulator.publish(TOPIC, "a")

    assert [b"a"] == client.data()


def test_pull_whose_time_is_short_answers_in_time(emulator, client):
    """With nothing, before its client gives up."""
    begin = time.monotonic()
    pull = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull")

    assert b"" == pull(request(), timeout=1)
    assert time.monotonic() - begin < 1


def test_stream_that_a_fault_delays_hears_what_was_said_meanwhile(emulator, client):
    """The first request, and an ack behind it."""
    emulator.publish(TOPIC, "a")
    [held] = client.pull()
    emulator.fail("StreamingPull", None, delay=0.3)
    said = [opening(), protos.StreamingPullRequest(ack_ids=[held.ack_id]).SerializeToString()]
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter(said), timeout=30)

    wait_until(lambda: [True] == [message.acked for message in emulator.messages(SUB)])
    stream.cancel()


def test_stream_that_a_fault_delays_and_refuses_is_refused(emulator, client):
    """After the delay, with the fault's code."""
    emulator.fail("StreamingPull", "PERMISSION_DENIED", delay=0.1)
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter([opening()]), timeout=30)

    with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
        next(stream)


def test_many_connections_are_served_at_once(emulator):
    """Each publishes and reads what it is told, and none waits for another."""

    def ask(number: int) -> str:
        with contextlib.closing(grpc.insecure_channel(emulator.endpoint, [("grpc.use_local_subchannel_pool", 1)])) as c:
            publish = c.unary_unary("/google.pubsub.v1.Publisher/Publish")
            ids: list[str] = []
            for _ in range(10):
                raw = publish(
                    protos.PublishRequest(topic=TOPIC, messages=[{"data": b"%d" % number}]).SerializeToString()
                )
                ids += protos.PublishResponse.FromString(raw).message_ids
            return " ".join(ids)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(20)))

    assert 200 == len({each for answer in answers for each in answer.split()})
    assert 200 == emulator.backlog(SUB)


def test_large_messages_go_both_ways(emulator, client):
    """Ten megabytes less what the rest of the request takes, through windows of 64 KB."""
    body = bytes(range(256)) * 39_000

    client.publish({"data": body})

    [held] = client.pull()
    assert body == held.message.data


def test_client_that_does_not_read_holds_up_nobody(emulator, raw, client):
    """Its answer waits for it, and is whole when it reads at last."""
    emulator.publish(TOPIC, *(["x" * 100_000] * 20))
    raw.call(PULL, protos.PullRequest(subscription=SUB, max_messages=20).SerializeToString())
    wait_until(lambda: [1] * 20 == deliveries(emulator))

    client.publish({"data": b"a"})
    assert [b"a"] == client.data()

    raw.send(Frame.WINDOW_UPDATE, 0, 0, (10**7).to_bytes(4))
    raw.send(Frame.WINDOW_UPDATE, 0, 1, (10**7).to_bytes(4))
    body = b""
    for _, payload in raw.frames(Frame.DATA):
        body += payload
        if len(body) >= 5 and len(body) == 5 + int.from_bytes(body[1:5]):
            break
    assert 20 == len(protos.PullResponse.FromString(body[5:]).received_messages)
    assert b"0" == raw.end()[b"grpc-status"]


@pytest.mark.parametrize("way", ["reset", "close"])
def test_response_that_the_client_had_no_room_for_is_handed_back(emulator, raw, client, way):
    """It left before its window let the response through, so nobody read that: it goes to the next one at once."""
    emulator.publish(TOPIC, "x" * 100_000)
    raw.call(STREAMING_PULL, opening(), flags=0)
    wait_until(lambda: [1] == deliveries(emulator))

    if way == "reset":
        raw.send(Frame.RST_STREAM, 0, 1, (8).to_bytes(4))
    else:
        raw.close()
    wait_until(lambda: 0 == emulator.streams())

    assert [b"x" * 100_000] == client.data()


def test_response_that_the_client_had_room_for_stays_leased(emulator, raw, client):
    """It left when the response had been written, and may have read it."""
    emulator.publish(TOPIC, "x")
    raw.call(STREAMING_PULL, opening(), flags=0)
    next(raw.frames(Frame.DATA))
    raw.close()
    wait_until(lambda: 0 == emulator.streams())

    assert [] == client.data()


def test_stream_whose_time_is_over_ends(emulator, raw):
    """The client's clock is its own business; the emulator's ends the stream of one that forgot to."""
    raw.call(STREAMING_PULL, opening(), flags=0, grpc_timeout=b"200m")

    assert b"4" == raw.end()[b"grpc-status"]
    assert 0 == emulator.streams()


@pytest.mark.parametrize(
    ("headers", "status"),
    [({":method": b"GET"}, b"405"), ({"content_type": b"application/json"}, b"415")],
)
def test_http2_that_is_no_grpc_is_told_so(raw, headers, status):
    """curl --http2-prior-knowledge, for one."""
    raw.call(PULL, request(), **headers)

    assert status == raw.end()[b":status"]


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], b"got none"),
        ([b"\0\0\0\0\0", b"\0\0\0\0\0"], b"got another one"),
        ([b"\0\0\0\0\x09x"], b"breaks off"),
        ([b"\x01\0\0\0\x01x"], b"do not say how"),
        ([b"\0\0\0\0\x01x"], b"could not be parsed"),
    ],
)
def test_body_that_is_no_request_is_refused(raw, messages, sentence):
    """Whatever it is, in a sentence; the connection goes on."""
    headers = {b":method": b"POST", b":path": PULL, b"content-type": b"application/grpc"}
    raw.send(Frame.HEADERS, Flag.END_HEADERS, 1, header_block(headers.items()))
    for each in messages:
        raw.send(Frame.DATA, 0, 1, each)
    raw.send(Frame.DATA, Flag.END_STREAM, 1)

    trailers = raw.end()
    assert b"3" == trailers[b"grpc-status"]
    assert sentence in trailers[b"grpc-message"]
    raw.call(PULL, request(return_immediately=True), stream=3)
    assert b"0" == raw.end(3)[b"grpc-status"]


def test_broken_connection_is_ended_with_a_reason(raw):
    """And so is everything on it."""
    raw.call(STREAMING_PULL, opening(), flags=0)
    raw.send(Frame.PUSH_PROMISE, 0, 1, bytes(4))

    _, goaway = next(raw.frames(Frame.GOAWAY))
    assert b"promises nothing" in goaway
    with pytest.raises(ConnectionError):
        list(raw.frames(Frame.GOAWAY))


def test_handler_that_fails_fails_its_call_alone(emulator, client, caplog):
    """A mistake of ours is INTERNAL and in the log, and the emulator lives on."""

    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    emulator._running.server._handlers["/google.pubsub.v1.Publisher/GetTopic"] = fail

    with caplog.at_level(logging.ERROR), pytest.raises(grpc.RpcError) as error:
        client.ask("Publisher/GetTopic", topic=TOPIC)

    assert grpc.StatusCode.INTERNAL == error.value.code()
    assert "ZeroDivisionError" in caplog.text
    assert [] == client.data()


def test_stream_whose_sending_thread_fails_ends(emulator, client, monkeypatch, caplog):
    """As any other call does, and what it took is somebody else's."""

    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter([opening()]), timeout=10)
    wait_until(lambda: 1 == emulator.streams())
    with caplog.at_level(logging.ERROR), monkeypatch.context() as patched:
        patched.setattr(emulator._running.services.subscriber, "received", fail)
        emulator.publish(TOPIC, "a")
        with pytest.raises(grpc.RpcError) as error:
            next(stream)

    assert grpc.StatusCode.INTERNAL == error.value.code()
    assert "ZeroDivisionError" in caplog.text
    assert [b"a"] == client.data()


def test_what_is_left_just_when_nothing_was_is_written(carried):
    """A thread leaves something to be written at the moment in which the other stops waiting for room to write."""
    connections, call, raw = carried
    size, looked_after = 20_000_000, threading.Event()
    threads: list[threading.Thread] = []
    modify = connections._selector.modify

    def interrupted(file, events, link):
        if events == selectors.EVENT_READ and not threads:
            threads.append(threading.Thread(target=call.send, args=(b"b" * size,)))
            threads[0].start()
            threads[0].join(0.3)  # time enough to leave it, if it can
            modify(file, events, link)
            looked_after.set()
        else:
            modify(file, events, link)

    connections._selector.modify = interrupted
    threading.Thread(target=call.send, args=(b"a" * size,)).start()
    wait_until(lambda: call._link.interest & selectors.EVENT_WRITE)

    bodies = raw.frames(Frame.DATA)
    came = 0
    while came < size + 5:
        came += len(next(bodies)[1])
    assert looked_after.wait(10)  # and nothing is read meanwhile
    while came < 2 * (size + 5):
        came += len(next(bodies)[1])

    assert 2 * (size + 5) == came


def test_message_sent_when_the_connection_is_over_was_not_sent(carried):
    """The client has left, and the stream is about to hear of it: what it took just then is handed back."""
    _, call, _ = carried
    call._link._end()

    assert not call.send(b"a")


def test_client_that_asks_and_does_not_read_is_not_heard(carried, monkeypatch):
    """Or what it is owed would grow for ever; when it reads it gets all of it."""
    monkeypatch.setattr(connections_module, "_MOST_UNWRITTEN", 1 << 20)
    _, call, raw = carried
    link, pings, ping = call._link, 0, 1000 * (b"\0\0\x08" + bytes([Frame.PING, 0]) + bytes(12))
    for each, buffer in itertools.product((raw.socket, link.socket), (socket.SO_SNDBUF, socket.SO_RCVBUF)):
        each.setsockopt(socket.SOL_SOCKET, buffer, 1 << 16)
    raw.socket.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while pings < 1 << 25:
            pings += raw.socket.send(ping)

    assert link._queued - link._written < 1 << 21

    raw.socket.settimeout(10)
    assert [pings // 17] == [sum(1 for _ in itertools.islice(raw.frames(Frame.PING), pings // 17))]


def test_connection_that_is_idle_is_small(emulator):
    """There may be hundreds."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    raws = [Raw(emulator) for _ in range(50)]
    wait_until(lambda: 50 == len(emulator._running.server._connections._links))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for raw in raws:
        raw.close()

    assert after - before < 50 * 100_000


def test_call_that_no_thread_is_left_for_is_refused(emulator, raw, monkeypatch):
    """In a sentence; and the emulator can still be stopped."""

    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    wait_until(lambda: emulator._running.server._connections._links)  # the connection has the threads that it needs
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        raw.call(STREAMING_PULL, opening(), flags=0)
        trailers = raw.end()

    assert b"8" == trailers[b"grpc-status"]
    assert b"no thread left" in trailers[b"grpc-message"]
    assert not emulator._running.server._waiting
    assert 0 == emulator.streams()


def test_stop_does_not_wait_for_a_client_that_does_not_read(emulator, raw):
    """Its stream and its connection end with the others."""
    emulator.publish(TOPIC, "x" * 100_000)
    raw.call(STREAMING_PULL, opening(), flags=0)
    wait_until(lambda: [1] == deliveries(emulator))
    begin = time.monotonic()

    emulator.stop()

    assert time.monotonic() - begin < 8


def test_stop_tells_streams_and_waiting_pulls(emulator, client):
    """UNAVAILABLE for the stream; the Pull has an answer without messages."""
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter([opening()]), timeout=30)
    waiting = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request(), timeout=30)
    wait_until(lambda: 2 == emulator._running.engine.broker.subscriptions[SUB].connected)

    emulator.stop()

    with pytest.raises(grpc.RpcError, match="The emulator is stopping"):
        next(stream)
    assert b"" == waiting.result(timeout=10)


def test_call_that_is_over_is_freed_at_once(emulator, raw):
    """With its request, which may be 10 MB: the garbage collector would come after thousands of them."""
    gc.collect()
    gc.disable()
    try:
        for stream in range(1, 21, 4):
            raw.call(PULL, request(return_immediately=True), stream)
            raw.end(stream)
            raw.call(STREAMING_PULL, opening(), stream + 2, flags=0)
            wait_until(emulator.streams)
            raw.send(Frame.RST_STREAM, 0, stream + 2, (8).to_bytes(4))
            wait_until(lambda: 0 == emulator.streams())
        wait_until(lambda: not emulator._running.server._waiting)
        left = [type(each).__name__ for each in gc.get_objects() if isinstance(each, (Call, Stream, _Unary))]
    finally:
        gc.enable()

    assert [] == left


FORGETFUL = """
import sys, threading, grpc
from pubsub_spark.emulator import Emulator
topic, subscription = sys.argv[1:3]
emulator = Emulator().start()
emulator.create_topic(topic)
emulator.create_subscription(subscription, topic)
channel = grpc.insecure_channel(emulator.endpoint)
first = bytes.fromhex(sys.argv[3])
stream = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter([first]))
while not emulator.streams():
    threading.Event().wait(0.01)
"""


def test_process_that_forgets_to_stop_its_emulator_ends():
    """Though a stream is open, whose thread waits for messages."""
    command = [sys.executable, "-c", FORGETFUL, TOPIC, SUB, opening().hex()]

    subprocess.run(command, check=True, timeout=30)


def test_stop_ends_what_a_fault_keeps_waiting_at_once(emulator, client):
    """A stream and a Pull: neither begins when the emulator is about to be gone."""
    emulator.fail("*", None, count=2, delay=60)
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter([opening()]), timeout=30)
    waiting = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request(), timeout=30)
    wait_until(lambda: 2 == len(emulator._running.server._waiting))

    emulator.stop()

    for answer in (lambda: next(stream), waiting.result):
        with pytest.raises(grpc.RpcError, match="The emulator is stopping"):
            answer()


def test_nothing_is_kept_of_calls_and_connections_that_are_over(emulator):
    """Answered, refused, cancelled or cut off."""
    owner = emulator._running.server._connections
    for number in range(5):
        raw = Raw(emulator)
        raw.call(PULL, request(return_immediately=True))
        raw.end()
        raw.call(b"/nowhere", stream=3)
        raw.end(3)
        raw.call(STREAMING_PULL, opening(), stream=5, flags=0)
        raw.call(STREAMING_PULL, opening(), stream=7, flags=0)
        raw.send(Frame.RST_STREAM, 0, 7, (8).to_bytes(4))
        wait_until(lambda: any(5 in link._calls for link in owner._links))
        wait_until(lambda: [{5}] == [set(link._calls) for link in owner._links])
        assert {5} == set(next(iter(owner._links))._http._streams), number
        raw.close()
        wait_until(lambda: not owner._links)

    wait_until(lambda: 0 == emulator.streams())
    assert not emulator._running.server._waiting
