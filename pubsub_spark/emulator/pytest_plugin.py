"""An emulator for pytest, which finds it by itself in every environment that has the package (entry point `pytest11`).

Nothing is imported and nothing started before a test asks for one of the two fixtures. `pubsub_emulator` is a running
Emulator, empty at the start of each test; one server serves the whole session, so a test costs milliseconds.
`pubsub_emulator_host` is its address, and PUBSUB_EMULATOR_HOST says so while the test runs: Google's clients that are
made in the test use it.

    def test_orders_arrive(pubsub_emulator, pubsub_emulator_host):
        pubsub_emulator.create_topic("projects/p/topics/orders")
        ...
        assert 0 == pubsub_emulator.backlog("projects/p/subscriptions/orders")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

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
