"""Export subscriptions write objects and rows, through the whole emulator. The clock moves by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.sinks.storage_root import StorageRoot
from tests.rpc.conftest import SUB, TOPIC, Client, leased, wait_until

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
    """Let time pass until everything is written.

    Where a write takes longer than the lease by the clock that moves here, it is done again: at least once.
    """
    ends = time.monotonic() + 20
    while emulator.backlog(SUB):
        assert time.monotonic() < ends
        emulator.advance(seconds)
        with suppress(AssertionError):
            wait_until(lambda: 0 == emulator.backlog(SUB), seconds=0.2)


def export(emulator: Emulator, **settings):
    emulator.create_topic(TOPIC)
    config = {"bucket": "lake", **settings.pop("config", {})}
    emulator.create_subscription(SUB, TOPIC, cloud_storage_config=config, **settings)


def test_an_object_has_what_was_published_in_its_time(emulator, client, tmp_path):
    """Nothing is written before maxDuration has passed. Then everything is, and acknowledged."""
    export(emulator, config={"filename_prefix": "news/", "filename_suffix": ".txt", "max_duration": 60})
    emulator.publish(TOPIC, *map(str, range(50)))
    wait_until(lambda: 50 == leased(emulator))
    assert [] == files(tmp_path)
    emulator.publish(TOPIC, *map(str, range(50, 100)))

    drain(emulator, 61)

    assert set(map(str, range(100))) == set(lines(tmp_path))
    assert {"news"} == {file.parent.name for file in files(tmp_path)}
    assert {".txt"} == {file.suffix for file in files(tmp_path)}
    assert ACTIVE == state(client)


def test_messages_end_an_object(emulator, client, tmp_path):
    """maxMessages makes an object as soon as it is reached. The remaining messages wait for their time."""
    export(emulator, config={"max_messages": 1000})
    client.publish(*({"data": b"%d" % number} for number in range(1000)))
    client.publish(*({"data": b"%d" % number} for number in range(1000, 1500)))

    wait_until(lambda: 500 == emulator.backlog(SUB))
    [file] = files(tmp_path)
    assert 1000 == len(file.read_text().splitlines())
    drain(emulator)
    assert 1500 == len(set(lines(tmp_path)))


def test_stop_writes_what_is_open(tmp_path):
    """An emulator that is stopped loses no message that it has taken for an object."""
    (tmp_path / "lake").mkdir()
    with Emulator(storage_root=tmp_path) as emulator:
        export(emulator)
        emulator.publish(TOPIC, "a", "b")
        wait_until(lambda: 2 == leased(emulator))

    assert ["a", "b"] == lines(tmp_path)


def test_missing_bucket_leaves_everything_in_the_backlog(emulator, client, tmp_path):
    """A missing bucket is NOT_FOUND. Once it exists, the export continues, without an attempt counted."""
    export(emulator, config={"bucket": "later", "max_duration": 60})
    wait_until(lambda: NOT_FOUND == state(client))
    emulator.publish(TOPIC, "a")
    wait_until(lambda: 1 == leased(emulator))
    emulator.advance(61)
    wait_until(lambda: 0 == leased(emulator))
    assert 1 == emulator.backlog(SUB)

    (tmp_path / "later").mkdir()
    emulator.advance(11)
    wait_until(lambda: 1 == leased(emulator))
    emulator.advance(61)

    wait_until(lambda: 0 == emulator.backlog(SUB))
    [record] = emulator.messages(SUB)
    assert (ACTIVE, 0) == (state(client), record.failures)


def test_state_outlives_an_update_of_something_else(emulator, client):
    """A missing bucket is still missing when another field of the subscription is changed."""
    export(emulator, config={"bucket": "missing"})
    wait_until(lambda: NOT_FOUND == state(client))
    changed = protos.Subscription(name=SUB, labels={"a": "b"})

    client.ask("Subscriber/UpdateSubscription", subscription=changed, update_mask={"paths": ["labels"]})

    assert NOT_FOUND == state(client)


def test_errors_that_nobody_expected_are_tried_again(emulator, client, tmp_path, monkeypatch, caplog):
    """An error of a destination is logged once as long as it is the same, and so is its end. Nothing is lost."""
    attempts: list[bytes] = []

    def put(_: StorageRoot, __: str, ___: str, content: bytes) -> None:
        attempts.append(content)
        raise KeyError(f"attempt: {len(attempts)}")

    with monkeypatch.context() as failing:
        failing.setattr(StorageRoot, "put", put)
        export(emulator, config={"max_duration": 60})
        emulator.publish(TOPIC, "a")
        for attempt in range(1, 4):
            wait_until(lambda: 1 == leased(emulator))
            emulator.advance(61)
            wait_until(lambda: attempt == len(attempts))  # noqa: B023
            wait_until(lambda: 0 == leased(emulator))
            emulator.advance(10)

    drain(emulator, 61)

    assert ["a"] == lines(tmp_path)
    assert 1 == caplog.text.count(f"{SUB} is not exporting now: KeyError")
    assert 1 == caplog.text.count(f"{SUB} is exporting again.")


def test_keys_keep_their_order(emulator, client, tmp_path):
    """A key has one batch under way, so an object ends when more of its messages wait behind it."""
    export(emulator, enable_message_ordering=True)
    for number in range(5):
        emulator.publish(TOPIC, {"data": b"%d" % number, "ordering_key": "k"})

    drain(emulator)

    in_turn = sorted(files(tmp_path), key=lambda file: file.stat().st_mtime_ns)
    assert ["0", "1", "2", "3", "4"] == [*dict.fromkeys(line for file in in_turn for line in file.read_text().split())]


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
    assert {1, 2} == {row["a"] for row in rows}
    assert {SUB} == {row["subscription_name"] for row in rows}


def test_schema_that_objects_cannot_have_is_a_state(emulator, client, tmp_path):
    """Messages of a topic whose schema no Avro object can have stay in the backlog, as SCHEMA_MISMATCH."""
    emulator.create_schema("projects/p/schemas/number", "AVRO", '"int"')
    emulator.create_topic(TOPIC, schema="projects/p/schemas/number")
    config = {"bucket": "lake", "avro_config": {"use_topic_schema": True}}
    emulator.create_subscription(SUB, TOPIC, cloud_storage_config=config)
    emulator.publish(TOPIC, b"\x02")
    wait_until(lambda: 1 == leased(emulator))
    emulator.advance(301)

    wait_until(lambda: SCHEMA_MISMATCH == state(client))
    assert ([], 1) == (files(tmp_path), emulator.backlog(SUB))


def test_deleted_and_changed_subscriptions_end_their_export(emulator, client, tmp_path):
    """Another prefix ends the open object. A deleted subscription writes nothing any more."""
    export(emulator, config={"filename_prefix": "old-"})
    emulator.publish(TOPIC, "a")
    wait_until(lambda: 1 == leased(emulator))
    client.update("cloud_storage_config", cloud_storage_config={"bucket": "lake", "filename_prefix": "new-"})
    wait_until(lambda: 0 == emulator.backlog(SUB))
    assert ["old-"] == [file.name[:4] for file in files(tmp_path)]

    emulator.publish(TOPIC, "b")
    client.ask("Subscriber/DeleteSubscription", subscription=SUB)
    emulator.advance(301)
    assert 1 == len(files(tmp_path))


@contextmanager
def process(root: Path, data: Path):
    """Start `pubsub-spark emulator` with a data directory, yield its endpoint, and kill it at the end."""
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
    """After `kill -9` between objects all published messages are exported at least once."""
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


def test_killed_emulator_does_not_keep_what_it_had_leased(tmp_path: Path):
    """An object that was open at `kill -9` is written within `max_duration` of the next start, not after its leases."""
    (tmp_path / "lake").mkdir()
    with process(tmp_path, tmp_path / "data") as endpoint:
        client = Client(endpoint)
        with client.channel:
            client.ask("Publisher/CreateTopic", name=TOPIC)
            config = {"bucket": "lake", "max_duration": {"seconds": 60}}
            client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC, cloud_storage_config=config)
            client.publish({"data": b"a"}, {"data": b"b"})
        wait_until(lambda: tell(endpoint, "backlog")[SUB]["leased"] == 2)

    with process(tmp_path, tmp_path / "data") as endpoint:
        wait_until(lambda: tell(endpoint, "backlog")[SUB]["leased"] == 2)
        tell(endpoint, "advance", {"seconds": 61})
        wait_until(lambda: ["a", "b"] == sorted(lines(tmp_path)))


def test_killed_emulator_does_not_double_what_it_could_not_write(tmp_path: Path):
    """Messages waiting for a bucket at `kill -9` are written once after the next start."""
    with process(tmp_path, tmp_path / "data") as endpoint:
        client = Client(endpoint)
        with client.channel:
            client.ask("Publisher/CreateTopic", name=TOPIC)
            config = {"bucket": "lake", "max_duration": {"seconds": 60}}
            client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC, cloud_storage_config=config)
            client.publish({"data": b"a"}, {"data": b"b"})
        wait_until(lambda: tell(endpoint, "backlog")[SUB]["leased"] == 2)
        tell(endpoint, "advance", {"seconds": 61})
        wait_until(lambda: tell(endpoint, "backlog")[SUB]["leased"] == 0)

    (tmp_path / "lake").mkdir()
    with process(tmp_path, tmp_path / "data") as endpoint:
        wait_until(lambda: tell(endpoint, "backlog")[SUB]["leased"] >= 2)
        tell(endpoint, "advance", {"seconds": 61})
        wait_until(lambda: tell(endpoint, "backlog")[SUB]["undelivered"] == 0)

        assert ["a", "b"] == sorted(lines(tmp_path))
        assert 0 == tell(endpoint, "backlog")[SUB]["leased"]


def test_a_subscription_that_becomes_an_export_leaves_leases_to_those_who_pulled(emulator, client, tmp_path):
    """A message that a client holds is not exported while its lease lasts, and the client's ack is good."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC, ack_deadline_seconds=600)
    emulator.publish(TOPIC, "held")
    [held] = client.ask("Subscriber/Pull", subscription=SUB, max_messages=1).received_messages
    config = {"name": SUB, "topic": TOPIC, "cloud_storage_config": {"bucket": "lake", "max_duration": {"seconds": 60}}}
    client.ask("Subscriber/UpdateSubscription", subscription=config, update_mask={"paths": ["cloud_storage_config"]})
    emulator.publish(TOPIC, "exported")
    wait_until(lambda: 2 == leased(emulator))

    client.ask("Subscriber/Acknowledge", subscription=SUB, ack_ids=[held.ack_id])
    drain(emulator, 61)

    assert ["exported"] == lines(tmp_path)


