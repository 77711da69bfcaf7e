"""Calls on a connection: grpc's own client, and clients unlike any library, against the emulator."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import queue
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from h2.events import DataReceived, PingReceived, ResponseReceived, StreamReset, TrailersReceived

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.handlers.streaming_pull import Stream
from pubsub_spark.emulator.runtime import unanswered
from tests.rpc.conftest import SUB, TOPIC, Client, parts, wait_until
from tests.rpc.frames import FrameClient

PULL = "/google.pubsub.v1.Subscriber/Pull"
STREAMING_PULL = "/google.pubsub.v1.Subscriber/StreamingPull"


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


@pytest.fixture
def raw(emulator) -> Iterator[FrameClient]:
    raw = FrameClient(emulator.endpoint)
    yield raw
    raw.close()


def request(**fields):
    return protos.PullRequest(subscription=SUB, max_messages=20, **fields).SerializeToString()


def held_open(first: bytes) -> Iterator[bytes]:
    """Yield the requests of a stream that is not half-closed: the first, and no end."""
    never: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    return itertools.chain([first], iter(never.get, b""))


def opening():
    return protos.StreamingPullRequest(subscription=SUB, stream_ack_deadline_seconds=600).SerializeToString()


def deliveries(emulator):
    return [message.deliveries for message in emulator.messages(SUB)]


def test_compressed_requests_are_read(emulator):
    """gRPC clients can compress their requests."""
    with grpc.insecure_channel(emulator.endpoint, compression=grpc.Compression.Gzip) as channel:
        publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        publish(protos.PublishRequest(topic=TOPIC, messages=[{"data": b"x" * 5000}]).SerializeToString(), timeout=10)

    assert [b"x" * 5000] == [message.data for message in emulator.messages(SUB)]


def test_unknown_rpc_is_unimplemented(emulator, client):
    """The status of an unknown RPC is UNIMPLEMENTED, and its message has the RPC's name."""
    with pytest.raises(grpc.RpcError, match=r"/google\.pubsub\.v2\.Publisher/Publish") as error:
        client.channel.unary_unary("/google.pubsub.v2.Publisher/Publish")(b"", timeout=10)

    assert grpc.StatusCode.UNIMPLEMENTED == error.value.code()


def test_closed_connection_leaves_no_socket(emulator):
    """A gRPC client that has left leaves no socket open, neither its own nor the one that its bytes went on to."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with grpc.insecure_channel(emulator.endpoint) as channel:
            grpc.channel_ready_future(channel).result(timeout=10)

    wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 2)  # gRPC's own are made by the first


def test_metadata_arrive(emulator, client):
    """Metadata, text and bytes, arrive as they were sent."""
    sent = (("x-goog-request-params", "topic=a"), ("x-bin", b"\xff\x00"))
    get = client.channel.unary_unary("/google.pubsub.v1.Publisher/GetTopic")
    get(protos.GetTopicRequest(topic=TOPIC).SerializeToString(), metadata=sent, timeout=10)

    assert set(sent) <= set(emulator.calls[-1].metadata)


def test_calls_of_one_connection_do_not_wait_for_each_other(emulator, client):
    """While a Pull waits and another call is delayed by a fault, further calls on the connection are answered."""
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
    """A Pull whose client has left takes no message. The next client gets it."""
    waiting = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request(), timeout=60)
    wait_until(lambda: parts(emulator).engine.broker.subscriptions[SUB].consumers.connected)
    waiting.cancel()
    wait_until(lambda: not parts(emulator).engine.broker.subscriptions[SUB].consumers.connected)
    emulator.publish(TOPIC, "a")

    assert [b"a"] == client.data()


def test_pull_whose_time_is_short_answers_in_time(emulator, client):
    """A Pull with a short deadline is answered without messages before its client's deadline."""
    begin = time.monotonic()
    pull = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull")

    assert b"" == pull(request(), timeout=1)
    assert time.monotonic() - begin < 1


def test_stream_that_a_fault_delays_hears_what_was_said_meanwhile(emulator, client):
    """A stream that a fault delays reads its first request, and an ack after it, when the delay is over."""
    emulator.publish(TOPIC, "a")
    [held] = client.pull()
    emulator.fail("StreamingPull", None, delay=0.3)
    said = [opening(), protos.StreamingPullRequest(ack_ids=[held.ack_id]).SerializeToString()]
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter(said), timeout=30)

    wait_until(lambda: [True] == [message.acked for message in emulator.messages(SUB)])
    stream.cancel()


