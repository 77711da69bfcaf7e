"""Ingestion from Cloud Storage, with folders for buckets, and from Kinesis (moto): once each, with states."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.sinks.ingestion_cloud_storage import CloudStorageSource
from pubsub_spark.emulator.sinks.ingestion_source import Portion
from tests.rpc.conftest import SUB, TOPIC, Client, wait_until
from tests.rpc.test_data_dir import COMMAND

ACTIVE, RESOURCE_ERROR, BUCKET_NOT_FOUND = 1, 2, 4
LOOK_SECONDS = 0.5  # between two looks at a source
STREAM_NOT_FOUND, CONSUMER_NOT_FOUND = 4, 5


@pytest.fixture
def root(tmp_path):
    (tmp_path / "bucket").mkdir()
    return tmp_path


@pytest.fixture
def emulator(root, s3):
    """Yield an emulator with folders for buckets, and a server that stands for Kinesis."""
    with Emulator(storage_root=root, kinesis_endpoint=s3) as running:
        yield running


def ingest(client: Client, bucket: str = "bucket", **settings: object) -> None:
    """Create the topic, which ingests from a bucket, and its subscription."""
    source = {"cloud_storage": {"bucket": bucket, **({"text_format": {}} | settings)}}
    client.ask("Publisher/CreateTopic", name=TOPIC, ingestion_data_source_settings=source)
    client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC)


def left(client: Client) -> list[bytes]:
    """Return the messages that are there, which stay there."""
    received = client.pull()
    if received:
        client.modack(0, *(each.ack_id for each in received))
    return [each.message.data for each in received]


def state(client: Client) -> tuple[int, int]:
    topic = client.ask("Publisher/GetTopic", topic=TOPIC)
    return topic.state, topic.ingestion_data_source_settings.cloud_storage.state


def test_objects_become_messages_once(client, emulator, root):
    """Lines of existing and of new objects are published, once each. A changed object is another object."""
    (root / "bucket" / "old.txt").write_text("a\nb\n")
    ingest(client)
    wait_until(lambda: emulator.backlog(SUB) == 2)
    assert (ACTIVE, ACTIVE) == state(client)

    (root / "bucket" / "deep").mkdir()
    (root / "bucket" / "deep" / "new.txt").write_text("c")
    wait_until(lambda: emulator.backlog(SUB) == 3)
    (root / "bucket" / "old.txt").write_text("changed!\n")
    wait_until(lambda: emulator.backlog(SUB) == 4)
    assert [b"a", b"b", b"c", b"changed!"] == client.data()


def test_a_restart_ingests_no_object_again(root: Path, tmp_path: Path):
    """With a data directory an object is read once over all starts, also when the emulator's process was killed."""
    (root / "bucket" / "old.txt").write_text("a\nb\n")
    command = [*COMMAND, "--data-dir", str(tmp_path / "data"), "--storage-root", str(root)]
    for start, expected in enumerate(([b"a", b"b"], [b"a", b"b", b"c"])):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            client = Client(process.stdout.readline().strip().partition("=")[2])
            with client.channel:
                if start == 0:
                    ingest(client)
                else:
                    (root / "bucket" / "new.txt").write_text("c\n")
                wait_until(lambda: len(left(client)) == len(expected))  # noqa: B023
                time.sleep(3 * LOOK_SECONDS)
                assert expected == sorted(left(client))
            process.kill()


def test_glob_and_time_choose(client, emulator, root):
    """Only objects that the glob means, and that are not older than the time, are read."""
    for name, age in (("new.csv", 0), ("old.csv", 10_000), ("new.txt", 0)):
        path = root / "bucket" / name
        path.write_text(name)
        os.utime(path, (time.time() - age,) * 2)
    since = protos.Timestamp(seconds=int(time.time()) - 5000)
    ingest(client, match_glob="**.csv", minimum_object_create_time=since)

    wait_until(lambda: emulator.backlog(SUB) == 1)
    assert [b"new.csv"] == client.data()


def test_bucket_that_is_missing_is_a_state(client, emulator, root):
    """A topic reports that its bucket is missing, and continues once it exists."""
    ingest(client, bucket="later")
    wait_until(lambda: (RESOURCE_ERROR, BUCKET_NOT_FOUND) == state(client))

    (root / "later").mkdir()
    (root / "later" / "a.txt").write_text("a")
    wait_until(lambda: emulator.backlog(SUB) == 1)
    wait_until(lambda: (ACTIVE, ACTIVE) == state(client))
    changed = protos.Topic(name=TOPIC, labels={"a": "b"})
    client.ask("Publisher/UpdateTopic", topic=changed, update_mask={"paths": ["labels"]})
    assert (ACTIVE, ACTIVE) == state(client)


def test_name_that_is_not_utf8_hides_no_neighbour(client, emulator, root, caplog):
    """An object that cannot be read because of its name is logged once. The other objects are ingested."""
    (root / "bucket" / "a.txt").write_text("a")
    (root / "bucket" / os.fsdecode(b"\xff.txt")).write_text("b")
    ingest(client)
    wait_until(lambda: emulator.backlog(SUB) == 1)
    (root / "bucket" / "z.txt").write_text("z")

    wait_until(lambda: emulator.backlog(SUB) == 2)
    assert (ACTIVE, ACTIVE) == state(client)
    assert 1 == caplog.text.count("An object of the bucket `bucket` is not ingested. Rename it:")


