"""A scenario of each test's own: its topic, its subscription, its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pubsub_spark.emulator import Emulator
from tests.conftest import Names
from tests.spark.scenario import Scenario


@pytest.fixture
def scenario(spark: SparkSession, emulator: Emulator, names: Names, tmp_path: Path) -> Iterator[Scenario]:
    """Yield a scenario of one topic with one plain subscription. Queries that still run at the end are ended."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    made = Scenario(spark, emulator, names, tmp_path)
    yield made
    made.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark 4.0 and 4.1 leave the socket of `toArrow` to the garbage collector, which here is an error."""
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
