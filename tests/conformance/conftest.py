"""Google's emulator and ours, each started once, and the answers of each to the whole script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pubsub_spark.emulator import Emulator
from tests.conformance import player
from tests.conformance.player import Outcome
from tests.servers import google_emulator


@dataclass(frozen=True)
class Answers:
    """The answers to the steps, by their names."""

    ours: dict[str, Outcome]
    google: dict[str, Outcome]


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield `host:port` of Google's emulator, which runs for the whole session."""
    with google_emulator(tmp_path_factory.mktemp("google")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def ours() -> Iterator[tuple[dict[str, Outcome], dict[str, Outcome]]]:
    """Return the answers of our emulator by gRPC and, after a new start, by HTTP."""
    with Emulator() as first, Emulator() as second:
        yield player.play(player.GrpcLine(first.endpoint)), player.play(player.HttpLine(second.endpoint))


@pytest.fixture(scope="session")
def answers(google: str, ours: tuple[dict[str, Outcome], dict[str, Outcome]]) -> Answers:
    """Return the answers of both emulators by gRPC."""
    return Answers(ours[0], player.play(player.GrpcLine(google)))
