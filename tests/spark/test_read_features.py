"""Queries of every kind: several sources, joins, triggers, Databricks' columns, the name `pubsub_spark`, a batch
read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT
from tests.spark.scenario import (
    Acked,
    Backlog,
    Committed,
    Do,
    Drain,
    Ends,
    Publish,
    Rows,
    Scenario,
    Start,
    Stop,
    Until,
    needs_metrics,
)


@pytest.fixture
def second(emulator: Emulator, scenario: Scenario) -> str:
    """Return another topic with a subscription."""
    names = scenario.names
    emulator.create_topic(f"{names.topic}-2")
    emulator.create_subscription(f"{names.subscription}-2", f"{names.topic}-2")
    return f"{names.subscription}-2"


def test_two_sources_in_one_query(scenario: Scenario, second: str):
    """A union of two subscriptions: each has its own offsets, both drain, both are acknowledged."""

    def start(run: Scenario) -> None:
        run.query = (
            run.load()
            .union(run.load(subscriptionId=second))
            .writeStream.foreachBatch(run.sink)
            .option("checkpointLocation", str(run.folder / "checkpoint"))
            .start()
        )

    scenario.emulator.publish(f"{scenario.names.topic}-2", "c", "d")
    scenario.run(
        Publish("a", "b"), Do(start), Rows("a", "b", "c", "d"), Acked("a", "b"),
        Until("the second is acknowledged", lambda run: run.emulator.backlog(second) == 0),
    )  # fmt: skip


def test_join_of_two_streams(scenario: Scenario, second: str):
    """Rows of two subscriptions are joined by an attribute, in any order of arrival."""

    def start(run: Scenario) -> None:
        left = run.load().selectExpr("attributes['id'] as id", "data")
        right = run.load(subscriptionId=second).selectExpr("attributes['id'] as id", "data as other")
        run.query = (
            left.join(right, "id")
            .writeStream.foreachBatch(run.sink)
            .option("checkpointLocation", str(run.folder / "checkpoint"))
            .start()
        )

    def answer(run: Scenario) -> None:
        run.emulator.publish(f"{run.names.topic}-2", {"data": b"x", "attributes": {"id": "1"}})

    scenario.run(Publish("a", id="1"), Publish("b", id="2"), Do(start), Acked("a", "b"), Do(answer), Rows("a"))
    assert [{"id": "1", "data": b"a", "other": b"x"}] == scenario.sink.rows


def test_messages_that_were_published_twice_are_one_row(scenario: Scenario):
    """As docs/exactly-once.md shows: in one batch, in two, and after a restart. Without the attribute each is a row."""
    page = (ROOT / "docs" / "exactly-once.md").read_text()
    block = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "dropDuplicates" in block)
    names: dict[str, Any] = {"spark": scenario.spark}

    def start(run: Scenario) -> None:
        here = "".join(f'.option("{name}", "{value}")' for name, value in run.options().items())
        exec(compile(re.sub(r'\.option\("subscriptionId".*?"\)', here, block), "docs/exactly-once.md", "exec"), names)
        checkpoint = str(run.folder / "checkpoint")
        run.query = names["once"].writeStream.foreachBatch(run.sink).option("checkpointLocation", checkpoint).start()

    scenario.run(
        Publish("a", "a", row="1"), Publish("b", row="2"), Do(start), Rows("a", "b"),
        Publish("b", row="2"), Publish("c", "c"), Rows("a", "b", "c", "c"), Committed(), Stop(),
        Publish("a", row="1"), Publish("d", row="3"), Do(start), Rows("a", "b", "c", "c", "d"), Backlog(0),
    )  # fmt: skip


def test_columns_of_a_message(scenario: Scenario):
    """Every field of a message is in its column. A field that was not sent is null."""
    scenario.run(Publish("a", key="k", colour="red"), Publish("b"), Start(), Rows("a", "b"))
    first, plain = scenario.sink.rows
    [record, _] = scenario.emulator.messages(scenario.names.subscription)

    assert ["message_id", "data", "attributes", "publish_time", "ordering_key", "delivery_attempt"] == list(first)
    assert (record.message_id, b"a", [("colour", "red")], "k", None) == (
        first["message_id"],
        first["data"],
        list(dict(first["attributes"]).items()),
        first["ordering_key"],
        first["delivery_attempt"],
    )
    assert abs(record.publish_time - first["publish_time"].timestamp()) < 0.001
    assert (b"b", {}, None) == (plain["data"], dict(plain["attributes"]), plain["ordering_key"])


def test_columns_and_options_of_databricks(scenario: Scenario):
    """A query written for Databricks' connector: its columns, its option names, and `pubsub_spark` for a name."""
    names = scenario.names
    given: dict[str, Any] = {
        "format": "pubsub_spark",
        "columns": "databricks",
        "projectId": names.project,
        "subscriptionId": names.subscription_id,
        "topicId": names.topic_id,
        "numFetchPartitions": 2,
        "maxBytesPerTrigger": "10m",
        "maxRecordsPerFetch": 1000,
        "maxFetchPeriod": "1s",
    }
    scenario.run(Publish("a", colour="red"), Start(**given), Backlog(0))
    [row] = scenario.sink.rows
    [record] = scenario.emulator.messages(names.subscription)

    assert ["messageId", "payload", "attributes", "publishTimestampInMillis"] == list(row)
    assert (record.message_id, b"a", {"colour": "red"}, int(record.publish_time * 1000)) == (
        row["messageId"],
        row["payload"],
        json.loads(row["attributes"]),
        row["publishTimestampInMillis"],
    )


