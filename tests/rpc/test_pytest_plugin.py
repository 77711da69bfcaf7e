"""The fixtures that the emulator offers to other people's tests."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1

from pubsub_spark.emulator import pytest_plugin

pytest_plugins = ["pubsub_spark.emulator.pytest_plugin"]


def test_clients_find_the_emulator_by_themselves(pubsub_emulator, pubsub_emulator_host):
    """A client made in the test talks to the emulator."""
    publisher = pubsub_v1.PublisherClient()
    publisher.create_topic(name="projects/p/topics/topic")
    publisher.transport.close()

    assert pubsub_emulator_host == os.environ["PUBSUB_EMULATOR_HOST"] == pubsub_emulator.endpoint
    pubsub_emulator.create_subscription("projects/p/subscriptions/sub", "projects/p/topics/topic")
    pubsub_emulator.publish("projects/p/topics/topic", "a")


def test_next_test_finds_it_empty(pubsub_emulator):
    """Resources of the test before are gone, so that they can be created again."""
    pubsub_emulator.create_topic("projects/p/topics/topic")
    pubsub_emulator.create_subscription("projects/p/subscriptions/sub", "projects/p/topics/topic")
    assert 0 == pubsub_emulator.backlog("projects/p/subscriptions/sub")


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs another under `pubsub_local_only`: the sentence of the failure, or None."""

    def refused(client: Callable[[], Any]) -> str | None:
        guard = pytest_plugin.pubsub_local_only.__wrapped__(monkeypatch)  # type: ignore[attr-defined]
        next(guard)
        try:
            client()
            with suppress(StopIteration):
                next(guard)
        except pytest.fail.Exception as failure:
            return str(failure)
        finally:
            monkeypatch.undo()
        return None

    return refused


def connect() -> None:
    """Connect by hand."""
    with socket.socket() as opened:
        opened.connect(("192.0.2.1", 443))


@pytest.mark.parametrize(
    ("client", "where"),
    [
        (lambda: pubsub_v1.PublisherClient(credentials=AnonymousCredentials()), "gRPC to `pubsub.googleapis.com:443`"),
        (lambda: pubsub_v1.SubscriberClient(credentials=AnonymousCredentials()), "gRPC to `pubsub.googleapis.com:443`"),
        (lambda: grpc.insecure_channel("dns:///pubsub.googleapis.com"), "gRPC to `dns:///pubsub.googleapis.com`"),
        (
            lambda: grpc.aio.secure_channel("[2001:db8::1]:443", grpc.ssl_channel_credentials()),
            "gRPC to `[2001:db8::1]",
        ),
        (lambda: urllib.request.urlopen("https://pubsub.googleapis.com/v1"), "a look-up of `pubsub.googleapis.com`"),
        (lambda: socket.create_connection(("192.0.2.1", 443), timeout=1), "a look-up of `192.0.2.1`"),
        (connect, "a socket to `192.0.2.1:443`"),
    ],
    ids=["publisher", "subscriber", "target", "aio", "http", "address", "socket"],
)
def test_client_that_would_leave_the_machine_fails_the_test(refused, client, where, monkeypatch):
    """Google's clients without an emulator, other channels, sockets and names are refused, by their address."""
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    told = refused(client)

    assert f"A client would leave this machine: {where}" in str(told)
    assert str(told).endswith("Use the fixture `pubsub_emulator_host`, or set PUBSUB_EMULATOR_HOST.")


def test_client_on_a_thread_fails_the_test_at_its_end(refused):
    """An attempt of a thread fails the test, though an exception would end the thread only."""

    def on_a_thread() -> None:
        def attempt() -> None:
            with suppress(pytest.fail.Exception):
                socket.getaddrinfo("pubsub.googleapis.com", 443)

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()

    assert "a look-up of `pubsub.googleapis.com`" in str(refused(on_a_thread))


def test_this_machine_is_not_refused(refused, pubsub_emulator):
    """gRPC, HTTP and sockets of this machine work, by every name of the loopback."""

    def use() -> None:
        port = pubsub_emulator.port
        with urllib.request.urlopen(f"http://localhost:{port}/healthz") as response:
            assert 200 == response.status
        for target in (f"127.0.0.1:{port}", f"localhost:{port}", f"ipv4:127.0.0.1:{port}", f"dns:///localhost:{port}"):
            with grpc.insecure_channel(target) as channel:
                grpc.channel_ready_future(channel).result(timeout=20)
        grpc.insecure_channel("unix:/tmp/none").close()

    assert refused(use) is None
