"""The rig that plays production. Each test has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pubsub_spark.emulator import Emulator
from tests.production.front import Rig, production


@pytest.fixture
def rig(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Yield Google Cloud in front of the test's emulator."""
    with production(emulator.endpoint, tmp_path_factory.mktemp("rig")) as running:
        yield running