def test_stream_that_a_fault_delays_and_refuses_is_refused(emulator, client):
    """A stream that a fault delays and refuses ends after the delay, with the fault's code."""
    emulator.fail("StreamingPull", "PERMISSION_DENIED", delay=0.1)
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(
        held_open(opening()), timeout=30
    )

    with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
        next(stream)


def test_message_behind_a_response_comes_at_once(emulator, client):
    """A stream's message on the connection of the Publish does not wait for TCP's acknowledgement of the response."""
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(
        held_open(opening()), timeout=30
    )
    took = []
    for _ in range(21):
        begin = time.perf_counter()
        client.publish({"data": b"a"})
        next(stream)
        took.append(time.perf_counter() - begin)
    stream.cancel()

    assert statistics.median(took) < 0.03


def test_many_connections_are_served_at_once(emulator):
    """Clients of many connections publish and read at once, and none waits for another."""

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
    """A message of ten megabytes, less the rest of its request, passes through windows of 64 KB in both directions."""
    body = bytes(range(256)) * 39_000

    client.publish({"data": body})

    [held] = client.pull()
    assert body == held.message.data


def test_client_that_does_not_read_holds_up_nobody(emulator, raw, client):
    """The response to a client that does not read waits, and is whole when it reads at last."""
    emulator.publish(TOPIC, *(["x" * 100_000] * 20))
    raw.call(PULL, request())
    wait_until(lambda: [1] * 20 == deliveries(emulator))

    client.publish({"data": b"a"})
    assert [b"a"] == client.data()

    raw.widen(1)
    body = b""
    for event in raw.events(DataReceived):
        body += event.data
        if len(body) >= 5 and len(body) == 5 + int.from_bytes(body[1:5]):
            break
    assert 20 == len(protos.PullResponse.FromString(body[5:]).received_messages)


@pytest.mark.parametrize("way", ["reset", "close"])
def test_response_that_the_client_had_no_room_for_is_handed_back(emulator, raw, client, way):
    """A client that left before its window let the response through has not read it: the messages go to the next client
    at once."""
    emulator.publish(TOPIC, "x" * 100_000)
    raw.call(STREAMING_PULL, opening(), end=False)
    wait_until(lambda: [1] == deliveries(emulator))

    if way == "reset":
        raw.reset()
    else:
        raw.close()
    wait_until(lambda: 0 == emulator.streams())

    assert [b"x" * 100_000] == client.data()


def test_response_that_the_client_had_room_for_stays_leased(emulator, raw, client):
    """A client that left after its response had been written may have read it: the messages stay leased."""
    emulator.publish(TOPIC, "x")
    raw.call(STREAMING_PULL, opening(), end=False)
    next(raw.events(DataReceived))
    raw.close()
    wait_until(lambda: 0 == emulator.streams())

    assert [] == client.data()


def test_stream_whose_time_is_over_ends(emulator, raw):
    """The emulator ends a stream at its deadline, also one whose client forgot to."""
    raw.call(STREAMING_PULL, opening(), end=False, grpc_timeout="200m")

    assert "4" == raw.end()["grpc-status"]
    wait_until(lambda: 0 == emulator.streams())


def test_http2_that_is_no_grpc_is_reset(raw):
    """An HTTP/2 request that is not gRPC's, such as a GET by curl --http2-prior-knowledge, is reset."""
    raw.call(PULL, request(), **{":method": "GET"})

    assert 1 == next(raw.events(StreamReset)).stream_id


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([], "3"),
        ([b"\0\0\0\0\x09x"], "3"),  # it breaks off
        ([b"\x01\0\0\0\x01x"], "13"),  # compressed, and the headers do not name the method
        ([b"\0\0\0\0\x01x"], "3"),
    ],
)
def test_body_that_is_no_request_is_refused(raw, messages, status):
    """A body that is no request is refused with a status, and the connection continues."""
    raw.headers(PULL)
    raw.flush()
    for each in messages:
        raw.body(each)
    raw.body(b"", end=True)

    assert status == raw.end()["grpc-status"]
    raw.call(PULL, request(return_immediately=True), stream=3)
    assert "0" == raw.end(3)["grpc-status"]


def test_second_message_of_a_unary_call_is_refused(emulator):
    """A unary call with two requests is INTERNAL, as with other gRPC servers, and does nothing."""
    other = protos.Topic(name="projects/p/topics/another").SerializeToString()
    with grpc.insecure_channel(emulator.endpoint) as channel:
        create = channel.stream_unary("/google.pubsub.v1.Publisher/CreateTopic")
        with pytest.raises(grpc.RpcError) as refused:
            create(iter([other, other]), timeout=10)

    assert grpc.StatusCode.INTERNAL == refused.value.code()
    emulator.create_topic("projects/p/topics/another")