class BigQuery:
    """A subscription to a DuckDB table of the test's own."""

    def __init__(self, root: Path) -> None:
        self.path = root / "my-project.duckdb"

    def run(self, statement: str) -> list[Any]:
        with duckdb.connect(str(self.path)) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture
def bigquery(tmp_path: Path) -> Iterator[tuple[Emulator, Client, BigQuery]]:
    with Emulator(bigquery_root=tmp_path) as emulator:
        client = Client(emulator.endpoint)
        with client.channel:
            yield emulator, client, BigQuery(tmp_path)


def insert_into(emulator: Emulator, schema: str | None = None, **config: Any) -> None:
    emulator.create_topic(TOPIC, schema=schema, encoding="JSON")
    emulator.create_subscription(SUB, TOPIC, bigquery_config={"table": "my-project.lake.news", **config})


def bigquery_state(client: Client) -> str:
    config = client.subscription().bigquery_config
    return str(config.DESCRIPTOR.enum_types_by_name["State"].values_by_number[config.state].name)


def test_rows_with_metadata(bigquery):
    """Without a schema the table has the data, and the metadata if the subscription asks for it."""
    emulator, client, tables = bigquery
    tables.run("CREATE SCHEMA lake")
    tables.run(
        "CREATE TABLE lake.news (data BLOB, subscription_name VARCHAR, message_id VARCHAR, publish_time TIMESTAMPTZ,"
        " attributes JSON)"
    )
    insert_into(emulator, write_metadata=True)
    [message_id] = emulator.publish(TOPIC, {"data": b"\xff", "attributes": {"a": "b"}})
    drain(emulator, 1)

    [found] = tables.run("SELECT DISTINCT data, subscription_name, message_id, attributes->>'a' FROM lake.news")
    assert (b"\xff", SUB, message_id, "b") == found
    assert "ACTIVE" == bigquery_state(client)


