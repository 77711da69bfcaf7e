"""A data directory across two runs of the emulator, by a raw client and as a shell sees it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.iam.v1 import policy_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pubsub_spark.backend import EmulatorBackend, schemas
from pubsub_spark.codec.registry import TopicSchema
from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.journal import restoring
from pubsub_spark.emulator.journal.files import LogFile
from pubsub_spark.schema.protobuf.protoc import compile_text
from tests.rpc.conftest import OTHER, SUB, TOPIC, Client, refused, wait_until

COMMAND = [sys.executable, "-c", "from pubsub_spark.cli import app; app()", "emulator", "--port", "0"]
ACTIVE, RESOURCE_ERROR, NOT_FOUND = 1, 2, 3
SCHEMA, SNAPSHOT = "projects/p/schemas/number", "projects/p/snapshots/then"


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[tuple[Emulator, Client]]:
    with Emulator(data_dir=folder, **options) as emulator:
        client = Client(emulator.endpoint)
        with client.channel:
            yield emulator, client


def write_base(folder: Path) -> None:
    """Let the next emulator begin with a base, and an empty log behind it."""
    log = LogFile(folder)
    restoring.write_base(folder, log.number)
    log.rebase(log.number)
    log.close()


def test_states_follow_the_services_of_each_start(tmp_path: Path):
    """An export whose storage is no longer configured is RESOURCE_ERROR, and ACTIVE when it is configured again."""
    root = tmp_path / "root"
    (root / "bucket").mkdir(parents=True)
    export = {"cloud_storage_config": {"bucket": "bucket"}}
    source = {"cloud_storage": {"bucket": "bucket", "text_format": {}}}
    seen = []
    for start, given in enumerate((root, None, root)):
        with running(tmp_path / "data", storage_root=given) as (_, client):
            if start == 0:
                client.ask("Publisher/CreateTopic", name=TOPIC, ingestion_data_source_settings=source)
                client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC, **export)
            if given is not None:
                wait_until(lambda: client.ask("Publisher/GetTopic", topic=TOPIC).state == ACTIVE)
            topic, subscription = client.ask("Publisher/GetTopic", topic=TOPIC), client.subscription()
            seen.append((topic.state, subscription.state, subscription.cloud_storage_config.state))

    assert [(ACTIVE, ACTIVE, ACTIVE), (RESOURCE_ERROR, RESOURCE_ERROR, NOT_FOUND), (ACTIVE, ACTIVE, ACTIVE)] == seen


def test_a_compiled_schema_is_kept_as_it_was_given(tmp_path: Path):
    """Its bytes are unchanged after a restart, messages are checked by its root, and the connector reads it."""
    [file] = compile_text('syntax = "proto3"; message M { int32 a = 1; }').file
    compiled = {"root_message": "M", "compiled_bytes": FileDescriptorSet(file=[file]).SerializeToString()}
    schema = protos.Schema(type_=1, compiled_proto_schema=compiled)
    with running(tmp_path) as (emulator, client):
        client.ask("SchemaService/CreateSchema", parent="projects/p", schema_id="number", schema=schema)
        both = protos.Schema(type_=1, definition="message M {}", compiled_proto_schema=compiled)
        for wrong in (both, protos.Schema(type_=2, compiled_proto_schema=compiled)):
            with refused("INVALID_ARGUMENT", "`compiled_proto_schema` is for a schema"):
                client.ask("SchemaService/ValidateSchema", parent="projects/p", schema=wrong)
        emulator.create_topic(TOPIC, schema_settings={"schema": SCHEMA, "encoding": "JSON"})
    with running(tmp_path) as (emulator, client):
        kept = client.ask("SchemaService/GetSchema", name=SCHEMA)
        assert ("", compiled["compiled_bytes"]) == (kept.definition, kept.compiled_proto_schema.compiled_bytes)
        client.publish({"data": b'{"a": 1}'})
        with refused("INVALID_ARGUMENT"):
            client.publish({"data": b'{"b": 1}'})
        with EmulatorBackend(emulator.endpoint).connect() as connection:
            revision = schemas.named(connection.admin, SCHEMA)
        assert ["a"] == [field.name for field in TopicSchema("JSON", revision).arrow_type()]


@pytest.mark.parametrize("with_base", [False, True], ids=["log", "base"])
def test_everything_outlives_the_emulator(tmp_path: Path, with_base: bool):
    """Resources, policies, snapshots, messages, leases, attempts, acks, order: from the log alone, and with a base."""
    with running(tmp_path) as (emulator, client):
        emulator.create_schema(SCHEMA, "AVRO", '"int"')
        emulator.create_topic(TOPIC, labels={"a": "b"}, message_retention_duration=600)
        emulator.create_subscription(SUB, TOPIC, enable_message_ordering=True, enable_exactly_once_delivery=True)
        policy = policy_pb2.Policy(bindings=[policy_pb2.Binding(role="roles/viewer", members=["user:a@b.c"])])
        client.ask("IAMPolicy/SetIamPolicy", resource=TOPIC, policy=policy)
        emulator.create_subscription(
            OTHER, TOPIC, dead_letter_policy={"dead_letter_topic": TOPIC, "max_delivery_attempts": 5}
        )
        emulator.publish(TOPIC, *({"data": each, "ordering_key": "k"} for each in (b"1", b"2", b"3")))
        client.ask("Subscriber/CreateSnapshot", name=SNAPSHOT, subscription=SUB)
        [first, *_] = client.pull()
        client.ack(first.ack_id)
        [nacked, *_] = client.pull(OTHER, 1)
        client.modack(0, nacked.ack_id, subscription=OTHER)
        held = client.pull(OTHER, 1)
        before = {
            name: client.ask(rpc, **{field: name})
            for rpc, field, name in (
                ("Publisher/GetTopic", "topic", TOPIC),
                ("Subscriber/GetSubscription", "subscription", SUB),
                ("Subscriber/GetSubscription", "subscription", OTHER),
                ("Subscriber/GetSnapshot", "snapshot", SNAPSHOT),
                ("SchemaService/GetSchema", "name", SCHEMA),
            )
        }

    if with_base:
        write_base(tmp_path)

    with running(tmp_path) as (emulator, client):
        assert before[TOPIC] == client.ask("Publisher/GetTopic", topic=TOPIC)
        assert before[SUB] == client.ask("Subscriber/GetSubscription", subscription=SUB)
        assert before[OTHER] == client.ask("Subscriber/GetSubscription", subscription=OTHER)
        assert before[SNAPSHOT] == client.ask("Subscriber/GetSnapshot", snapshot=SNAPSHOT)
        assert before[SCHEMA] == client.ask("SchemaService/GetSchema", name=SCHEMA)
        assert policy.bindings == client.ask("IAMPolicy/GetIamPolicy", resource=TOPIC).bindings
        assert [b"2", b"3"] == [each.data for each in emulator.messages(SUB) if not each.acked]
        assert [] == client.pull(), "2 and 3 are leased, as before"
        client.ack(held[0].ack_id, subscription=OTHER)
        emulator.advance(11)
        assert [b"2", b"3"] == client.data()
        rest = {each.message.data: each.delivery_attempt for each in client.pull(OTHER)}
        assert {b"1", b"2", b"3"} - {held[0].message.data} == set(rest)
        client.ask("Subscriber/Seek", subscription=SUB, snapshot=SNAPSHOT)
        assert [b"1", b"2", b"3"] == client.data()


def test_a_second_emulator_on_a_directory_is_one_sentence(tmp_path: Path):
    """`pubsub-spark emulator --data-dir` of a directory in use reports that, and ends with 1."""
    with Emulator(data_dir=tmp_path):
        ended = subprocess.run([*COMMAND, "--data-dir", str(tmp_path)], capture_output=True, text=True)

    said = (
        f"The data directory `{tmp_path}` is in use by another emulator. Stop that one, or choose another directory.\n"
    )
    assert (1, "", said) == (ended.returncode, ended.stdout, ended.stderr)


def test_a_seed_file_is_for_an_empty_directory(tmp_path: Path):
    """Resources deleted since the first start do not return with the second."""
    seed = tmp_path / "seed.yaml"
    seed.write_text("project: p\ntopics: {news: {}, other: {}}\n")
    command = [*COMMAND, "--data-dir", str(tmp_path / "data"), "--fsync", "never", "--config", str(seed)]
    found = []
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            client = Client(process.stdout.readline().strip().partition("=")[2])
            with client.channel:
                topics = client.ask("Publisher/ListTopics", project="projects/p").topics
                found.append([topic.name.rpartition("/")[2] for topic in topics])
                if len(topics) == 2:
                    client.ask("Publisher/DeleteTopic", topic=topics[1].name)
            process.kill()

    assert [["news", "other"], ["news"]] == found


def test_a_stream_confirms_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The confirmation of an ack on a stream of an exactly-once subscription waits for the journal."""
    with running(tmp_path) as (emulator, client):
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUB, TOPIC, enable_exactly_once_delivery=True)
        emulator.publish(TOPIC, b"a")
        [received] = client.pull()
        begin = protos.StreamingPullRequest(subscription=SUB, stream_ack_deadline_seconds=10)
        requests = iter([begin, protos.StreamingPullRequest(ack_ids=[received.ack_id])])
        method = "/google.pubsub.v1.Subscriber/StreamingPull"
        write, read = protos.StreamingPullRequest.SerializeToString, protos.StreamingPullResponse.FromString
        writes: list[int] = []
        append = LogFile.append

        def slow(self: LogFile, group: Any) -> int:
            written = append(self, group)
            threading.Event().wait(0.2)  # a confirmation that does not wait is there before
            writes.extend(1 for command in group if command.name == "ack")
            return written

        monkeypatch.setattr(LogFile, "append", slow)
        for response in client.channel.stream_stream(method, write, read)(requests, timeout=10):
            if response.acknowledge_confirmation.ack_ids:
                break

        assert [1] == writes