def test_errors_that_nobody_expected_are_tried_again(client, emulator, root, monkeypatch, caplog):
    """Any error of a source is logged once as long as it is the same, and the source is read once it is over."""
    looks: list[int] = []
    answer: dict[str, Portion] = {}

    def new(_: CloudStorageSource) -> Iterator[Portion]:
        looks.append(len(looks))
        yield answer["Shards"]

    (root / "bucket" / "a.txt").write_text("a")
    with monkeypatch.context() as failing:
        failing.setattr(CloudStorageSource, "new", new)
        ingest(client)
        wait_until(lambda: len(looks) > 2)

    wait_until(lambda: emulator.backlog(SUB) == 1)
    wait_until(lambda: 1 == caplog.text.count(f"{TOPIC} is ingesting again."))
    assert 1 == caplog.text.count(f"{TOPIC} is not ingesting now: KeyError: 'Shards'")


def test_messages_that_are_refused_are_passed_over(client, emulator, root, caplog):
    """A message over the limit is logged, the others of its object are published. A deleted topic ends it."""
    (root / "bucket" / "big.txt").write_bytes(b"a\n" + b"x" * 10_000_001 + b"\nb")
    (root / "bucket" / "zzz.txt").write_text("c")
    ingest(client)

    wait_until(lambda: emulator.backlog(SUB) == 3)
    assert [b"a", b"b", b"c"] == client.data()
    assert "A message of `big.txt` is not published" in caplog.text
    client.ask("Publisher/DeleteTopic", topic=TOPIC)
    wait_until(lambda: f"ingestion {TOPIC}" not in {each.name for each in threading.enumerate()})


def test_export_comes_in_again(client, emulator, root: Path):
    """Objects that a Cloud Storage subscription wrote with metadata are ingested by another topic as published."""
    ingest(client, pubsub_avro_format={}, text_format=None)
    exported = "projects/p/topics/exported"
    client.ask("Publisher/CreateTopic", name=exported)
    config = {"bucket": "bucket", "max_duration": {"seconds": 60}, "avro_config": {"write_metadata": True}}
    export = "projects/p/subscriptions/export"
    client.ask("Subscriber/CreateSubscription", name=export, topic=exported, cloud_storage_config=config)
    message = protos.PubsubMessage(data=b"x", attributes={"a": "b"})
    client.ask("Publisher/Publish", topic=exported, messages=[message])

    def comes_in() -> bool:
        emulator.advance(61)  # again: the object may have been begun after the last time
        return bool(emulator.backlog(SUB) == 1)

    wait_until(comes_in)
    [received] = client.pull()
    assert (b"x", {"a": "b"}) == (received.message.data, dict(received.message.attributes))


class Kinesis:
    """A stream of the test's own, with two shards and a consumer, on moto's server."""

    def __init__(self, endpoint: str) -> None:
        self.client = boto3.client("kinesis", region_name="us-east-1", endpoint_url=endpoint)
        self.name = f"stream-{uuid.uuid4().hex}"
        self.client.create_stream(StreamName=self.name, ShardCount=2)
        self.arn = self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]["StreamARN"]

    def consumer(self) -> str:
        registered = self.client.register_stream_consumer(StreamARN=self.arn, ConsumerName="pubsub")
        return str(registered["Consumer"]["ConsumerARN"])

    def put(self, *records: str) -> None:
        for each in records:
            self.client.put_record(StreamName=self.name, Data=each.encode(), PartitionKey=each)

    def settings(self, consumer: str, **more: str) -> dict[str, object]:
        roles = {"aws_role_arn": "arn:aws:iam::1:role/r", "gcp_service_account": "a@p.iam.gserviceaccount.com"}
        return {"aws_kinesis": {"stream_arn": self.arn, "consumer_arn": consumer, **roles, **more}}


@pytest.fixture
def kinesis(s3: str, monkeypatch: pytest.MonkeyPatch) -> Kinesis:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anyone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
    return Kinesis(s3)


def test_kinesis_records_become_messages_once(client, emulator, kinesis):
    """Records of every shard that were there and of those that come are published, once each."""
    kinesis.put("a", "b", "c")
    source = kinesis.settings(kinesis.consumer())
    client.ask("Publisher/CreateTopic", name=TOPIC)
    client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC)
    update(client, source)
    wait_until(lambda: emulator.backlog(SUB) == 3)
    kinesis.put("d")
    wait_until(lambda: emulator.backlog(SUB) == 4)

    assert [b"a", b"b", b"c", b"d"] == sorted(client.data())
    assert (ACTIVE, ACTIVE) == kinesis_state(client)


def test_kinesis_that_is_missing_is_a_state(client, kinesis):
    """A topic tells a missing stream from a missing consumer, and continues once the consumer is registered."""
    source = kinesis.settings(f"{kinesis.arn}/consumer/pubsub:1", stream_arn=f"{kinesis.arn}-none")
    client.ask("Publisher/CreateTopic", name=TOPIC, ingestion_data_source_settings=source)
    wait_until(lambda: (RESOURCE_ERROR, STREAM_NOT_FOUND) == kinesis_state(client))
    update(client, kinesis.settings(f"{kinesis.arn}/consumer/pubsub:1"))
    wait_until(lambda: (RESOURCE_ERROR, CONSUMER_NOT_FOUND) == kinesis_state(client))
    update(client, kinesis.settings(kinesis.consumer()))
    wait_until(lambda: (ACTIVE, ACTIVE) == kinesis_state(client))


def update(client: Client, source: dict[str, object]) -> None:
    """Set another source of the topic."""
    changed = protos.Topic(name=TOPIC, ingestion_data_source_settings=source)
    client.ask("Publisher/UpdateTopic", topic=changed, update_mask={"paths": ["ingestion_data_source_settings"]})


def kinesis_state(client: Client) -> tuple[int, int]:
    topic = client.ask("Publisher/GetTopic", topic=TOPIC)
    return topic.state, topic.ingestion_data_source_settings.aws_kinesis.state
