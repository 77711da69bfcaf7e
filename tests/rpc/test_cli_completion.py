"""A shell completes commands, the values of choices, and the names of resources."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from pubsub_spark.cli import app
from pubsub_spark.emulator import Emulator


def completed(line: str, environment: dict[str, str]) -> list[str]:
    """Return the words that bash offers for the last one of a line."""
    words = line.split(" ")
    asked = {"_PUBSUB_SPARK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(app, [], env={**environment, **asked})
    assert "" == result.stderr
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pubsub-spark emulator st", ["start", "stop", "status"]),
        ("pubsub-spark topics create t --message-encoding j", ["json"]),
        ("pubsub-spark schemas create s --type ", ["avro", "protocol-buffer"]),
        ("pubsub-spark emulator run --fsync n", ["never"]),
        ("pubsub-spark options re", ["reading"]),
    ],
)
def test_choices_are_completed(line: str, words: list[str]):
    """Commands and the values of choices need no service."""
    assert words == completed(line, {})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pubsub-spark topics describe or", ["orders", "orders-dead"]),
        ("pubsub-spark publish orders-", ["orders-dead"]),
        ("pubsub-spark subscriptions create x --topic orders-", ["orders-dead"]),
        ("pubsub-spark pull to", ["to-lake"]),
        ("pubsub-spark emulator messages ", ["to-lake"]),
        ("pubsub-spark topics list --project other or", []),
    ],
)
def test_resources_are_completed(line: str, words: list[str], emulator: Emulator, environment: dict[str, str]):
    """Ids of the project's resources are asked for."""
    for topic in ("orders", "orders-dead", "news"):
        emulator.create_topic(f"projects/my-project/topics/{topic}")
    emulator.create_subscription("projects/my-project/subscriptions/to-lake", "projects/my-project/topics/news")

    assert words == completed(line, environment)


def test_without_a_service_nothing_is_completed(environment: dict[str, str]):
    """A missing emulator completes nothing, and prints nothing into the line."""
    assert [] == completed("pubsub-spark topics describe or", {**environment, "PUBSUB_EMULATOR_HOST": "127.0.0.1:1"})
