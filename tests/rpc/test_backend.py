"""The Google Cloud backend for real, against the emulator over TLS: every call carries token and routing header.

The client is a process of its own, because gRPC reads GRPC_DEFAULT_SSL_ROOTS_FILE_PATH once. The service account's key
is made here. Google-auth signs its tokens itself (self-signed JWT), so nothing asks Google.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pubsub_spark.backend import EmulatorBackend, GcpBackend, from_options
from pubsub_spark.demo import service
from pubsub_spark.emulator import Emulator
from pubsub_spark.errors import ForbiddenError, MissingError, ResourceError, ServiceError
from pubsub_spark.options import ReadOptions
from tests.conftest import ROOT, Names
from tests.rpc.token_server import serving

CALLER = "reader@test-project.iam.gserviceaccount.com"

# Each call of the connector to a backend, once: look, publish, pull, extend, acknowledge.
CLIENT = """
import json, sys, threading
from google.pubsub_v1 import types
from pubsub_spark.backend import from_options
from pubsub_spark.options import ReadOptions

topic, subscription, *given = json.loads(sys.argv[1])
options = ReadOptions.parse({"subscriptionId": subscription, **given[0]}, {})
backend = from_options(options)
assert "PRIVATE" not in repr(backend) and "PRIVATE" not in repr(options)
with backend.connect() as connection:
    assert subscription == connection.admin.subscription(subscription).name
    assert topic == connection.admin.topic(topic).name
    request = types.PublishRequest.pb()(topic=topic, messages=[types.PubsubMessage.pb()(data=b"a")])
    connection.publish(topic, request.SerializeToString(), 10).result()
    first = types.StreamingPullRequest.pb()(subscription=subscription, stream_ack_deadline_seconds=10)
    done = threading.Event()

    def requests():
        yield first.SerializeToString()
        done.wait()  # a half-closed stream may end before its first response

    stream = connection.streaming_pull(subscription, requests())
    received = types.StreamingPullResponse.pb().FromString(next(stream)).received_messages
    stream.cancel()
    done.set()
    ids = [each.ack_id for each in received]
    more = types.ModifyAckDeadlineRequest.pb()(subscription=subscription, ack_ids=ids, ack_deadline_seconds=60)
    connection.modify_ack_deadline(subscription, more.SerializeToString(), 10).result()
    ack = types.AcknowledgeRequest.pb()(subscription=subscription, ack_ids=ids)
    connection.acknowledge(subscription, ack.SerializeToString(), 10).result()
"""

# A call that has no token, under a root handler. It prints its error.
WITHOUT_TOKEN = """
import json, logging, sys
from pubsub_spark.backend import from_options
from pubsub_spark.errors import PubSubError
from pubsub_spark.options import ReadOptions

logging.basicConfig()
topic, subscription, *given = json.loads(sys.argv[1])
options = ReadOptions.parse({"subscriptionId": subscription, **given[0]}, {})
with from_options(options).connect() as connection:
    try:
        connection.admin.topic(topic)
    except PubSubError as error:
        print(type(error).__name__, error)
"""

CALLS = {
    "GetSubscription": "subscription",
    "GetTopic": "topic",
    "Publish": "topic",
    "StreamingPull": "subscription",
    "ModifyAckDeadline": "subscription",
    "Acknowledge": "subscription",
}


@dataclass
class Cloud:
    """An emulator that serves TLS, and the certificate that a client must trust."""

    emulator: Emulator
    authority: Path

    def ask(self, names: Names, **options: str) -> dict[str, dict[str, str]]:
        """Run the client with these options. The metadata of each of its calls, by RPC."""
        self.run(CLIENT, names, None, **options)
        return {call.rpc.rpartition("/")[2]: _joined(call.metadata) for call in self.emulator.calls}

    def run(
        self, program: str, names: Names, environ: Mapping[str, str] | None = None, **options: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program with these options and variables of the environment."""
        given = json.dumps([names.topic, names.subscription, {"endpoint": self.endpoint, **options}])
        environment = {
            **os.environ,
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.authority),
            "PYTHONPATH": str(ROOT),
            "NO_GCE_CHECK": "true",
            **(environ or {}),
        }
        environment.pop("PUBSUB_EMULATOR_HOST", None)
        done = subprocess.run(
            [sys.executable, "-c", program, given], env=environment, capture_output=True, text=True, timeout=60
        )
        assert 0 == done.returncode, done.stderr
        return done

    @property
    def endpoint(self) -> str:
        return f"localhost:{self.emulator.port}"