def test_broken_connection_is_ended(emulator, raw):
    """When a connection breaks, its streams and waiting calls also end."""
    raw.call(STREAMING_PULL, opening(), end=False)
    wait_until(lambda: 1 == emulator.streams())
    raw.socket.sendall(b"\0\0\1\4\0\0\0\0\0x")  # SETTINGS of one byte

    assert [] == list(raw.events(DataReceived))
    wait_until(lambda: 0 == emulator.streams())


def test_stream_whose_sending_thread_fails_ends(emulator, client, monkeypatch, caplog):
    """A stream ends when its sending task fails, as any other call does, and another client gets its messages."""

    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(
        held_open(opening()), timeout=10
    )
    wait_until(lambda: 1 == emulator.streams())
    with caplog.at_level(logging.ERROR), monkeypatch.context() as patched:
        patched.setattr(parts(emulator).services.subscriber, "received", fail)
        emulator.publish(TOPIC, "a")
        with pytest.raises(grpc.RpcError) as error:
            next(stream)

    assert grpc.StatusCode.INTERNAL == error.value.code()
    assert "ZeroDivisionError" in caplog.text
    assert [b"a"] == client.data()


def test_stop_does_not_wait_for_a_client_that_does_not_read(emulator, raw):
    """A client that does not read loses its stream and connection at `stop`, like the others."""
    emulator.publish(TOPIC, "x" * 100_000)
    raw.call(STREAMING_PULL, opening(), end=False)
    wait_until(lambda: [1] == deliveries(emulator))
    begin = time.monotonic()

    emulator.stop()

    assert time.monotonic() - begin < 8


def test_stop_tells_streams_and_waiting_pulls(emulator, client):
    """UNAVAILABLE for the stream. The Pull has an answer without messages."""
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(
        held_open(opening()), timeout=30
    )
    waiting = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request(), timeout=30)
    wait_until(lambda: 2 == len(parts(emulator).engine.broker.subscriptions[SUB].consumers.connected))

    emulator.stop()

    with pytest.raises(grpc.RpcError, match="The emulator is stopping"):
        next(stream)
    assert b"" == waiting.result(timeout=10)


FORGETFUL = """
import itertools, queue, sys, threading, grpc
from pubsub_spark.emulator import Emulator
topic, subscription = sys.argv[1:3]
emulator = Emulator().start()
emulator.create_topic(topic)
emulator.create_subscription(subscription, topic)
channel = grpc.insecure_channel(emulator.endpoint)
requests = itertools.chain([bytes.fromhex(sys.argv[3])], iter(queue.SimpleQueue().get, None))
stream = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(requests)
while not emulator.streams():
    threading.Event().wait(0.01)
"""


def test_process_that_forgets_to_stop_its_emulator_ends():
    """A process that does not stop its emulator ends all the same, though a stream is open and a thread waits for its
    messages."""
    command = [sys.executable, "-c", FORGETFUL, TOPIC, SUB, opening().hex()]

    subprocess.run(command, check=True, timeout=30)


def test_stop_ends_what_a_fault_keeps_waiting_at_once(emulator, client):
    """At `stop` a delayed stream and a delayed Pull end at once, and neither begins."""
    emulator.fail("*", None, count=2, delay=60)
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(
        held_open(opening()), timeout=30
    )
    waiting = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request(), timeout=30)
    wait_until(lambda: 2 == len(emulator.calls))

    emulator.stop()

    for answer in (lambda: next(stream), waiting.result):
        with pytest.raises(grpc.RpcError, match="The emulator is stopping"):
            answer()


def test_streams_that_are_over_are_freed_at_once(emulator):
    """Streams that were reset or cut off are freed at once, not when the garbage collector runs."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            raw = FrameClient(emulator.endpoint)
            raw.call(PULL, request(return_immediately=True))
            raw.end()
            raw.call("/nowhere", stream=3)
            raw.end(3)
            raw.call(STREAMING_PULL, opening(), stream=5, end=False)
            raw.call(STREAMING_PULL, opening(), stream=7, end=False)
            wait_until(lambda: 2 == emulator.streams())
            raw.reset(7)
            wait_until(lambda: 1 == emulator.streams())
            raw.close()
            wait_until(lambda: 0 == emulator.streams())
        wait_until(lambda: not [each for each in gc.get_objects() if isinstance(each, Stream)])
    finally:
        gc.enable()


def test_advance_ends_a_waiting_pull(emulator, client):
    """The time that a Pull waits is measured on the emulator's clock."""
    waiting = client.channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request(), timeout=60)
    wait_until(lambda: parts(emulator).engine.broker.subscriptions[SUB].consumers.connected)
    emulator.advance(10)

    assert b"" == waiting.result(timeout=5)