def test_rows_by_the_topics_schema(bigquery):
    """Fields become columns of their types. A table that lacks one holds up everything until it has it."""
    emulator, client, tables = bigquery
    tables.run("CREATE SCHEMA lake")
    tables.run("CREATE TABLE lake.news (n BIGINT)")
    fields = [
        {"name": "n", "type": "int"},
        {"name": "r", "type": {"type": "record", "name": "R2", "fields": [{"name": "x", "type": "string"}]}},
        {"name": "days", "type": {"type": "array", "items": {"type": "int", "logicalType": "date"}}},
    ]
    definition = json.dumps({"type": "record", "name": "R", "fields": fields})
    emulator.create_schema("projects/p/schemas/news", "AVRO", definition)
    insert_into(emulator, "projects/p/schemas/news", use_topic_schema=True)
    emulator.publish(TOPIC, b'{"n": 7, "r": {"x": "y"}, "days": [1]}')
    wait_until(lambda: emulator.advance(1) is None and "SCHEMA_MISMATCH" == bigquery_state(client))
    assert 1 == emulator.backlog(SUB)

    tables.run("ALTER TABLE lake.news ADD COLUMN r STRUCT(x VARCHAR)")
    tables.run("ALTER TABLE lake.news ADD COLUMN days DATE[]")
    drain(emulator, 11)

    assert [(7, "y", date(1970, 1, 2))] == tables.run("SELECT DISTINCT n, r.x, days[1] FROM lake.news")
    assert ("ACTIVE", 0) == (bigquery_state(client), emulator.messages(SUB)[0].failures)


