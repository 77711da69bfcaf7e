"""Clients that ask for more than anyone should: the emulator's memory stays bounded, and others are answered in time.

Each emulator is a process of its own, whose memory is read from /proc. While one client misbehaves, another asks for a
topic again and again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from h2.errors import ErrorCodes
from h2.events import RemoteSettingsChanged
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame

from pubsub_spark.emulator.api import protos
from tests.conftest import ROOT
from tests.rpc.conftest import SUB, TOPIC, Client, refused
from tests.rpc.frames import FrameClient

PULL = "/google.pubsub.v1.Subscriber/Pull"
PUBLISH = "/google.pubsub.v1.Publisher/Publish"
STREAMING_PULL = "/google.pubsub.v1.Subscriber/StreamingPull"
WAITING = protos.PullRequest(subscription=SUB, max_messages=1).SerializeToString()
MAX_STREAMS = 256


class Server:
    """An emulator in a process of its own, with a topic and a subscription."""

    def __init__(self, endpoint: str, process: int) -> None:
        self.endpoint = endpoint
        self.client = Client(endpoint)
        self.client.ask("Publisher/CreateTopic", name=TOPIC)
        self.client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC)
        self._status = Path(f"/proc/{process}/status")
        self._before = self._number("VmRSS")

    def _number(self, name: str) -> int:
        return int(self._status.read_text().partition(f"{name}:")[2].split()[0])

    @property
    def added_megabytes(self) -> float:
        """The memory that came on top since the start."""
        return (self._number("VmRSS") - self._before) / 1024

    @property
    def threads(self) -> int:
        return self._number("Threads")

    @contextlib.contextmanager
    def answers_others(self) -> Iterator[None]:
        """Check that while the block runs, another client is answered within 100 ms at the median."""
        took: list[float] = []
        done = threading.Event()

        def ask() -> None:
            client = Client(self.endpoint)
            while not done.is_set() or len(took) < 5:
                begin = time.perf_counter()
                client.ask("Publisher/GetTopic", topic=TOPIC)
                took.append(time.perf_counter() - begin)
                done.wait(0.01)
            client.channel.close()

        other = threading.Thread(target=ask)
        other.start()
        try:
            yield
        finally:
            done.set()
            other.join()
        assert statistics.median(took) < 0.1, sorted(took)


@pytest.fixture
def server() -> Iterator[Server]:
    program = (
        "from pubsub_spark.emulator.serve import ServeOptions, serve; raise SystemExit(serve(ServeOptions(port=0)))"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        server = Server(process.stdout.readline().strip().partition("=")[2], process.pid)
        yield server
        server.client.channel.close()
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(20)


@pytest.fixture
def frames(server) -> Iterator[FrameClient]:
    client = FrameClient(server.endpoint)
    yield client
    client.close()


def open_streams(frames: FrameClient, path: str, message: bytes | None, count: int, *, reset: bool = False) -> None:
    """Open `count` calls, whatever SETTINGS say, and reset them at once."""
    head = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a"}
    head |= {"content-type": "application/grpc", "te": "trailers"}
    for stream in range(1, 2 * count, 2):
        sent = HeadersFrame(stream, frames.h2.encoder.encode(head.items()), flags=["END_HEADERS"]).serialize()
        if message is not None:
            data = b"\0" + len(message).to_bytes(4) + message
            sent += DataFrame(stream, data, flags=["END_STREAM"] if path == PULL else []).serialize()
        if reset:
            sent += RstStreamFrame(stream, ErrorCodes.CANCEL).serialize()
        frames.socket.sendall(sent)


def refused_streams(frames: FrameClient, seconds: float = 1) -> int:
    """Return the streams that the emulator resets, because there are too many, in its frames of the next `seconds`."""
    ends, received = time.monotonic() + seconds, bytearray()
    while (rest := ends - time.monotonic()) > 0:
        frames.socket.settimeout(rest)
        with contextlib.suppress(TimeoutError):
            received += frames.socket.recv(1 << 20)
    count = at = 0
    while at + 9 <= len(received):
        size, kind = int.from_bytes(received[at : at + 3]), received[at + 3]
        count += kind == RstStreamFrame.type and received[at + 12] == ErrorCodes.ENHANCE_YOUR_CALM
        at += 9 + size
    return count


def test_comments_before_a_proto_without_syntax(server):
    """30 block comments before a `.proto` text are read once, not twice for each."""
    definition = "/* a */ " * 30 + "message M { string a = 1; }"
    schema = {"name": "projects/p/schemas/s", "type_": 1, "definition": definition}
    with server.answers_others(), contextlib.suppress(grpc.RpcError):
        server.client.ask("SchemaService/ValidateSchema", parent="projects/p", schema=schema)


def test_schema_work_stalls_nobody(server):
    """Validation of a thousand JSON messages, or of a schema of 229 KB, again and again, delays no other client."""
    fields = [{"name": f"f{number}", "type": ["null", "string"], "default": None} for number in range(4000)]
    large = json.dumps({"type": "record", "name": "Large", "fields": fields}) + " " * 30_000
    small = json.dumps({"type": "record", "name": "Small", "fields": fields[:20]})
    create = {"parent": "projects/p", "schema_id": "small", "schema": {"type_": 2, "definition": small}}
    server.client.ask("SchemaService/CreateSchema", **create)
    settings = {"schema": "projects/p/schemas/small", "encoding": 1}
    server.client.ask("Publisher/CreateTopic", name="projects/p/topics/avro", schema_settings=settings)
    message = json.dumps({f"f{number}": {"string": "x"} for number in range(20)}).encode()

    with server.answers_others():
        for _ in range(5):
            published = server.client.ask(
                "Publisher/Publish", topic="projects/p/topics/avro", messages=[{"data": message}] * 1000
            )
            schema = {"type_": 2, "definition": large}
            server.client.ask("SchemaService/ValidateSchema", parent="projects/p", schema=schema)

    assert 1000 == len(published.message_ids)


def test_number_of_streams_is_announced(frames):
    """SETTINGS announces the limit of concurrent streams, which a gRPC library keeps to."""
    settings = next(frames.events(RemoteSettingsChanged))

    assert MAX_STREAMS == settings.changed_settings[SettingCodes.MAX_CONCURRENT_STREAMS].new_value


def test_thousands_of_streams_hold_no_threads(server, frames):
    """3,000 StreamingPulls on one connection: those over the limit are refused."""
    opening = protos.StreamingPullRequest(subscription=SUB, stream_ack_deadline_seconds=60).SerializeToString()
    with server.answers_others():
        open_streams(frames, STREAMING_PULL, opening, 3000)

        assert 3000 - MAX_STREAMS == refused_streams(frames)
    assert server.threads < 60
    assert server.added_megabytes < 50


def test_responses_that_nobody_reads_are_few(server, frames):
    """Of a thousand Pulls of 273 KB, by a client with a window of 64 KB, a bounded number of responses is held.
    The others wait."""
    for _ in range(10):
        server.client.publish(*[{"data": bytes(273_000)}] * 30)
    with server.answers_others():
        before = server.added_megabytes
        open_streams(frames, PULL, WAITING, 1000)
        assert 1000 - MAX_STREAMS == refused_streams(frames)
        held = server.added_megabytes - before

    assert held < 60


def test_bodies_over_the_limit_are_refused_as_they_arrive(server):
    """Six gRPC requests of 60 MB are refused as they arrive. None is kept, or waited for."""
    clients = [FrameClient(server.endpoint) for _ in range(6)]
    with server.answers_others():
        for each in clients:
            each.headers(PUBLISH)
            each.body(b"\0" + (60_000_000).to_bytes(4) + bytes(16_000))
            assert "8" == each.end()["grpc-status"]

    assert server.added_megabytes < 30
    for each in clients:
        each.close()


def test_bodies_over_the_limit_are_refused_in_json_too(server):
    """A JSON body over the limit is refused by its announced length, or when that much has come."""
    host, _, port = server.endpoint.rpartition(":")
    heads = ["Content-Length: 60000000", "Transfer-Encoding: chunked"]
    with server.answers_others():
        for head in heads * 3:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(f"POST /v1/{TOPIC}:publish HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n".encode())
                with contextlib.suppress(OSError):  # it answers and closes
                    for _ in range(60):
                        connection.sendall(b"100000\r\n" + bytes(0x100000) + b"\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(15) in (b"HTTP/1.1 400 Ba", b"")

    assert server.added_megabytes < 60


def test_unfinished_bodies_go_with_their_connections(server):
    """Bodies of ten megabytes without their last byte are freed when their connections end."""
    with server.answers_others():
        for _ in range(12):
            client = FrameClient(server.endpoint)
            client.headers(PUBLISH)
            client.body(b"\0" + (10_000_000).to_bytes(4))
            left = 4_000_000
            for event in client.events(object):
                while left > 0 and (room := min(client.h2.local_flow_control_window(1), 16_384, left)) > 0:
                    client.body(bytes(room))
                    left -= room
                if left <= 0:
                    break
                del event
            client.close()

    assert server.added_megabytes < 60


def test_bodies_of_refused_calls_are_freed_at_once(server):
    """Twenty refused bodies of nine megabytes are freed at once, not when the garbage collector runs."""
    for _ in range(20):
        with refused("NOT_FOUND"):
            server.client.ask(
                "Publisher/Publish", topic="projects/p/topics/none", messages=[{"data": bytes(9_000_000)}]
            )

    assert server.added_megabytes < 100


def test_rapid_reset(server, frames):
    """Tens of thousands of streams, each reset as soon as it is opened, leave memory bounded and other clients
    answered."""
    with server.answers_others(), contextlib.suppress(OSError):  # the connection may be ended
        open_streams(frames, PULL, None, 31_000, reset=True)

    assert server.added_megabytes < 60
    assert server.threads < 60


def test_call_whose_body_never_comes_ends_at_its_deadline(frames):
    """A call whose body never arrives ends at its client's deadline."""
    frames.headers(PULL, grpc_timeout="300m")
    frames.flush()
    begin = time.monotonic()

    assert "4" == frames.end()["grpc-status"]
    assert time.monotonic() - begin < 5


def test_waiting_pulls_hold_no_threads(server, frames):
    """5,000 waiting Pulls on one connection, and 20,000 that are reset while they wait, hold no threads."""
    with server.answers_others():
        open_streams(frames, PULL, WAITING, 5000)

        assert 5000 - MAX_STREAMS == refused_streams(frames)
    threads = server.threads
    other = FrameClient(server.endpoint)
    with server.answers_others(), contextlib.suppress(OSError):
        open_streams(other, PULL, WAITING, 20_000, reset=True)
    other.close()

    assert threads < 60
    assert server.added_megabytes < 80


def test_emulator_lives_on(server: Server) -> None:
    """After all that a Publish over the service's limit, and within gRPC's, is refused with the service's sentence."""
    with refused("INVALID_ARGUMENT", "request_size is too large"):
        large: Any = {"data": bytes(10_000_001)}
        server.client.publish(large)
