"""The emulator's port: gRPC and HTTP at one address, IPv6, TLS, and what happens to connections that stay or leave."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import struct
import time

import grpc
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.transport import listener
from tests.rpc.certificate import self_signed

TOPIC, SUB = "projects/p/topics/news", "projects/p/subscriptions/all"


def test_emulator_stops_with_connections_open():
    """Open connections of both kinds do not keep the emulator from stopping, nor the port from being free."""
    with Emulator() as emulator:
        idle = http.client.HTTPConnection(emulator.host, emulator.port)
        idle.request("GET", "/")
        idle.getresponse().read()
        channel = grpc.insecure_channel(emulator.endpoint)
        channel.unary_unary("/google.pubsub.v1.Publisher/ListTopics")(
            protos.ListTopicsRequest(project="projects/p").SerializeToString()
        )
        begin = time.monotonic()
    assert time.monotonic() - begin < 5
    with Emulator(port=emulator.port) as again:
        assert again.port == emulator.port
    channel.close()
    idle.close()


def test_grpc_can_have_the_port_to_itself():
    """An emulator with rest=False serves gRPC alone, and HTTP is not answered."""
    with Emulator(rest=False) as emulator, grpc.insecure_channel(emulator.endpoint) as channel:
        create = channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")
        create(protos.Topic(name=TOPIC).SerializeToString(), timeout=10)

        connection = http.client.HTTPConnection(emulator.host, emulator.port, timeout=5)
        connection.request("GET", "/")
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.getresponse()
        connection.close()


@pytest.fixture
def version_6():
    """Return the machine's own address of version 6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    return "::1"


def test_address_may_be_of_version_6(version_6):
    """A host with colons stands in brackets in the endpoint, as clients want it."""
    with Emulator(host=version_6) as emulator, grpc.insecure_channel(emulator.endpoint) as channel:
        create = channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")
        create(protos.Topic(name=TOPIC).SerializeToString(), timeout=10)
        connection = http.client.HTTPConnection(version_6, emulator.port, timeout=10)
        connection.request("GET", f"/v1/{TOPIC}")

        assert f"[::1]:{emulator.port}" == emulator.endpoint
        assert {"name": TOPIC} == json.loads(connection.getresponse().read())
        connection.close()


def test_address_of_grpc_alone_may_be_of_version_6_too(version_6):
    """gRPC also needs the brackets. Without them it takes the port for a part of the host."""
    with Emulator(version_6, rest=False) as emulator, grpc.insecure_channel(emulator.endpoint) as channel:
        create = channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")
        create(protos.Topic(name=TOPIC).SerializeToString(), timeout=10)


@pytest.mark.parametrize("rest", [True, False])
@pytest.mark.parametrize("port", [-5, 65536])
def test_port_that_there_is_none_of_is_refused(port, rest):
    """A port beyond 65535 is refused with a sentence, as an address that cannot be had is."""
    said = f"The emulator cannot listen on port {port}. A port is a number from 0 to 65535."
    with pytest.raises(OSError, match=f"^{said}$"):
        Emulator(port=port, rest=rest).start()


def test_tls_port_serves_both_too():
    """A port with a key and a certificate speaks gRPC and HTTPS, and nothing unencrypted."""
    key, certificate = self_signed()
    trust = ssl.create_default_context(cadata=certificate.decode())
    with Emulator(tls=(key, certificate)) as emulator:
        with grpc.secure_channel(emulator.endpoint, grpc.ssl_channel_credentials(certificate)) as channel:
            create = channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")
            create(protos.Topic(name=TOPIC).SerializeToString(), timeout=10)
        secure = http.client.HTTPSConnection("127.0.0.1", emulator.port, context=trust, timeout=10)
        for _ in range(2):
            secure.request("GET", f"/v1/{TOPIC}")
            assert {"name": TOPIC} == json.loads(secure.getresponse().read())
        secure.close()

        plain = http.client.HTTPConnection("127.0.0.1", emulator.port, timeout=10)
        plain.request("GET", "/")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()


@pytest.mark.parametrize(
    ("rest", "offered", "agreed"),
    [
        (True, ["h2"], "h2"),  # gRPC's offer
        (True, ["h2", "http/1.1"], "http/1.1"),  # curl
        (True, [], None),
        (False, ["h2", "http/1.1"], "h2"),
    ],
)
def test_tls_client_is_served_what_it_offers(rest, offered, agreed):
    """A TLS client that offers HTTP/1.1 gets the JSON API over it. One that offers only HTTP/2 is a gRPC client."""
    key, certificate = self_signed()
    trust = ssl.create_default_context(cadata=certificate.decode())
    trust.set_alpn_protocols(offered)
    with Emulator(tls=(key, certificate), rest=rest) as emulator:
        plain = socket.create_connection((emulator.host, emulator.port), timeout=10)
        with trust.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            assert agreed == secure.selected_alpn_protocol()


def begin_handshake(connection):
    """Say hello as a TLS client does, and get the first of the answer."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(received, sent, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    connection.sendall(sent.read())
    assert connection.recv(1)


def ends(connection):
    """Return whether the other side closes the connection, before its timeout."""
    while connection.recv(65_536):
        pass
    return True


def test_handshake_ends_when_the_emulator_stops():
    """A client that is about to agree on keys does not outlive the emulator."""
    with (
        Emulator(tls=self_signed()) as emulator,
        socket.create_connection((emulator.host, emulator.port), timeout=5) as connection,
    ):
        begin_handshake(connection)

        emulator.stop()

        assert ends(connection)


def test_handshake_has_its_time(monkeypatch):
    """A client that never finishes its TLS handshake is cut off after a while."""
    monkeypatch.setattr(listener, "HELLO_SECONDS", 1)
    with (
        Emulator(tls=self_signed()) as emulator,
        socket.create_connection((emulator.host, emulator.port), timeout=5) as connection,
    ):
        begin_handshake(connection)

        assert ends(connection)


@pytest.mark.parametrize("rest", [True, False])
def test_key_and_certificate_that_do_not_serve_are_told_so(rest):
    """Key and certificate that are swapped, of different pairs, or not PEM are named in the error, not the address."""
    key, certificate = self_signed()
    for pair in ((certificate, key), (self_signed()[0], certificate), (b"key", b"certificate")):
        with pytest.raises(OSError, match="cannot serve TLS with this key and certificate"):
            Emulator(tls=pair, rest=rest).start()


def test_tls_clients_that_leave_harm_nobody():
    """Clients that leave right after the TLS handshake, or a moment later, do no harm."""
    key, certificate = self_signed()
    trust = ssl.create_default_context(cadata=certificate.decode())
    with Emulator(tls=(key, certificate)) as emulator:
        for number in range(50):
            trust.set_alpn_protocols(["h2"] if number % 2 else [])
            with socket.create_connection((emulator.host, emulator.port), timeout=10) as plain:
                if number % 3:
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leave with a reset
                trust.wrap_socket(plain, server_hostname="127.0.0.1").close()

        trust.set_alpn_protocols([])
        secure = http.client.HTTPSConnection("127.0.0.1", emulator.port, context=trust, timeout=10)
        secure.request("GET", "/")
        assert b"Ok\n" == secure.getresponse().read()
        secure.close()
