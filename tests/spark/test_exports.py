"""Spark reads the exports of a Cloud Storage subscription."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

from pubsub_spark.emulator import Emulator
from tests.conftest import Names


def test_spark_finds_everything_that_was_published(spark: SparkSession, names: Names, tmp_path: Path):
    """Text objects are lines of text to Spark, one for each message, whatever folders their names make."""
    (tmp_path / "lake").mkdir()
    published = [f"message {number}" for number in range(3000)]
    with Emulator(storage_root=tmp_path) as emulator:
        emulator.create_topic(names.topic)
        config = {"bucket": "lake", "max_messages": 1000, "filename_datetime_format": "YYYY/MM/DD/hh_mm_ss"}
        emulator.create_subscription(names.subscription, names.topic, cloud_storage_config=config)
        emulator.publish(names.topic, *published)
        while emulator.backlog(names.subscription):
            emulator.advance(301)  # the last object ends by its time
            time.sleep(0.2)  # for the writer: without it, all messages are soon older than their retention

    rows = spark.read.option("recursiveFileLookup", True).text(str(tmp_path / "lake")).collect()

    assert set(published) == {row.value for row in rows}
