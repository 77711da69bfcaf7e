"""Google Cloud as a client sees it, on 127.0.0.1: TLS with a CA of its own, tokens that are checked, a CONNECT proxy.

    with production(emulator) as rig:
        subprocess.run(..., env={**os.environ, **rig.environment})

A client gets variables as on a machine behind a proxy, and calls Google by its usual names:

    pubsub.googleapis.com     `Front`: checks signature and expiry of each call's token, forwards it to the emulator
    pubsub.mtls.googleapis.com   the same, and asks for a client certificate
    oauth2., sts., iamcredentials.googleapis.com   `TokenServer`, whose tokens `Front` accepts
    metadata server           the same without TLS, by GCE_METADATA_HOST

The proxy knows these names alone, and refuses and counts any other: no outside address is asked.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google.auth.crypt
import google.auth.jwt
import grpc
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.rpc.token_server import TokenServer, serving

PUBSUB, MTLS = "pubsub.googleapis.com", "pubsub.mtls.googleapis.com"
_TOKEN_SERVERS = ("oauth2.googleapis.com", "sts.googleapis.com", "iamcredentials.googleapis.com")
_STREAMS = 100  # open at once, each in a thread
_ISSUER, _ACCOUNT_KEY = "the token server's", "the service account's"  # ids of keys


class Key:
    """An RSA key. private, public: PEM."""

    def __init__(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = serialization.Encoding.PEM
        self.private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
        self.public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


class Front(grpc.GenericRpcHandler):
    """A server that forwards each call with a valid token.

    calls: method and headers of each. refused: reasons, counted. ends_streams: the status that ends a stream when
    its token expires, or None.
    """

    def __init__(self, channel: grpc.Channel, keys: dict[str, str]) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.refused: Counter[str] = Counter()
        self.ended = 0
        self.ends_streams: grpc.StatusCode | None = None
        self._channel = channel
        self._keys = keys

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of a method, whose requests and responses stay bytes."""
        if call.method.endswith("/StreamingPull"):
            return grpc.stream_stream_rpc_method_handler(lambda r, context: self._stream(call.method, r, context))
        return grpc.unary_unary_rpc_method_handler(lambda r, context: self._unary(call.method, r, context))

    def _expiry(self, method: str, context: Any) -> float:
        """Return when the call's token expires, in Unix seconds. End the call if it is not valid."""
        headers = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        self.calls.append((method.rpartition("/")[2], headers))
        token = headers.get("authorization", "").removeprefix("Bearer ")
        try:
            return float(google.auth.jwt.decode(token, self._keys)["exp"])
        except Exception as error:
            self.refused[str(error)] += 1
            context.abort(grpc.StatusCode.UNAUTHENTICATED, f"Request had invalid authentication credentials: {error}")
            raise

    def _unary(self, method: str, request: bytes, context: Any) -> bytes:
        self._expiry(method, context)
        try:
            response, call = self._channel.unary_unary(method).with_call(request, metadata=_forwarded(context))
        except grpc.RpcError as error:
            _fail(context, error)
        context.set_trailing_metadata(call.trailing_metadata())
        return bytes(response)

    def _stream(self, method: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        expires, end = self._expiry(method, context), self.ends_streams
        call = self._channel.stream_stream(method)(requests, metadata=_forwarded(context))
        context.add_callback(call.cancel)
        has_expired = threading.Event()

        def expire() -> None:
            has_expired.set()
            call.cancel()

        timer = threading.Timer(expires - time.time(), expire)
        if end is not None:
            timer.start()
        try:
            yield from call
        except grpc.RpcError as error:
            if end is not None and has_expired.is_set():
                self.ended += 1
                context.abort(end, "The token has expired.")
            _fail(context, error)
        finally:
            timer.cancel()


def _forwarded(context: Any) -> list[tuple[str, str]]:
    return [(name, value) for name, value in context.invocation_metadata() if name.startswith("x-goog-")]


def _fail(context: Any, error: Any) -> None:
    context.set_trailing_metadata(error.trailing_metadata() or ())
    context.abort(error.code(), error.details())


class ConnectProxy:
    """An HTTP proxy for CONNECT alone. ports: by the names that it knows. asked, refused: names, counted."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.asked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.port = 0
        self._ports = ports

    @contextmanager
    def serving(self) -> Iterator[ConnectProxy]:
        """Yield the running proxy, on a port of its own."""
        loop, started = asyncio.new_event_loop(), threading.Event()
        stop = asyncio.Event()

        async def run() -> None:
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await stop.wait()
            server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="CONNECT proxy")
        thread.start()
        try:
            assert started.wait(10)
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        name = head.split()[1].rpartition(":")[0]
        port = self._ports.get(name) if head.startswith("CONNECT ") else None
        if port is None:
            self.refused[name] += 1
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            writer.close()
            return
        self.asked[name] += 1
        there = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        finally:
            for end in (writer, there[1]):
                end.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while content := await reader.read(65536):
            writer.write(content)
            await writer.drain()
        writer.write_eof()


@dataclass
class Rig:
    """The running servers. environment: of a client. account: the key of a service account."""

    folder: Path
    front: Front
    tokens: TokenServer
    metadata: TokenServer
    proxy: ConnectProxy
    account: dict[str, str]
    ca: trustme.CA
    environment: dict[str, str] = field(default_factory=dict)

    def use(self, credentials: dict[str, Any] | None) -> None:
        """Make clients find these credentials, or those of the metadata server alone."""
        self.environment.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
        if credentials is not None:
            path = self.folder / "credentials.json"
            path.write_text(json.dumps(credentials))
            self.environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(path)

    def external_account(self, impersonate: bool = False) -> dict[str, Any]:
        """Return credentials of a workload identity pool."""
        made = self.tokens.external_account(self.folder, impersonate)
        made["token_url"] = "https://sts.googleapis.com/v1/token"
        if impersonate:
            path = made["service_account_impersonation_url"].partition("/v1/")[2]
            made["service_account_impersonation_url"] = f"https://iamcredentials.googleapis.com/v1/{path}"
        return made

    def show_certificate(self) -> None:
        """Make clients trust a certificate, by the variables of Google's clients."""
        certificate = self.ca.issue_cert("client.example.com")
        paths = {"cert_path": self.folder / "client.pem", "key_path": self.folder / "client.key"}
        certificate.cert_chain_pems[0].write_to_path(str(paths["cert_path"]))
        certificate.private_key_pem.write_to_path(str(paths["key_path"]))
        config = {"cert_configs": {"workload": {name: str(path) for name, path in paths.items()}}}
        (self.folder / "certificate_config.json").write_text(json.dumps(config))
        self.environment["GOOGLE_API_CERTIFICATE_CONFIG"] = str(self.folder / "certificate_config.json")
        self.environment["GOOGLE_API_USE_CLIENT_CERTIFICATE"] = "true"

    def methods(self) -> Counter[str]:
        """Return the received calls, by method."""
        return Counter(method for method, _ in self.front.calls)


def _issue(key: Key) -> Callable[[float], str]:
    signer = google.auth.crypt.RSASigner.from_string(key.private, _ISSUER)

    def issue(seconds: float) -> str:
        now = time.time()
        return str(google.auth.jwt.encode(signer, {"iat": int(now), "exp": int(now + seconds)}), "ascii")

    return issue


def _grpc_server(front: Front, certificate: trustme.LeafCert, ca: bytes | None) -> tuple[grpc.Server, int]:
    """Return a server and its port. ca: of the client certificates that it asks for, or None."""
    server = grpc.server(
        ThreadPoolExecutor(_STREAMS), handlers=[front], options=[("grpc.max_receive_message_length", -1)]
    )
    chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
    credentials = grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)], ca, ca is not None)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server, port


