"""The gRPC server: which RPC is answered by which handler, and what stands around every one of them.

Bytes in, bytes out: requests are parsed here, except those of the hot calls, whose handlers take bytes. Around a
handler: the call is recorded, a fault that a test has ordered is met, and a Refusal becomes a status, with its
ErrorInfo in the trailer `grpc-status-details-bin`.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import NamedTuple, NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from pubsub_spark.emulator.desk import Desk
from pubsub_spark.emulator.faults import Faults
from pubsub_spark.emulator.refusal import NUMBERS, Refusal, invalid
from pubsub_spark.emulator.services import PUBLISHER, SUBSCRIBER, Rpc, Services
from pubsub_spark.emulator.streaming import Stream

_log = logging.getLogger("pubsub_spark.emulator")

# Each open stream and each waiting Pull occupies a thread; threads are made when they are needed.
_MOST_CALLS = 4096
_MESSAGE_BYTES = 64 * 1024 * 1024  # Publish is refused at 10 MB by its handler, with the service's sentence
_GRACE = 1.0  # seconds for calls to end; all that wait are told to, so it takes a blink
_OPTIONS = [
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a port that is taken is an error, not a share of the calls
    # Clients ping idle streams; grpc's defaults would answer the third ping with GOAWAY.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
]
# A refusal travels in the trailers, of which clients take 8 KB, and there a byte that is not ASCII is three.
_SENTENCE_BYTES = 1000
_DETAILS = "grpc-status-details-bin"
_DOMAIN = "pubsub.googleapis.com"


class Recorded(NamedTuple):
    """One call that came in."""

    rpc: str
    metadata: tuple[tuple[str, str | bytes], ...]


class Server:
    """Listens, and hands each call to its handler."""

    def __init__(self, desk: Desk, services: Services, faults: Faults, *, record: bool = False) -> None:
        self.calls: list[Recorded] = []
        self._record = record
        self._faults = faults
        self._desk = desk
        self._services = services
        self._streams: set[Stream] = set()
        self._stopping = threading.Event()
        self._pool = futures.ThreadPoolExecutor(_MOST_CALLS, thread_name_prefix="pubsub-emulator")
        self._grpc = grpc.server(self._pool, options=_OPTIONS)
        methods = self._methods()
        self.rpcs = frozenset(name for rpcs in methods.values() for name in rpcs)
        self._grpc.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, rpcs) for service, rpcs in methods.items()]
        )

    def _methods(self) -> dict[str, dict[str, grpc.RpcMethodHandler]]:
        subscriber = self._services.subscriber
        methods = {
            service: {name: self._unary(name, _parsing(rpc)) for name, rpc in rpcs.items()}
            for service, rpcs in self._services.table().items()
        }
        methods[PUBLISHER]["Publish"] = self._unary("Publish", self._publish)
        methods[SUBSCRIBER] |= {
            "Pull": self._unary("Pull", self._pull),
            "Acknowledge": self._unary("Acknowledge", lambda raw, _: subscriber.acknowledge(raw)),
            "ModifyAckDeadline": self._unary("ModifyAckDeadline", lambda raw, _: subscriber.modify_ack_deadline(raw)),
            "StreamingPull": grpc.stream_stream_rpc_method_handler(self._streaming_pull),
        }
        return methods

    def listen(self, host: str, port: int, tls: tuple[bytes, bytes] | None = None) -> int:
        """Add a port to listen on and return it, a free one for 0; OSError when it cannot be had."""
        at = address(host, port)
        try:
            if tls is None:
                bound = self._grpc.add_insecure_port(at)
            else:
                bound = self._grpc.add_secure_port(at, grpc.ssl_server_credentials((tls,)))
        except RuntimeError as problem:
            raise OSError(f"The emulator cannot listen on `{at}`. Give it another host or port.") from problem
        return int(bound)

    def start(self) -> None:
        self._grpc.start()

    def stop(self) -> None:
        """End every call and stop listening."""
        self._stopping.set()
        stopped = self._grpc.stop(grace=_GRACE)
        self.close_streams(Refusal("UNAVAILABLE", "The emulator is stopping."))
        self._desk.hang_up_all()
        stopped.wait()
        self._pool.shutdown(wait=True)

    def close_streams(self, refusal: Refusal) -> int:
        """End every open stream with an error; returns how many there were."""
        with self._desk.open():
            streams = list(self._streams)
        for stream in streams:
            stream.refuse(refusal)
        return len(streams)

    def streams(self) -> int:
        """How many streams are open."""
        with self._desk.open():
            return len(self._streams)

    def _unary(self, rpc: str, handler: Callable[[bytes, grpc.ServicerContext], bytes]) -> grpc.RpcMethodHandler:
        def answer(raw: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                self._meet(rpc, context)
                return handler(raw, context)
            except Refusal as refusal:
                _refuse(rpc, refusal, context)
            except DecodeError:
                _refuse(rpc, invalid("The request could not be parsed."), context)

        return grpc.unary_unary_rpc_method_handler(answer)

    def _meet(self, rpc: str, context: grpc.ServicerContext) -> None:
        """Record a call, and let it meet the fault that waits for it."""
        if self._record:
            self.calls.append(Recorded(rpc, tuple((key, value) for key, value in context.invocation_metadata())))
        if _log.isEnabledFor(logging.INFO):  # asking for the peer costs more than the rest of this
            _log.info("%s from %s", rpc, context.peer())
        fault = self._faults.meet(rpc)
        if fault is None:
            return
        if fault.delay:
            self._stopping.wait(fault.delay)
        if fault.code is not None:
            raise Refusal(fault.code, fault.message or f"This {rpc} was told to fail with {fault.code}.")

    def _publish(self, raw: bytes, _: grpc.ServicerContext) -> bytes:
        return self._services.publisher.publish(raw)

    def _pull(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        return self._services.subscriber.pull(raw, context.time_remaining(), context.add_callback)

    def _streaming_pull(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = Stream(self._desk, self._services.subscriber, requests, context)
        try:
            self._meet("StreamingPull", context)
            with self._desk.open():
                self._streams.add(stream)
            yield from stream.responses()
        except Refusal as refusal:
            _refuse("StreamingPull", refusal, context)
        except DecodeError:
            _refuse("StreamingPull", invalid("The request could not be parsed."), context)
        finally:
            with self._desk.open():
                self._streams.discard(stream)


def address(host: str, port: int) -> str:
    """`host:port`, in which an IPv6 address has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_tls(key: bytes, certificate: bytes) -> None:
    """OSError unless they are a PEM key and its certificate: gRPC only says that it cannot listen."""
    with tempfile.NamedTemporaryFile() as key_file, tempfile.NamedTemporaryFile() as certificate_file:
        for file, content in ((key_file, key), (certificate_file, certificate)):
            file.write(content)
            file.flush()
        try:
            # Without a password Python would ask the terminal for that of an encrypted key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_file.name, key_file.name, password="")
        except ssl.SSLError as problem:
            raise OSError(
                "The emulator cannot serve TLS with this key and certificate. "
                "Give a private key and the certificate that was made for it, both PEM, in this order."
            ) from problem


def _parsing(rpc: Rpc) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def parse_and_handle(raw: bytes, _: grpc.ServicerContext) -> bytes:
        response: bytes = rpc.handler(rpc.request.FromString(raw)).SerializeToString()
        return response

    return parse_and_handle


def _refuse(rpc: str, refusal: Refusal, context: grpc.ServicerContext) -> NoReturn:
    sentence = _cut(refusal.message)
    _log.info("%s refused: %s: %s", rpc, refusal.code, sentence)
    if refusal.reason:
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason=refusal.reason, domain=_DOMAIN, metadata=refusal.metadata))
        status = status_pb2.Status(code=NUMBERS[refusal.code], message=sentence, details=[detail])
        context.set_trailing_metadata(((_DETAILS, status.SerializeToString()),))
    context.abort(grpc.StatusCode[refusal.code], sentence)
    raise AssertionError("abort always raises")


def _cut(sentence: str) -> str:
    whole = sentence.encode()
    return sentence if len(whole) <= _SENTENCE_BYTES else f"{whole[:_SENTENCE_BYTES].decode(errors='ignore')}..."