def test_batch_read_creates_nothing(scenario: Scenario):
    """`spark.read` of a subscription that does not exist is an error, also with `topicId`."""
    name = f"{scenario.names.subscription}-missing"
    read = scenario.spark.read.format("pubsub").options(
        **scenario.options(subscriptionId=name, topicId=scenario.names.topic)
    )
    with pytest.raises(Exception, match=f"Subscription `{name}` does not exist"):
        read.load().collect()
    with pytest.raises(Exception, match=f"Subscription `{name}` does not exist"):  # not created by the first
        read.load().collect()


def test_batch_read_acknowledges_nothing(scenario: Scenario):
    """`spark.read` shows up to `maxMessages`, nacks them, and acknowledges nothing."""
    scenario.run(Publish(*(f"m{n}" for n in range(20))))
    seen = scenario.spark.read.format("pubsub").options(**scenario.options(maxMessages=10)).load().collect()

    assert 10 == len({row.message_id for row in seen})
    scenario.run(Backlog(20))
    records = scenario.emulator.messages(scenario.names.subscription)
    assert [] == [record for record in records if record.acked or record.ack_deadline is not None]


def test_missing_subscription_is_created(scenario: Scenario):
    """A first start with `topicId` creates the subscription. `deleteSubscriptionOnStreamStop` deletes it."""
    name = f"{scenario.names.subscription}-new"
    start = Start(subscriptionId=name, topicId=scenario.names.topic, deleteSubscriptionOnStreamStop="true")
    scenario.run(
        start, Until("a subscription", lambda run: name in _subscriptions(run)),
        Publish("a"), Rows("a"), Until("the ack", lambda run: all(each.acked for each in run.emulator.messages(name))),
        Stop(), Until("no subscription", lambda run: name not in _subscriptions(run)),
    )  # fmt: skip


def _subscriptions(run: Scenario) -> list[str]:
    with grpc.insecure_channel(run.emulator.endpoint) as channel:
        client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        return [each.name for each in client.list_subscriptions(project=f"projects/{run.names.project}")]


_OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
[_METRICS_BLOCK] = [
    block
    for block in re.findall(r"```python\n(.*?)```", _OPERATIONS, re.DOTALL)
    if block.startswith("import json\n\nmetrics")
]
_METRICS_TABLE = _OPERATIONS.partition("| metric | |\n")[2].partition("\n\n")[0]


def counts(run: Scenario) -> dict[str, Any]:
    """Return the metrics of a query, as the block on the page gets them. None before its first progress."""
    if run.running.lastProgress is None:
        return {}
    names: dict[str, Any] = {"query": run.running}
    exec(compile(_METRICS_BLOCK, "operations.md", "exec"), names)
    return dict(names["metrics"])


def test_stream_of_json_payloads(scenario: Scenario):
    """`decode=json` in a stream: values of a DDL, and a reason for a payload that does not match it."""
    good, bad = '{"carrier": "UA", "delay": 11}', '{"delay": "late"}'
    scenario.run(
        Start(decode="json", schema="carrier STRING, delay INT"), Publish(good, bad), Rows(good, bad), Acked(good, bad),
    )  # fmt: skip
    by_payload = {bytes(row["data"]).decode(): row for row in scenario.sink.rows}
    assert ("UA", 11) == (by_payload[good]["value"]["carrier"], by_payload[good]["value"]["delay"])
    assert by_payload[bad]["value"] is None
    assert by_payload[bad]["decode_error"].startswith("`delay` must be an integer of 32 bits")


@needs_metrics
def test_malformed_payloads_are_counted(scenario: Scenario):
    """The metric `malformed` has the payloads of committed batches that could not be decoded."""
    good, bad = '{"delay": 11}', '{"delay": "late"}'
    scenario.run(
        Start(decode="json", schema="delay INT"), Publish(good, bad), Rows(good, bad), Acked(good, bad),
        Publish("{}"), Rows(good, bad, "{}"), Committed(),
        Until("one malformed payload in the counts", lambda run: counts(run).get("malformed") == 1),
    )  # fmt: skip


@needs_metrics
def test_progress_has_the_counts(scenario: Scenario):
    """`lastProgress` shows the messages that were read, are buffered, and were acknowledged."""
    scenario.run(
        Start(), Publish("a", "b"), Rows("a", "b"), Acked("a", "b"), Publish("c"), Rows("a", "b", "c"), Committed(),
        Until("two messages in the counts", lambda run: counts(run).get("messages", 0) >= 2),
    )  # fmt: skip
    documented = set(re.findall("`([a-zA-Z]+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", _METRICS_TABLE))))
    assert documented == set(counts(scenario))
    assert (scenario.names.subscription, True) == (counts(scenario)["subscription"], counts(scenario)["connected"])


def test_metrics_of_a_scheduled_run_are_in_a_file(scenario: Scenario, tmp_path: Path):
    """Also on Spark 4.0 and 4.1, which run one batch and ask a source for no metrics."""
    scenario.run(Publish("a", "b"), Drain(metricsLocation=str(tmp_path)), Rows("a", "b"))

    [file] = tmp_path.glob("*.prom")
    assert f'pubsub_spark_messages_total{{subscription="{scenario.names.subscription}"}} 2\n' in file.read_text()


def test_trigger_once(scenario: Scenario):
    """A `once` query waits for a message and reads one batch. The next start acknowledges it and reads another."""
    once = {"once": True}
    scenario.run(
        Publish("a", "b"), Start(once), Ends(), Rows("a", "b"),
        Publish("c"), Start(once), Ends(), Rows("a", "b", "c"), Acked("a", "b"),
    )  # fmt: skip


def test_processing_time_trigger(scenario: Scenario):
    """The last batch of a query with a processing-time trigger is acknowledged at the next tick, without a batch."""
    scenario.run(Start({"processingTime": "1 second"}), Publish("a"), Rows("a"), Acked("a"))
