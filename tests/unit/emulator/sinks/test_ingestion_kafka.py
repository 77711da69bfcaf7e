"""What becomes of a Kafka record that Pub/Sub would refuse, and an emulator without the client."""

from __future__ import annotations

import sys

import pytest

from pubsub_spark.emulator.sinks.external_services import ExternalServices
from pubsub_spark.emulator.sinks.ingestion_kafka import within_limits


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "v"), ("goog-a", "v"), ("GOOG", "v"), ("n" * 257, "v"), ("\u20ac" * 86, "v"), ("n", "v" * 1025)],
)
def test_attributes_that_would_be_refused_are_left_out(name: str, value: str):
    """The others of the record are kept, up to the limits."""
    longest = {"n" * 256: "v" * 1024}
    assert longest == within_limits({name: value, **longest})


def test_attributes_beyond_a_hundred_are_left_out():
    """The first of them are kept, which are those that say where the record is from."""
    given = {f"h{number}": "v" for number in range(101)}
    assert list(given)[:100] == list(within_limits(given))


@pytest.mark.parametrize(
    ("services", "module", "sentence"),
    [
        (
            {"kafka_endpoint": "h:1"},
            "confluent_kafka",
            "Ingestion from Kafka needs `confluent-kafka`; run `pip install ",
        ),
        ({"kinesis_endpoint": "http://h"}, "boto3", "Ingestion from Kinesis needs `boto3`; run `pip install boto3`."),
    ],
)
def test_client_that_is_missing_is_named(monkeypatch, services: dict[str, str], module: str, sentence: str):
    """An endpoint whose client is not installed is refused at the start."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OSError, match=sentence):
        ExternalServices(**services).sources()