def _joined(metadata: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return the headers by name. google-auth adds a second value to the client's version."""
    found: dict[str, str] = {}
    for name, value in metadata:
        found[name] = f"{found[name]} {value}" if name in found else str(value)
    return found


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    """Return one key for all tests, because making keys is slow."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def cloud(key: rsa.RSAPrivateKey, names: Names, tmp_path: Path) -> Iterator[Cloud]:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    authority = tmp_path / "authority.pem"
    authority.write_bytes(certificate)
    with Emulator(tls=(pem(key).encode(), certificate), record=True) as emulator:
        emulator.create_topic(names.topic)
        emulator.create_subscription(names.subscription, names.topic)
        yield Cloud(emulator, authority)


def pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def account(key: rsa.RSAPrivateKey) -> str:
    """Return a service account key, as the console hands it out."""
    return json.dumps(
        {
            "type": "service_account",
            "project_id": "test-project",
            "private_key_id": "k1",
            "private_key": pem(key),
            "client_email": CALLER,
            "client_id": "1",
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )


def claims(token: str) -> dict[str, Any]:
    """Return the payload of a JWT."""
    payload = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


def check(calls: dict[str, dict[str, str]], names: Names) -> None:
    """Check that each call has the caller's token, the routing header, and the client's version."""
    assert set(CALLS) <= set(calls)
    for rpc, field in CALLS.items():
        scheme, _, token = calls[rpc]["authorization"].partition(" ")
        assert ("Bearer", CALLER) == (scheme, claims(token)["iss"])
        name = names.topic if field == "topic" else names.subscription
        assert f"{field}={name.replace('/', '%2F')}" == calls[rpc]["x-goog-request-params"].replace("/", "%2F")
        assert "gccl/" in calls[rpc]["x-goog-api-client"] or "gapic/" in calls[rpc]["x-goog-api-client"]


def test_key_in_a_file(cloud: Cloud, names: Names, key: rsa.RSAPrivateKey, tmp_path: Path):
    """`credentialsFile` is read on the driver."""
    path = tmp_path / "key.json"
    path.write_text(account(key))
    check(cloud.ask(names, credentialsFile=str(path)), names)


@pytest.mark.parametrize("encode", [str, lambda text: base64.b64encode(text.encode()).decode()], ids=["json", "base64"])
def test_key_as_an_option(cloud: Cloud, names: Names, key: rsa.RSAPrivateKey, encode: Any):
    """`credentials` takes the key itself, or the key in base64."""
    check(cloud.ask(names, credentials=encode(account(key))), names)


def test_key_as_databricks_gives_it(cloud: Cloud, names: Names, key: rsa.RSAPrivateKey):
    """`clientEmail`, `clientId`, `privateKey` and `privateKeyId`, the key with its newlines escaped."""
    check(
        cloud.ask(
            names,
            clientEmail=CALLER,
            clientId="1",
            privateKeyId="k1",
            privateKey=pem(key).replace("\n", "\\n"),
        ),
        names,
    )


def test_application_default_credentials(
    cloud: Cloud, names: Names, key: rsa.RSAPrivateKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The credentials are those of the machine if no option names any."""
    path = tmp_path / "key.json"
    path.write_text(account(key))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    check(cloud.ask(names, backend="gcp"), names)


def test_loopback_is_called_without_a_proxy(cloud: Cloud, names: Names, key: rsa.RSAPrivateKey, emulator: Emulator):
    """A proxy of the environment cannot reach this machine's own servers."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), "http://127.0.0.1:1")
    emulator.create_topic(names.topic)

    assert "" == cloud.run(WITHOUT_TOKEN, names, nowhere, credentials=account(key)).stdout
    assert "" == cloud.run(WITHOUT_TOKEN, names, nowhere, endpoint=emulator.endpoint, connectTimeout="2s").stdout


def test_the_demo_calls_loopback_without_a_proxy(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    """It waits for a channel of its own."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with service.provide(emulator.endpoint) as pubsub:
        assert emulator.endpoint == pubsub.endpoint


def test_an_outage_of_the_token_server_is_waited_for(cloud: Cloud, names: Names, tmp_path: Path):
    """Its 503, its 429 and a connection that it drops are tried again as an outage of Pub/Sub is."""
    with serving() as server:
        server.faults = [503, 429, "drop"]
        calls = cloud.ask(names, credentials=json.dumps(server.external_account(tmp_path)))

    assert "Bearer t" == calls["GetSubscription"]["authorization"]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (503, "ServiceError No token for `{}` to look at Topic `{}`: the token server `{}` fails with"),
        ("hang", "ServiceError No token for `{}` to look at Topic `{}`: the token server `{}` does not answer"),
        (400, "ForbiddenError The credentials for `{}` cannot be used to look at Topic `{}`: the token server `{}` "),
    ],
    ids=["outage", "silence", "refused"],
)
def test_a_token_server_is_named_once(cloud: Cloud, names: Names, tmp_path: Path, fault: Any, error: str):
    """In the error, and in one line of the log. gRPC would write a traceback for each try."""
    with serving() as server:
        server.faults, server.body = [fault] * 1000, '{"error": "invalid_grant"}'
        given = json.dumps(server.external_account(tmp_path))
        done = cloud.run(WITHOUT_TOKEN, names, None, credentials=given, connectTimeout="1s")

    assert done.stdout.startswith(error.format(cloud.endpoint, names.topic, server.address))
    assert (0, 1) == (done.stderr.count("Traceback"), done.stderr.count("no token for"))


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ("NOT_FOUND", MissingError, "does not exist"),
        ("PERMISSION_DENIED", ForbiddenError, "`roles/pubsub.viewer`"),
    ],
)
def test_status_is_a_sentence(emulator: Emulator, names: Names, code: Any, error: type[Exception], says: str):
    """The error for a refused call names the resource and the remedy."""
    emulator.fail("GetSubscription", code)
    with EmulatorBackend(emulator.endpoint, 5).connect() as connection, pytest.raises(error, match=says) as raised:
        connection.admin.subscription(names.subscription)
    assert f"`{names.subscription}`" in str(raised.value)


