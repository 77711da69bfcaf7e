"""Kafka records that Pub/Sub would refuse, and an emulator without the client."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator.options import EmulatorOptions
from pubsub_spark.emulator.sinks import external_services
from pubsub_spark.emulator.sinks.ingestion_kafka import read_properties, within_limits


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "v"), ("goog-a", "v"), ("GOOG", "v"), ("n" * 257, "v"), ("\u20ac" * 86, "v"), ("n", "v" * 1025)],
)
def test_attributes_that_would_be_refused_are_left_out(name: str, value: str):
    """The record's other attributes are kept, up to the limits."""
    longest = {"n" * 256: "v" * 1024}
    assert longest == within_limits({name: value, **longest})


def test_attributes_beyond_a_hundred_are_left_out():
    """The first hundred are kept, because they contain the origin of the record."""
    given = {f"h{number}": "v" for number in range(101)}
    assert list(given)[:100] == list(within_limits(given))


def test_properties_are_lines(tmp_path: Path):
    """A value may contain `=`. Comments and empty lines are ignored."""
    path = tmp_path / "client.properties"
    path.write_text("# login\n\nsasl.username = me\nsasl.password=a=b \n")

    assert {"sasl.username": "me", "sasl.password": "a=b"} == read_properties(path)

    path.write_text("sasl.username=me\nsasl.password\n")
    with pytest.raises(OSError, match=f"Line 2 of `{path}` must be `name=value`"):
        read_properties(path)
    with pytest.raises(OSError, match=r"cannot be read: .*No such file"):
        read_properties(tmp_path / "missing")


def test_properties_without_a_broker_are_refused(tmp_path: Path):
    """Without a broker they would have no effect."""
    with pytest.raises(OSError, match="Set that broker as `kafka_endpoint`"):
        external_services.sources(EmulatorOptions(kafka_config=tmp_path))


@pytest.mark.parametrize(
    ("services", "module", "sentence"),
    [
        (
            {"kafka_endpoint": "h:1"},
            "confluent_kafka",
            "Ingestion from Kafka needs `confluent-kafka`. Run `pip install ",
        ),
        ({"kinesis_endpoint": "http://h"}, "boto3", "Ingestion from Kinesis needs `boto3`. Run `pip install boto3`."),
    ],
)
def test_client_that_is_missing_is_named(monkeypatch, services: dict[str, Any], module: str, sentence: str):
    """An endpoint whose client is not installed is refused at the start."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OSError, match=sentence):
        external_services.sources(EmulatorOptions(**services))
