"""Reading through TLS: tokens that a server checks, that expire, and that token servers fail to issue for a while."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT, Names
from tests.engine import until
from tests.production.front import MTLS, PUBSUB, Rig

LIFETIME = 3.0  # seconds of tokens
BOUND = 200.0  # seconds of a wait: a loaded machine is no failure
pytestmark = pytest.mark.timeout(4 * BOUND)


@dataclass
class Client:
    """The process of a query through the rig."""

    rig: Rig
    emulator: Emulator
    names: Names
    sent: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PUBSUB_", "GOOGLE_"))}
        environment |= {"PYTHONPATH": str(ROOT), "GOOGLE_CLOUD_PROJECT": "p", **self.rig.environment}
        command = [sys.executable, "-m", "tests.production.query", f"subscriptionId={self.names.subscription}"]
        command += ["idleTimeout=300ms", "maxFetchPeriod=500ms", *options]
        with (self.rig.folder / "out").open("w") as out, (self.rig.folder / "log").open("w") as log:
            self.process = subprocess.Popen(command, stdout=out, stderr=log, env=environment, cwd=ROOT)

    def publish(self, count: int) -> None:
        """Publish new messages past the rig."""
        texts = [f"m{number}" for number in range(len(self.sent), len(self.sent) + count)]
        self.emulator.publish(self.names.topic, *texts)
        self.sent += texts

    def said(self) -> list[Any]:
        return [json.loads(line) for line in (self.rig.folder / "out").read_text().splitlines()]

    @property
    def rows(self) -> list[str]:
        return [row for line in self.said() if isinstance(line, list) for row in line]

    @property
    def log(self) -> str:
        return (self.rig.folder / "log").read_text()

    def reads_all(self) -> None:
        """Wait until all sent messages are read and acknowledged, each once."""

        def done() -> bool:
            assert self.process is not None and self.process.poll() is None, (self.said(), self.log[-2000:])
            return len(self.rows) >= len(self.sent) and self.emulator.backlog(self.names.subscription) == 0

        until(done, f"all of {len(self.sent)}", BOUND)
        assert sorted(self.sent) == sorted(self.rows)

    def error(self) -> dict[str, str]:
        """Return the error that ends the query."""
        assert self.process is not None
        self.process.wait(BOUND)
        last: dict[str, str] = self.said()[-1]
        return last

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(30)
            finally:
                self.process.kill()


@pytest.fixture
def client(rig: Rig, emulator: Emulator, names: Names) -> Iterator[Client]:
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    rig.tokens.lifetime = rig.metadata.lifetime = LIFETIME
    made = Client(rig, emulator, names)
    yield made
    made.stop()


def credentials(rig: Rig, kind: str) -> dict[str, Any] | None:
    """Return credentials of a kind that Google's clients know, or None for those of the metadata server."""
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    account = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@example.com:generateAccessToken"
    return {
        "service account": rig.account,
        "user": user,
        "workload identity": rig.external_account(),
        "workload identity, impersonating": rig.external_account(impersonate=True),
        "impersonating": {
            "type": "impersonated_service_account",
            "service_account_impersonation_url": account,
            "source_credentials": user,
        },
        "metadata server": None,
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        *("service account", "workload identity, impersonating", "metadata server"),
        *(pytest.param(kind, marks=pytest.mark.production) for kind in ("user", "workload identity", "impersonating")),
    ],
)
def test_each_kind_of_credentials(client: Client, rig: Rig, kind: str):
    """Each call has a valid token, the routing header and the client's version, also after tokens have expired."""
    rig.use(credentials(rig, kind))
    client.publish(20)
    client.start()
    client.reads_all()
    client.publish(20)
    client.reads_all()

    assert not rig.front.refused
    assert {"StreamingPull", "Acknowledge"} <= rig.methods().keys()
    for method, headers in rig.front.calls:
        wanted = {"authorization", "user-agent", "x-goog-api-client", "x-goog-request-params"}
        assert wanted <= headers.keys(), method
    assert rig.proxy.asked[PUBSUB] >= 1


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.UNAUTHENTICATED, pytest.param(grpc.StatusCode.UNAVAILABLE, marks=pytest.mark.production)],
)
@pytest.mark.long
def test_stream_that_ends_with_its_token(client: Client, rig: Rig, code: grpc.StatusCode):
    """It is opened again with a new token, each time. No message is repeated."""
    rig.use(rig.external_account())
    rig.front.ends_streams = code
    client.start()
    for ended in range(1, 4):
        until(lambda: rig.front.ended >= ended, "the end of a stream", BOUND)  # noqa: B023
        client.publish(20)
        client.reads_all()

    assert not rig.front.refused


@pytest.mark.parametrize("fault", [503, *(pytest.param(each, marks=pytest.mark.production) for each in (429, "drop"))])
@pytest.mark.long
def test_token_server_that_is_out(client: Client, rig: Rig, fault: Any):
    """Its outage is waited for, and the log names it. The query continues when it is over."""
    rig.use(rig.external_account(impersonate=True))
    rig.front.ends_streams = grpc.StatusCode.UNAVAILABLE
    client.publish(20)
    client.start()
    client.reads_all()
    rig.tokens.constant = fault
    line = r"no token for `pubsub\.googleapis\.com:443`: the token server `(sts|iamcredentials)\.googleapis\.com`"
    until(lambda: re.search(line, client.log), "a WARNING", BOUND)
    ended, asked = rig.front.ended, len(rig.tokens.paths)
    until(lambda: rig.front.ended > ended or len(rig.tokens.paths) > asked + 5, "tries", BOUND)
    client.publish(20)
    rig.tokens.constant = None
    client.reads_all()

    assert "Traceback" not in client.log


def test_metadata_server_that_is_late(client: Client, rig: Rig):
    """In a new pod it answers some seconds after the container has started."""
    rig.use(None)
    rig.metadata.constant = 503
    client.publish(20)
    client.start()
    until(lambda: f"the metadata server `{rig.metadata.address}` does not answer" in client.log, "a WARNING", BOUND)
    rig.metadata.constant = None
    client.reads_all()


def test_server_of_an_unknown_ca(client: Client, rig: Rig):
    """The error reports that its certificate cannot be verified."""
    rig.use(rig.account)
    del rig.environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"]
    client.start("connectTimeout=3s")

    [text] = client.error().values()
    assert "CERTIFICATE_VERIFY_FAILED" in text


@pytest.mark.parametrize("endpoint", ["auto", pytest.param("always", marks=pytest.mark.production)])
def test_mutual_tls(client: Client, rig: Rig, endpoint: str):
    """With a client certificate, at the endpoint that asks for one."""
    rig.use(rig.account)
    rig.show_certificate()
    rig.environment["GOOGLE_API_USE_MTLS_ENDPOINT"] = endpoint
    client.publish(20)
    client.start()
    client.reads_all()

    assert (0, True) == (rig.proxy.asked[PUBSUB], rig.proxy.asked[MTLS] >= 1)


def test_mutual_tls_without_a_certificate(client: Client, rig: Rig):
    """The endpoint that asks for one refuses the connection."""
    rig.use(rig.account)
    rig.environment["GOOGLE_API_USE_MTLS_ENDPOINT"] = "always"
    client.start("connectTimeout=3s")

    [text] = client.error().values()
    assert "`pubsub.mtls.googleapis.com:443` did not answer" in text
    assert not rig.front.calls
