"""Ingestion from Cloud Storage, with folders for buckets: once each, by glob and time, with states."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from tests.rpc.conftest import SUB, TOPIC, Client, wait_until

ACTIVE, RESOURCE_ERROR, BUCKET_NOT_FOUND = 1, 2, 4


@pytest.fixture
def root(tmp_path):
    (tmp_path / "bucket").mkdir()
    return tmp_path


@pytest.fixture
def emulator(root):
    """An emulator with folders for buckets."""
    with Emulator(storage_root=root) as running:
        yield running


def ingest(client: Client, bucket: str = "bucket", **settings: object) -> None:
    """The topic, which ingests from a bucket, and its subscription."""
    source = {"cloud_storage": {"bucket": bucket, **({"text_format": {}} | settings)}}
    client.ask("Publisher/CreateTopic", name=TOPIC, ingestion_data_source_settings=source)
    client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC)


def state(client: Client) -> tuple[int, int]:
    topic = client.ask("Publisher/GetTopic", topic=TOPIC)
    return topic.state, topic.ingestion_data_source_settings.cloud_storage.state


def test_objects_become_messages_once(client, emulator, root):
    """Lines of objects that were there and of those that come are published, once each; a change is another object."""
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
    """A topic says that its bucket is not there, and goes on when it is."""
    ingest(client, bucket="later")
    wait_until(lambda: (RESOURCE_ERROR, BUCKET_NOT_FOUND) == state(client))

    (root / "later").mkdir()
    (root / "later" / "a.txt").write_text("a")
    wait_until(lambda: emulator.backlog(SUB) == 1)
    wait_until(lambda: (ACTIVE, ACTIVE) == state(client))


def test_messages_that_are_refused_are_passed_over(client, emulator, root, caplog):
    """A message over the limit is logged, the others of its object are published; a deleted topic ends it."""
    (root / "bucket" / "big.txt").write_bytes(b"a\n" + b"x" * 10_000_001 + b"\nb")
    (root / "bucket" / "zzz.txt").write_text("c")
    ingest(client)

    wait_until(lambda: emulator.backlog(SUB) == 3)
    assert [b"a", b"b", b"c"] == client.data()
    assert "A message of `big.txt` is not published" in caplog.text
    client.ask("Publisher/DeleteTopic", topic=TOPIC)
    wait_until(lambda: f"ingestion {TOPIC}" not in {each.name for each in threading.enumerate()})


def test_export_comes_in_again(client, emulator, root: Path):
    """What a Cloud Storage subscription has written with metadata is ingested by another topic as it was published."""
    ingest(client, pubsub_avro_format={}, text_format=None)
    exported = "projects/p/topics/exported"
    client.ask("Publisher/CreateTopic", name=exported)
    config = {"bucket": "bucket", "max_duration": {"seconds": 60}, "avro_config": {"write_metadata": True}}
    export = "projects/p/subscriptions/export"
    client.ask("Subscriber/CreateSubscription", name=export, topic=exported, cloud_storage_config=config)
    message = protos.PubsubMessage(data=b"x", attributes={"a": "b"})
    client.ask("Publisher/Publish", topic=exported, messages=[message])
    wait_until(lambda: emulator.backlog(export) == 1)
    emulator.advance(61)

    wait_until(lambda: emulator.backlog(SUB) == 1)
    [received] = client.pull()
    assert (b"x", {"a": "b"}) == (received.message.data, dict(received.message.attributes))
