"""The YAML file of an emulator's initial resources. No socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pubsub_spark.emulator import seed_file
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.rpc.registry import Registry
from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.seed_file import SeedFileError
from pubsub_spark.emulator.state.state import State

EXAMPLE = """
project: my-project
schemas:
  flight: {type: AVRO, definitionFile: flight.avsc}
  ping: {type: PROTOCOL_BUFFER, definition: 'syntax = "proto3"; message Ping { string from = 1; }'}
topics:
  flights: {schemaSettings: {schema: flight, encoding: BINARY}, messageRetentionDuration: 600s}
  projects/other/topics/dead:
subscriptions:
  flights-sub:
    topic: flights
    ackDeadlineSeconds: 60
    filter: 'attributes:origin'
    deadLetterPolicy: {deadLetterTopic: projects/other/topics/dead}
  plain: {topic: flights, enable_message_ordering: true}
"""


@pytest.fixture
def services() -> Iterator[Registry]:
    engine = Engine(State(), Clock())
    yield Registry(engine, Faults())
    engine.close()


def written(folder: Path, text: str) -> Path:
    (folder / "flight.avsc").write_text('{"type": "record", "name": "Flight", "fields": []}')
    path = folder / "pubsub.yaml"
    path.write_text(text)
    return path


def test_everything_in_the_file_is_created(services, tmp_path):
    """Short ids in the file's project, full names and fields in both spellings are created."""
    seed_file.load(written(tmp_path, EXAMPLE), services)
    get = services.subscriber.get_subscription
    flights = get(protos.GetSubscriptionRequest(subscription="projects/my-project/subscriptions/flights-sub"))
    plain = get(protos.GetSubscriptionRequest(subscription="projects/my-project/subscriptions/plain"))
    topic = services.publisher.get_topic(protos.GetTopicRequest(topic="projects/my-project/topics/flights"))

    assert ("projects/my-project/topics/flights", 60, "attributes:origin", "projects/other/topics/dead") == (
        flights.topic,
        flights.ack_deadline_seconds,
        flights.filter,
        flights.dead_letter_policy.dead_letter_topic,
    )
    assert plain.enable_message_ordering
    assert ("projects/my-project/schemas/flight", 600) == (
        topic.schema_settings.schema,
        topic.message_retention_duration.seconds,
    )


def test_empty_file_is_an_empty_emulator(services, tmp_path):
    """An empty file is not an error."""
    seed_file.load(written(tmp_path, ""), services)
    assert [] == list(services.publisher.list_topics(protos.ListTopicsRequest(project="projects/my-project")).topics)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "is not YAML"),
        ("[" * 3000, "is not YAML"),
        ("topics: {abc: {labels: {since: 2020-13-45}}}", "is not YAML"),
        ("project: p\ntopics:\n  abc: {}\n  abc: {labels: {a: b}}", "`abc` stands twice in one mapping of"),
        ("project: [p]", "`project` in"),
        ("[]", "must be a mapping of project, schemas, topics, subscriptions, not something else."),
        ("topic: {}", "subscriptions, not `topic`."),
        ("a: &a {a: *a}", "is not YAML: maximum recursion depth exceeded"),
        (
            "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)),
            "has more than 100,000 values, counting the repeats of its aliases.",
        ),
        ("topics: [a]", "`topics` in"),
        ("topics: {abc: [x]}", "`topics.abc` in"),
        ("topics: {abc: }", "needs `project` at the top"),
        ("project: p\ntopics: {ab: }", "`ab` is not an id"),
        ("project: p\ntopics: {abc: {label: x}}", 'no field named "label"'),
        ("project: p\ntopics: {abc: {labels: {version: 2}}}", "labels field: the value must be a text, in quotes."),
        (
            "project: p\ntopics: {abc: {schemaSettings: 5}}",
            "schemaSettings field: the value must be a mapping of fields.",
        ),
        ("project: p\nsubscriptions: {abc: {topic: missing}}", "Resource not found (resource=missing)."),
        ("project: p\nsubscriptions: {abc: {}}", "`topic` is required."),
        ("project: p\ntopics: {abc: {name: projects/p/topics/other}}", "`name` is the key before the fields"),
        ("project: p\nschemas: {abc: {type: [AVRO]}}", "`type` must be one of PROTOCOL_BUFFER, AVRO."),
        ("project: p\nschemas: {abc: {type: AVRO, file: x, 5: y}}", "`5` is not one of type, definition,"),
        ("project: p\nschemas: {abc: {type: XML}}", "`type` must be one of PROTOCOL_BUFFER, AVRO."),
        ("project: p\nschemas: {abc: {type: AVRO, file: x}}", "`file` is not one of type, definition, definitionFile."),
        ("project: p\nschemas: {abc: {type: AVRO, definitionFile: none}}", "none` cannot be read: No such file"),
        ("project: p\nschemas: {abc: {type: AVRO, definition: '{'}}", "Invalid schema definition"),
    ],
)
def test_file_that_does_not_fit_is_refused(services, tmp_path, text, part):
    """A seed file that does not fit is refused with an error message that names place and cause."""
    with pytest.raises(SeedFileError) as error:
        seed_file.load(written(tmp_path, text), services)
    assert part in str(error.value)
    assert "pubsub.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_file_that_is_not_there_is_a_sentence(services, tmp_path):
    """The error has the name and the system's reason, without its number."""
    with pytest.raises(
        seed_file.SeedFileError, match=r"missing\.yaml` cannot be read: No such file or directory\. Pass the path"
    ):
        seed_file.load(tmp_path / "missing.yaml", services)