def _stop(server: grpc.Server) -> None:
    server.stop(0).wait()


@contextmanager
def production(endpoint: str, folder: Path) -> Iterator[Rig]:
    """Yield the rig in front of an emulator. folder: for its files."""
    ca, issuer, own = trustme.CA(), Key(), Key()
    certificate = ca.issue_cert(PUBSUB, MTLS, *_TOKEN_SERVERS)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(tls)
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with ExitStack() as ending:
        channel = ending.enter_context(grpc.insecure_channel(endpoint, options=unlimited))
        front = Front(channel, {_ISSUER: issuer.public, _ACCOUNT_KEY: own.public})
        ports: dict[str, int] = {}
        for name, client_ca in ((PUBSUB, None), (MTLS, ca.cert_pem.bytes())):
            server, ports[name] = _grpc_server(front, certificate, client_ca)
            ending.callback(_stop, server)
        tokens, metadata = ending.enter_context(serving(tls)), ending.enter_context(serving())
        tokens.issue = metadata.issue = _issue(issuer)
        ports |= dict.fromkeys(_TOKEN_SERVERS, int(tokens.address.rpartition(":")[2]))
        proxy = ending.enter_context(ConnectProxy(ports).serving())
        account = {
            "type": "service_account",
            "client_email": "spark@my-project.iam.gserviceaccount.com",
            "private_key": own.private,
            "private_key_id": _ACCOUNT_KEY,
            "token_uri": "https://oauth2.googleapis.com/token",
        }
        environment = {
            "https_proxy": f"http://127.0.0.1:{proxy.port}",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(folder / "ca.pem"),
            "REQUESTS_CA_BUNDLE": str(folder / "ca.pem"),
            "GCE_METADATA_HOST": metadata.address,
            "GCE_METADATA_IP": metadata.address,
            "CLOUDSDK_CONFIG": str(folder),
        }
        yield Rig(folder, front, tokens, metadata, proxy, account, ca, environment)
        assert not proxy.refused, f"outside addresses were asked: {proxy.refused}"