def test_missing_table_is_not_found(bigquery):
    """A table is never created. Once it exists, the rows arrive."""
    emulator, client, tables = bigquery
    insert_into(emulator, use_table_schema=True)
    emulator.publish(TOPIC, '{"a": 1}')
    wait_until(lambda: "NOT_FOUND" == bigquery_state(client))
    tables.run("CREATE SCHEMA lake")
    tables.run("CREATE TABLE lake.news (a INTEGER)")
    drain(emulator, 11)

    assert [(1,)] == tables.run("SELECT DISTINCT a FROM lake.news")


def test_rows_that_do_not_fit_are_dead_letters(bigquery):
    """A message that is no row of the table is nacked until it is a dead letter. Its neighbours are rows."""
    emulator, _, tables = bigquery
    tables.run("CREATE SCHEMA lake")
    tables.run("CREATE TABLE lake.news (a INTEGER NOT NULL, bytes BLOB)")
    dead, grave = "projects/p/topics/dead", "projects/p/subscriptions/grave"
    emulator.create_topic(dead)
    emulator.create_subscription(grave, dead)
    emulator.create_topic(TOPIC)
    emulator.create_subscription(
        SUB,
        TOPIC,
        bigquery_config={"table": "my-project.lake.news", "use_table_schema": True},
        dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": 5},
        retry_policy={"minimum_backoff": {}, "maximum_backoff": {}},
    )
    deep = "[" * 50_000
    emulator.publish(TOPIC, '{"a": 1}', '{"a": "x"}', "no", '{"b": 1}', '{"a": 3, "bytes": "abc"}', deep, '{"a": 2}')
    drain(emulator, 11)

    assert [(1,), (2,)] == tables.run("SELECT DISTINCT a FROM lake.news ORDER BY a")
    assert 5 == emulator.backlog(grave)