def test_advance_ends_a_delay(emulator, client):
    """An injected delay is measured on the emulator's clock."""
    emulator.fail("GetTopic", None, delay=3600)
    get = client.channel.unary_unary("/google.pubsub.v1.Publisher/GetTopic")
    delayed = get.future(protos.GetTopicRequest(topic=TOPIC).SerializeToString(), timeout=60)
    wait_until(lambda: emulator.calls)
    emulator.advance(3600)

    assert TOPIC == protos.Topic.FromString(delayed.result(timeout=5)).name


FORKING = """
import signal, subprocess
from pubsub_spark.emulator import Emulator

for _ in range(60):
    with Emulator() as emulator:
        emulator.create_topic("projects/p/topics/news")
        for _ in range(3):  # with a function between fork and exec, as PySpark starts the JVM
            ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
            assert b"x" == subprocess.run(["printf", "x"], preexec_fn=ignore, stdout=-1).stdout
"""


def test_processes_are_started_beside_an_emulator():
    """A process that forks while an emulator serves in it has a child that runs: gRPC's handlers of forks are off."""
    ended = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120, check=False)

    assert 0 == ended.returncode, ended.stderr[-1000:]


def read_frames(raw: FrameClient, until: type, stream: int) -> list[tuple[type, int]]:
    """Return the kinds of the events until one of a stream, each with its stream. PINGs are left unanswered."""
    frames: list[tuple[type, int]] = []
    while (until, stream) not in frames:
        frames += read_some_frames(raw)
    return frames


def read_some_frames(raw: FrameClient) -> list[tuple[type, int]]:
    return [(type(event), getattr(event, "stream_id", 0)) for event in raw.h2.receive_data(raw.socket.recv(65_536))]


@pytest.mark.parametrize("is_shared", [True, False], ids=["one connection", "two connections"])
def test_message_follows_the_response_to_its_publish(emulator, raw, monkeypatch, is_shared):
    """An open stream receives a message after its publisher has read the response, which the ack of a PING tells.

    On the wire this holds without exception. A client may still hand the two to two threads that overtake each other.
    """
    monkeypatch.setattr(unanswered, "MAX_SECONDS", 60)
    publish = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(data=b"x")]).SerializeToString()
    get = protos.GetTopicRequest(topic=TOPIC).SerializeToString()
    stream = protos.StreamingPullRequest(subscription=SUB, stream_ack_deadline_seconds=60).SerializeToString()
    raw.call(STREAMING_PULL, stream, end=False)
    read_frames(raw, ResponseReceived, 1)
    raw.flush()
    with contextlib.closing(raw if is_shared else FrameClient(emulator.endpoint)) as publisher:
        for call in range(3, 203, 4):
            publisher.call("/google.pubsub.v1.Publisher/Publish", publish, call)
            read = read_frames(publisher, TrailersReceived, call)
            if (PingReceived, 0) not in read[read.index((TrailersReceived, call)) :]:
                read += read_frames(publisher, PingReceived, 0)
            acks = publisher.h2.data_to_send()
            raw.call("/google.pubsub.v1.Publisher/GetTopic", get, call + 2)
            read += read_frames(raw, TrailersReceived, call + 2)

            assert (DataReceived, 1) not in read
            publisher.socket.sendall(acks[:10])
            publisher.socket.sendall(acks[10:])
            while (DataReceived, 1) not in read:  # that PING may be gRPC's own, and the emulator's comes later
                for client in {raw, publisher}:
                    client.flush()
                ready, _, _ = select.select([raw.socket, publisher.socket], [], [], 30)
                assert ready
                for client in [client for client in {raw, publisher} if client.socket in ready]:
                    read += read_some_frames(client)


def test_publisher_that_leaves_delays_nothing(emulator, raw, monkeypatch):
    """A publisher that closes its connection before it has read the response is not waited for."""
    monkeypatch.setattr(unanswered, "MAX_SECONDS", 60)
    publish = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(data=b"x")]).SerializeToString()
    stream = protos.StreamingPullRequest(subscription=SUB, stream_ack_deadline_seconds=60).SerializeToString()
    raw.call(STREAMING_PULL, stream, end=False)
    read_frames(raw, ResponseReceived, 1)
    publisher = FrameClient(emulator.endpoint)
    publisher.call("/google.pubsub.v1.Publisher/Publish", publish)
    read_frames(publisher, TrailersReceived, 1)

    publisher.close()

    read_frames(raw, DataReceived, 1)
