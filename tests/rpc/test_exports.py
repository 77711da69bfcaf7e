"""Cloud Storage subscriptions write objects, through the whole emulator; the clock moves by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
import pytest

from pubsub_spark.emulator import Emulator
from tests.rpc.conftest import SUB, TOPIC, Client, wait_until

NOT_FOUND, SCHEMA_MISMATCH, ACTIVE = 3, 5, 1


@pytest.fixture
def emulator(tmp_path: Path):
    (tmp_path / "lake").mkdir()
    with Emulator(storage_root=tmp_path) as emulator:
        yield emulator


def files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "lake").rglob("*") if path.is_file() and "#" not in path.name)


def lines(tmp_path: Path) -> list[str]:
    return [line for file in files(tmp_path) for line in file.read_text().splitlines()]


def state(client: Client) -> int:
    subscription = client.subscription()
    assert (1 if subscription.cloud_storage_config.state == ACTIVE else 2) == subscription.state
    return int(subscription.cloud_storage_config.state)


def drain(emulator: Emulator, seconds: float = 301) -> None:
    """Let time pass until everything is written."""

    def is_empty() -> bool:
        emulator.advance(seconds)
        return 0 == emulator.backlog(SUB)

    wait_until(is_empty)


def export(emulator: Emulator, **settings):
    emulator.create_topic(TOPIC)
    config = {"bucket": "lake", **settings.pop("config", {})}
    emulator.create_subscription(SUB, TOPIC, cloud_storage_config=config, **settings)


def test_an_object_has_what_was_published_in_its_time(emulator, client, tmp_path):
    """Nothing is written before maxDuration has passed; then everything is, and acknowledged."""
    export(emulator, config={"filename_prefix": "news/", "filename_suffix": ".txt", "max_duration": 60})
    emulator.publish(TOPIC, *map(str, range(50)))
    wait_until(lambda: 50 == emulator._running.engine.broker.subscriptions[SUB].outstanding)
    assert [] == files(tmp_path)
    emulator.publish(TOPIC, *map(str, range(50, 100)))

    drain(emulator, 61)

    assert sorted(map(str, range(100))) == sorted(lines(tmp_path))
    assert {"news"} == {file.parent.name for file in files(tmp_path)}
    assert {".txt"} == {file.suffix for file in files(tmp_path)}
    assert ACTIVE == state(client)


def test_messages_end_an_object(emulator, client, tmp_path):
    """maxMessages makes an object as soon as there are so many; what is left waits for its time."""
    export(emulator, config={"max_messages": 1000})
    client.publish(*({"data": b"%d" % number} for number in range(1000)))
    client.publish(*({"data": b"%d" % number} for number in range(1000, 1500)))

    wait_until(lambda: 500 == emulator.backlog(SUB))
    [file] = files(tmp_path)
    assert 1000 == len(file.read_text().splitlines())
    emulator.advance(301)
    wait_until(lambda: 1500 == len(lines(tmp_path)))


def test_stop_writes_what_is_open(tmp_path):
    """An emulator that is stopped loses nothing of what it has taken for an object."""
    (tmp_path / "lake").mkdir()
    with Emulator(storage_root=tmp_path) as emulator:
        export(emulator)
        emulator.publish(TOPIC, "a", "b")
        wait_until(lambda: 2 == emulator._running.engine.broker.subscriptions[SUB].outstanding)

    assert ["a", "b"] == lines(tmp_path)


def test_missing_bucket_leaves_everything_in_the_backlog(emulator, client, tmp_path):
    """A bucket that is not there is NOT_FOUND; when it is, the export goes on, without an attempt counted."""
    export(emulator, config={"bucket": "later", "max_duration": 60})
    wait_until(lambda: NOT_FOUND == state(client))
    emulator.publish(TOPIC, "a")
    wait_until(lambda: 1 == emulator._running.engine.broker.subscriptions[SUB].outstanding)
    emulator.advance(61)
    wait_until(lambda: 0 == emulator._running.engine.broker.subscriptions[SUB].outstanding)
    assert 1 == emulator.backlog(SUB)

    (tmp_path / "later").mkdir()
    emulator.advance(11)
    wait_until(lambda: 1 == emulator._running.engine.broker.subscriptions[SUB].outstanding)
    emulator.advance(61)

    wait_until(lambda: 0 == emulator.backlog(SUB))
    [record] = emulator.messages(SUB)
    assert (ACTIVE, 0) == (state(client), record.failures)


def test_keys_keep_their_order(emulator, client, tmp_path):
    """A key has one batch under way, so an object ends when more of its messages wait behind it."""
    export(emulator, enable_message_ordering=True)
    for number in range(5):
        emulator.publish(TOPIC, {"data": b"%d" % number, "ordering_key": "k"})

    drain(emulator)

    in_turn = sorted(files(tmp_path), key=lambda file: file.stat().st_mtime_ns)
    assert ["0", "1", "2", "3", "4"] == [line for file in in_turn for line in file.read_text().split()]


def test_records_of_the_topics_schema(emulator, client, tmp_path):
    """Avro objects have the fields of the topic's schema and the metadata."""
    schema = "projects/p/schemas/number"
    emulator.create_schema(schema, "AVRO", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
    emulator.create_topic(TOPIC, schema=schema)
    avro = {"use_topic_schema": True, "write_metadata": True}
    emulator.create_subscription(SUB, TOPIC, cloud_storage_config={"bucket": "lake", "avro_config": avro})
    emulator.publish(TOPIC, b"\x02", b"\x04")
    drain(emulator)

    rows: list[Any] = []
    for file in files(tmp_path):
        with file.open("rb") as content:
            rows += fastavro.reader(content)
    assert [1, 2] == sorted(row["a"] for row in rows)
    assert {SUB} == {row["subscription_name"] for row in rows}


def test_schema_that_objects_cannot_have_is_a_state(emulator, client, tmp_path):
    """Messages of a topic whose schema no Avro object can have stay in the backlog, as SCHEMA_MISMATCH."""
    emulator.create_schema("projects/p/schemas/number", "AVRO", '"int"')
    emulator.create_topic(TOPIC, schema="projects/p/schemas/number")
    config = {"bucket": "lake", "avro_config": {"use_topic_schema": True}}
    emulator.create_subscription(SUB, TOPIC, cloud_storage_config=config)
    emulator.publish(TOPIC, b"\x02")
    wait_until(lambda: 1 == emulator._running.engine.broker.subscriptions[SUB].outstanding)
    emulator.advance(301)

    wait_until(lambda: SCHEMA_MISMATCH == state(client))
    assert ([], 1) == (files(tmp_path), emulator.backlog(SUB))


def test_deleted_and_changed_subscriptions_end_their_export(emulator, client, tmp_path):
    """Another prefix ends the object that is open; a deleted subscription writes nothing any more."""
    export(emulator, config={"filename_prefix": "old-"})
    emulator.publish(TOPIC, "a")
    wait_until(lambda: 1 == emulator._running.engine.broker.subscriptions[SUB].outstanding)
    client.update("cloud_storage_config", cloud_storage_config={"bucket": "lake", "filename_prefix": "new-"})
    wait_until(lambda: 0 == emulator.backlog(SUB))
    assert ["old-"] == [file.name[:4] for file in files(tmp_path)]

    emulator.publish(TOPIC, "b")
    client.ask("Subscriber/DeleteSubscription", subscription=SUB)
    emulator.advance(301)
    assert 1 == len(files(tmp_path))


@contextmanager
def process(root: Path, data: Path):
    """`pubsub-spark emulator` with a data directory, killed at the end; gives its endpoint."""
    code = "from pubsub_spark.cli import app; app()"
    options = ["--port", "0", "--storage-root", str(root), "--data-dir", str(data)]
    running = subprocess.Popen([sys.executable, "-c", code, "emulator", *options], stdout=subprocess.PIPE, text=True)
    try:
        with running:
            assert running.stdout is not None
            yield running.stdout.readline().strip().partition("=")[2]
            running.kill()
    finally:
        running.kill()


def tell(endpoint: str, verb: str, fields: dict[str, Any] | None = None) -> Any:
    body = None if fields is None else json.dumps(fields).encode()
    with urllib.request.urlopen(f"http://{endpoint}/_emulator/{verb}", body) as answer:
        return json.load(answer)


def test_killed_emulator_exports_everything(tmp_path: Path):
    """After `kill -9` between objects, what was published is exported: at least once, none of it lost."""
    (tmp_path / "lake").mkdir()
    published = {f"m{number}" for number in range(2500)}
    with process(tmp_path, tmp_path / "data") as endpoint:
        client = Client(endpoint)
        with client.channel:
            client.ask("Publisher/CreateTopic", name=TOPIC)
            config = {"bucket": "lake", "max_messages": 1000}
            client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC, cloud_storage_config=config)
            for first in range(0, 2500, 500):
                client.publish(*({"data": f"m{number}".encode()} for number in range(first, first + 500)))
        wait_until(lambda: 1000 <= len(lines(tmp_path)))

    with process(tmp_path, tmp_path / "data") as endpoint:

        def is_empty() -> bool:
            tell(endpoint, "advance", {"seconds": 301})
            return bool(0 == tell(endpoint, "backlog")[SUB]["undelivered"])

        wait_until(is_empty)
        assert published == set(lines(tmp_path))