def test_unavailable_is_tried_again(emulator: Emulator, names: Names):
    """A call is tried again after UNAVAILABLE. Two refused calls cost a moment."""
    emulator.create_topic(names.topic)
    emulator.fail("GetTopic", "UNAVAILABLE", count=2)
    with EmulatorBackend(emulator.endpoint, 10).connect() as connection:
        assert names.topic == connection.admin.topic(names.topic).name


def test_address_that_does_not_answer(names: Names):
    """An address that does not answer is an error within `connectTimeout` that names the address."""
    with (
        EmulatorBackend("127.0.0.1:1", 0.3).connect() as connection,
        pytest.raises(ServiceError, match=r"`127\.0\.0\.1:1` did not answer"),
    ):
        connection.admin.topic(names.topic)


@pytest.mark.filterwarnings("ignore:The load_credentials:DeprecationWarning")
def test_an_emulator_that_is_called_with_tls(emulator: Emulator, names: Names, key: rsa.RSAPrivateKey):
    """Credentials mean TLS, also at an emulator's address: the error names the way to leave it out."""
    options = {"subscriptionId": names.subscription, "endpoint": emulator.endpoint, "credentials": account(key)}
    backend = from_options(ReadOptions.parse(options | {"connectTimeout": "1s"}, {}))
    with backend.connect() as connection, pytest.raises(ServiceError, match=r"not speak TLS: set `backend=emulator`"):
        connection.admin.topic(names.topic)


def test_no_credentials_are_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The error of a missing credentials file names its endpoint and the options to set."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))

    with pytest.raises(
        ForbiddenError, match=r"No usable credentials for `pubsub.googleapis.com:443`: .*credentialsFile"
    ):
        GcpBackend().connect()


@pytest.mark.filterwarnings("ignore:The load_credentials:DeprecationWarning")
def test_a_key_that_is_none_is_said_in_a_sentence():
    """The error of credentials in options has the reason, no Python, and no advice to set another option."""
    given = {"projectId": "p", "subscriptionId": "sub", "clientEmail": "a@b", "privateKey": "no key"}

    with pytest.raises(ForbiddenError, match=r"No usable credentials for .*: Unable to load PEM file\.") as raised:
        from_options(ReadOptions.parse(given, {})).connect()

    assert str(raised.value).endswith(". Correct the credentials in the options.")
    assert "ValueError" not in str(raised.value)


def test_what_the_service_says_ends_the_sentence(emulator: Emulator, names: Names):
    """Google's details may end with a full stop. The text after them starts a new sentence."""
    emulator.fail("GetTopic", "INVALID_ARGUMENT")
    with EmulatorBackend(emulator.endpoint, 5).connect() as connection, pytest.raises(ResourceError, match=r"[^.]\.$"):
        connection.admin.topic(names.topic)


@pytest.mark.filterwarnings("ignore:The load_credentials:DeprecationWarning")
def test_connection_to_google_is_kept_alive(key: rsa.RSAPrivateKey, monkeypatch: pytest.MonkeyPatch):
    """Keepalive and sizes are those of the transport of Google's client."""
    asked: list[dict[str, Any]] = []

    def secure_channel(host: str, credentials: grpc.ChannelCredentials, options: Any) -> grpc.Channel:
        asked.append(dict(options))
        return grpc.insecure_channel(host)

    monkeypatch.setattr(grpc, "secure_channel", secure_channel)
    with GcpBackend("127.0.0.1:1", account(key)).connect():
        pass

    [options] = asked
    assert 30_000 == options["grpc.keepalive_time_ms"]
    assert -1 == options["grpc.max_receive_message_length"]
