"""Fixtures for pytest, which finds them by itself in every environment that has the package (entry point `pytest11`).

One emulator serves the whole session, and is empty at the start of each test. Nothing is imported or started before a
test asks for a fixture. docs/testing.md has examples.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pubsub_spark.emulator import Emulator


@pytest.fixture(scope="session")
def _pubsub_emulator_of_the_session() -> Iterator[Emulator]:
    from pubsub_spark.emulator import Emulator

    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def pubsub_emulator(_pubsub_emulator_of_the_session: Emulator) -> Emulator:
    """A running emulator without any resource."""
    _pubsub_emulator_of_the_session.reset()
    return _pubsub_emulator_of_the_session


@pytest.fixture
def pubsub_emulator_host(pubsub_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> str:
    """The emulator's `host:port`, which PUBSUB_EMULATOR_HOST holds during the test."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub_emulator.endpoint)
    return pubsub_emulator.endpoint


@pytest.fixture
def pubsub_local_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test when a client of this process would leave this machine: a channel, a socket, a name to look up."""
    import grpc

    on_threads: list[str] = []  # a failure on another thread would only end that thread

    def refuse(attempt: str) -> None:
        sentence = (
            f"A client would leave this machine: {attempt}. Use the fixture `pubsub_emulator_host`, or set "
            "PUBSUB_EMULATOR_HOST."
        )
        if threading.current_thread() is not threading.main_thread():
            on_threads.append(sentence)
        pytest.fail(sentence, pytrace=False)

    def guard(owner: Any, name: str, verb: str, host_of: Callable[..., str | None]) -> None:
        original = getattr(owner, name)

        def guarded(*arguments: Any, **settings: Any) -> Any:
            host = host_of(*arguments, **settings)
            if host is not None:
                refuse(f"{verb} `{host}`")
            return original(*arguments, **settings)

        monkeypatch.setattr(owner, name, guarded)

    for owner in (grpc, grpc.aio):
        for name in ("insecure_channel", "secure_channel"):
            guard(owner, name, "gRPC to", _far_target)
    for name in ("connect", "connect_ex"):
        guard(socket.socket, name, "a socket to", _far_address)
    guard(socket, "getaddrinfo", "a look-up of", _far_host)
    yield
    if on_threads:
        pytest.fail(on_threads[0], pytrace=False)


def _far_target(target: str, *_: Any, **__: Any) -> str | None:
    if target.startswith(("unix:", "unix-abstract:")):
        return None
    address = re.sub(r"^(dns|ipv4|ipv6):|.*/", "", target)
    return None if _is_here(re.sub(r":\d+$", "", address).strip("[]")) else target


def _far_address(_: socket.socket, address: Any) -> str | None:
    return None if not isinstance(address, tuple) or _is_here(str(address[0])) else f"{address[0]}:{address[1]}"


def _far_host(host: Any, *_: Any, **__: Any) -> str | None:
    text = host.decode() if isinstance(host, bytes) else host
    return None if text is None or _is_here(text) else text


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower().rstrip(".") in ("localhost", "")
    return address.is_loopback or address.is_unspecified
