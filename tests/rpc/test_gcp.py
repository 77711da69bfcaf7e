"""The channel to Google Cloud: tokens from servers that fail, a metadata server that is late, endpoints, certificates.

Every server is on 127.0.0.1. google-auth's own pauses between its tries are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google.auth._exponential_backoff
import google.oauth2.credentials
import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import compute_engine, identity_pool
from google.auth.compute_engine import _metadata
from google.auth.transport import mtls

from pubsub_spark.backend import GcpBackend, from_options, gcp, google_credentials
from pubsub_spark.errors import ForbiddenError
from pubsub_spark.options import ReadOptions
from tests.rpc.certificate import self_signed
from tests.rpc.token_server import TokenServer, serving

pytestmark = pytest.mark.filterwarnings("ignore:The load_credentials:DeprecationWarning")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    """Yield a token server. The machine's only credentials are those of its metadata server, which is also this one."""
    with serving() as server:
        monkeypatch.setattr(google.auth._exponential_backoff, "time", SimpleNamespace(sleep=lambda _: None))
        monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", server.address)
        monkeypatch.setenv("GCE_METADATA_IP", server.address)
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        yield server


def user(server: TokenServer, folder: Path) -> Any:
    return google.oauth2.credentials.Credentials(
        None, refresh_token="r", token_uri=server.url, client_id="c", client_secret="s"
    )


def exchanged(server: TokenServer, folder: Path) -> Any:
    return identity_pool.Credentials.from_info(server.external_account(folder))


def impersonated(server: TokenServer, folder: Path) -> Any:
    return identity_pool.Credentials.from_info(server.external_account(folder, impersonate=True))


def machine(server: TokenServer, folder: Path) -> Any:
    return compute_engine.Credentials()


def token(credentials: Any, timeout: float = 10.0) -> tuple[list[tuple[str, str]], str]:
    """Return the plugin's result for gRPC: headers, or the reason for their absence."""
    told: list[tuple[Any, Any]] = []
    context = SimpleNamespace(service_url="https://pubsub.googleapis.com/", method_name="Pull")
    gcp.Tokens(credentials, "host:443", timeout)(context, lambda headers, error: told.append((headers, error)))
    [(headers, error)] = told
    return list(headers), str(error or "")


@pytest.mark.parametrize(
    ("credentials", "faults", "says"),
    [
        (user, [503] * 3, "token server `{}` fails with HTTP 503"),
        (user, [429] * 3, "token server `{}` fails with HTTP 429"),
        (user, ["drop"], "token server `{}` does not answer: "),
        (user, ["hang"], "token server `{}` does not answer: "),
        (exchanged, [503], "token server `{}` fails with HTTP 503"),
        (exchanged, ["drop"], "token server `{}` does not answer: "),
        (impersonated, [None, 503], "token server `{}` fails with HTTP 503"),
        (machine, [503] * 5, "metadata server `{}` fails with HTTP 503"),
        (machine, ["drop"] * 5, "metadata server `{}` does not answer: "),
        (user, [400], "token server `{}` refuses a token with HTTP 400: "),
        (exchanged, [400], "token server `{}` refuses a token with HTTP 400: "),
        (impersonated, [None, 403], "token server `{}` refuses a token with HTTP 403: "),
        (machine, [404], "metadata server `{}` refuses a token with HTTP 404: "),
    ],
)
def test_a_server_that_gives_no_token_is_named(
    server: TokenServer, tmp_path: Path, credentials: Any, faults: list[Any], says: str
):
    """The reason names the server and its fault. The next call finds out that it works again."""
    server.faults, server.body = faults, '{"error": "why"}'
    mine = credentials(server, tmp_path)

    headers, reason = token(mine, timeout=0.2 if faults == ["hang"] else 10.0)
    assert [] == headers
    assert reason.startswith("the " + says.format(server.address))
    assert ("authorization", "Bearer t") in token(mine)[0]


def test_credentials_that_ask_no_server(tmp_path: Path):
    """A file of a workload identity pool that is gone is no outage."""
    mine = identity_pool.Credentials.from_info(TokenServer("127.0.0.1:1").external_account(tmp_path))
    (tmp_path / "subject").unlink()

    assert token(mine)[1].startswith("no token can be made: File ")


def test_a_token_that_fails_is_one_warning(server: TokenServer, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The first of several in a row, without a traceback. And the first after it worked again."""
    credentials = exchanged(server, tmp_path)
    tokens = gcp.Tokens(credentials, "host:443", 10.0)
    context = SimpleNamespace(service_url="https://pubsub.googleapis.com/", method_name="Pull")
    server.faults = [503, 503, 503]
    for _ in range(4):
        tokens(context, lambda headers, error: None)
    credentials.token = None
    server.faults = [503]
    tokens(context, lambda headers, error: None)

    line = f"no token for `host:443`: the token server `{server.address}` fails with HTTP 503"
    assert [("WARNING", line)] * 2 == [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [None, None] == [record.exc_info for record in caplog.records]


@pytest.fixture
def clock(server: TokenServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Return the clock of waits for a metadata server. The machine has no credentials file."""
    clock = SimpleNamespace(now=0.0)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(google_credentials, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=clock.sleep))
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", False)
    monkeypatch.setattr(_metadata, "_GCE_PRODUCT_NAME_FILE", "/nowhere")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "NO_GCE_CHECK"):
        monkeypatch.delenv(name, raising=False)
    return clock


@pytest.mark.parametrize("fault", [503, "drop"])
def test_a_metadata_server_that_is_late(
    server: TokenServer, clock: SimpleNamespace, fault: Any, caplog: pytest.LogCaptureFixture
):
    """In a new pod it answers some seconds after the container has started: it is waited for, with one WARNING."""
    server.faults = [fault] * 6
    with GcpBackend().connect():
        pass

    [line] = [record.getMessage() for record in caplog.records if record.name == google_credentials.__name__]
    assert f"the metadata server `{server.address}` does not answer. Trying for 20 s" in line
    assert 0 < clock.now < 20


def test_a_metadata_server_that_never_answers(server: TokenServer, clock: SimpleNamespace):
    """After `connectTimeout` the sentence names it."""
    server.faults = [503] * 1000
    with pytest.raises(ForbiddenError, match=f"the metadata server `{server.address}` did not answer for 20 s"):
        GcpBackend().connect()

    assert 15 < clock.now <= 20


def test_no_metadata_server_to_wait_for(server: TokenServer, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    """With NO_GCE_CHECK there is no metadata server, so nothing waits for one."""
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", True)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(
        ForbiddenError, match=r"default credentials were not found.* `PUBSUB_EMULATOR_HOST` for an emulator"
    ):
        GcpBackend().connect()
    with pytest.raises(ForbiddenError, match="`backend=emulator` if it is an emulator"):
        GcpBackend("10.0.0.5:8085").connect()

    assert (0.0, []) == (clock.now, server.paths)


@pytest.fixture(scope="module")
def account() -> dict[str, str]:
    """Return a service account's key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "type": "service_account",
        "client_email": "me@example.com",
        "private_key": pem,
        "token_uri": "https://oauth2.googleapis.com/token",
    }


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses of TLS channels. Nothing is connected."""
    called: list[str] = []

    def secure_channel(address: str, credentials: grpc.ChannelCredentials, options: Any) -> grpc.Channel:
        called.append(address)
        return grpc.insecure_channel("127.0.0.1:1")

    monkeypatch.setattr(grpc, "secure_channel", secure_channel)
    return called


@pytest.mark.parametrize(
    ("environ", "given", "address"),
    [
        ({}, {}, "pubsub.googleapis.com:443"),
        ({"GOOGLE_CLOUD_UNIVERSE_DOMAIN": "example.goog"}, {}, "pubsub.example.goog:443"),
        ({}, {"universe_domain": "example.goog"}, "pubsub.example.goog:443"),
        ({"GOOGLE_API_USE_MTLS_ENDPOINT": "always"}, {}, "pubsub.mtls.googleapis.com:443"),
        ({"PUBSUB_EMULATOR_HOST": "localhost:8085"}, {}, "pubsub.googleapis.com:443"),
    ],
)
def test_the_endpoint_is_that_of_googles_clients(
    account: dict[str, str],
    called: list[str],
    environ: dict[str, str],
    given: dict[str, str],
    address: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """By the universe of environment or key and the variable of mutual TLS. `backend=gcp` is never an emulator."""
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    options = {"subscriptionId": "projects/p/subscriptions/sub", "credentials": json.dumps(account | given)}

    with from_options(ReadOptions.parse(options | {"backend": "gcp"}, environ)).connect() as connection:
        assert [address] == called
        assert address == connection.address


def test_a_client_certificate_is_shown(account: dict[str, str], called: list[str], monkeypatch: pytest.MonkeyPatch):
    """With GOOGLE_API_USE_CLIENT_CERTIFICATE, at the endpoint of mutual TLS."""
    key, certificate = self_signed()
    own = grpc.ssl_channel_credentials(certificate_chain=certificate, private_key=key)
    made: list[dict[str, bytes]] = []
    used: list[grpc.ChannelCredentials] = []

    def ssl_channel_credentials(**settings: bytes) -> grpc.ChannelCredentials:
        made.append(settings)
        return own

    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true")
    monkeypatch.setattr(mtls, "has_default_client_cert_source", lambda *_, **__: True)
    monkeypatch.setattr(mtls, "default_client_cert_source", lambda: lambda: (certificate, key))
    monkeypatch.setattr(grpc, "ssl_channel_credentials", ssl_channel_credentials)
    monkeypatch.setattr(grpc, "composite_channel_credentials", lambda tls, tokens: used.append(tls))
    with GcpBackend(None, json.dumps(account)).connect():
        pass

    assert ["pubsub.mtls.googleapis.com:443"] == called
    assert ([{"certificate_chain": certificate, "private_key": key}], [own]) == (made, used)


def test_opening_a_channel_asks_no_server(
    server: TokenServer,
    called: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Each task opens one: google-auth would get a token to ask for a project, or advise to name one."""
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(server.external_account(tmp_path)))
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    for credentials_json in (None, path.read_text()):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        with GcpBackend(None, credentials_json).connect():
            pass

    assert (["pubsub.googleapis.com:443"] * 2, [], []) == (called, server.paths, caplog.records)
