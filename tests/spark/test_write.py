"""Writing, end to end: DataFrames and streams through Spark into the emulator's memory."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from pubsub_spark.backend import from_options
from pubsub_spark.emulator import Emulator
from pubsub_spark.options import WriteOptions
from pubsub_spark.source import PubSubDataSource
from pubsub_spark.write import WriteSummary
from pubsub_spark.write.writer import PubSubStreamWriter
from tests.conftest import Names
from tests.spark.scenario import until

MISSING = "projects/p/topics/missing"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [{"name": "id", "type": "long"}, {"name": "carrier", "type": ["null", "string"]}],
    }
)


class Topic:
    """A topic with a subscription that remembers the published messages, and the options to write to it."""

    def __init__(self, emulator: Emulator, names: Names) -> None:
        self.emulator = emulator
        self.names = names
        self.options = {"backend": "emulator", "endpoint": emulator.endpoint, "topicId": names.topic}

    def make(self, **settings: Any) -> Topic:
        self.emulator.create_topic(self.names.topic, **settings)
        self.emulator.create_subscription(self.names.subscription, self.names.topic, enable_message_ordering=True)
        return self

    def append(self, df: DataFrame, format: str = "pubsub", **options: str) -> None:  # noqa: A002 - Spark's name for it
        df.write.format(format).mode("append").options(**(self.options | options)).save()

    def refuses(self, df: DataFrame, **options: str) -> str:
        with pytest.raises(Exception) as caught:
            self.append(df, **options)
        return str(caught.value)

    @property
    def messages(self) -> list[Any]:
        return self.emulator.messages(self.names.subscription)

    @property
    def data(self) -> list[bytes]:
        return sorted(message.data for message in self.messages)


@pytest.fixture
def topic(emulator: Emulator, names: Names) -> Topic:
    """Return an open topic without a schema."""
    return Topic(emulator, names).make()


def test_every_row_is_published_once(spark: SparkSession, topic: Topic):
    """Six thousand rows in three partitions, each a message with its attributes."""
    rows = spark.range(0, 6000, 1, 3).selectExpr("string(id) data", "map('half', string(id div 2)) attributes")
    topic.append(rows)

    expected = {(b"%d" % i, str(i // 2)): 1 for i in range(6000)}
    assert expected == Counter((message.data, message.attributes["half"]) for message in topic.messages)


def test_a_thread_of_the_program_writes(spark: SparkSession, topic: Topic):
    """A thread that has made a DataFrame of local rows has an active session, and Spark finds the source in it."""

    def write(number: int) -> None:
        spark.createDataFrame([(1,)], "n int")
        topic.append(spark.range(number, number + 1).selectExpr("string(id) data"))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, range(4)))

    assert [b"0", b"1", b"2", b"3"] == topic.data


def test_an_empty_dataframe_is_a_success(spark: SparkSession, topic: Topic):
    """No rows, no messages, no error. Nor with no partitions."""
    topic.append(spark.range(0).selectExpr("string(id) data"))
    topic.append(spark.createDataFrame([], "data binary"))

    assert [] == topic.messages


def test_columns_of_any_case_and_an_ordering_key(spark: SparkSession, topic: Topic):
    """`orderingKey` takes a column of numbers. The messages of each key are in the order of the rows."""
    rows = spark.range(0, 3000, 1, 1).selectExpr("string(id) DATA", "id % 7 AS device")
    topic.append(rows, orderingKey="Device", maxBatchMessages="50")

    for key in range(7):
        of_key = [int(message.data) for message in topic.messages if message.ordering_key == str(key)]
        assert list(range(key, 3000, 7)) == of_key


def test_a_topic_for_each_row(spark: SparkSession, emulator: Emulator, topic: Topic):
    """The column `topic`, an id or a full name, decides if no `topicId` is set."""
    other, inbox = f"{topic.names.topic}-other", f"{topic.names.subscription}-other"
    emulator.create_topic(other)
    emulator.create_subscription(inbox, other)
    rows = spark.createDataFrame([("a", topic.names.topic_id), ("b", other)], "data string, topic string")

    options = {"backend": "emulator", "endpoint": emulator.endpoint, "projectId": topic.names.project}
    rows.write.format("pubsub").mode("append").options(**options).save()

    assert [b"a"] == topic.data
    assert [b"b"] == [message.data for message in emulator.messages(inbox)]


def test_rows_become_what_to_json_makes_of_them(spark: SparkSession, topic: Topic):
    """On a topic without a schema a row is JSON, number for number and character for character as Spark writes it."""
    rows = spark.sql(
        """
        SELECT id, cast(id AS tinyint) tiny, id / 4 ratio, cast(id / 8 AS float) real, cast(id AS decimal(20, 3)) price,
               id % 2 = 0 even, if(id % 3 = 0, NULL, concat('"q"\\\\ \\n\\u0007 ä', id)) text,
               cast(string(id) AS binary) raw, date_add(date'2024-02-27', int(id)) day,
               timestamp'2024-03-31 00:30:00.123456' + make_interval(0, 0, 0, 0, int(id)) at,
               timestamp_ntz'2024-03-31 00:30:00.5' local, array(id, NULL) list, array(struct(id AS a, NULL AS b)) deep,
               map('k', id, 'n', NULL) names, map(id, array('x')) numbers,
               if(id = 1, NULL, struct(id AS a, struct(NULL AS c) AS b)) nested, NULL nothing,
               if(id = 2, double('NaN'), if(id = 3, double('-Infinity'), 0.5D)) odd
        FROM range(0, 12, 1, 2)
        """
    )
    json_of_spark = rows.select(sf.to_json(sf.struct("*")).alias("json")).toArrow()["json"].to_pylist()
    expected = sorted(text.encode() for text in json_of_spark)
    topic.append(rows)

    assert expected == topic.data


@pytest.mark.parametrize("zone", ["GMT+8", "America/New_York"])
def test_rows_have_times_in_the_zone_of_the_session(spark: SparkSession, topic: Topic, zone: str):
    """Times are written in the session's zone, by any name that Spark takes, also with an offset in odd seconds."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = spark.sql(
            "SELECT timestamp_seconds(s) at FROM VALUES (0), (1774960200), (-5364662400) AS t(s)"
        ).coalesce(1)
        json_of_spark = rows.select(sf.to_json(sf.struct("*")).alias("json")).toArrow()["json"].to_pylist()
        topic.append(rows)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))

    assert sorted(text.encode() for text in json_of_spark) == topic.data


@pytest.fixture
def avro_topic(emulator: Emulator, names: Names) -> Topic:
    """Return a topic with an Avro schema, messages in its binary encoding."""
    emulator.create_schema(names.schema, "AVRO", AVRO)
    return Topic(emulator, names).make(schema=names.schema)


def test_rows_are_encoded_by_the_schema_of_the_topic(spark: SparkSession, avro_topic: Topic):
    """The service has checked every message against the schema. Attributes are sent next to it."""
    rows = spark.createDataFrame(
        [(1, "AA", {"a": "b"}), (2, None, None)], "ID long, carrier string, attributes map<string,string>"
    )
    avro_topic.append(rows, attributeColumns="carrier")

    assert [b"\x02\x02\x04AA", b"\x04\x00"] == avro_topic.data
    [first] = [message for message in avro_topic.messages if message.data == b"\x02\x02\x04AA"]
    assert {("a", "b"), ("carrier", "AA")} <= set(first.attributes.items())


def test_a_struct_value_is_encoded_by_the_schema(spark: SparkSession, avro_topic: Topic):
    """A column `value`, as our reader returns it, is the message."""
    rows = spark.createDataFrame([("m", (3, "UA"))], "message_id string, value struct<id: long, carrier: string>")
    avro_topic.append(rows)

    assert [b"\x06\x02\x04UA"] == avro_topic.data


def test_columns_that_do_not_fit_the_schema_are_told_before_any_task(spark: SparkSession, avro_topic: Topic):
    """The error about a column that does not fit has its name, the schema's type and the type found, before any task
    runs."""
    text = avro_topic.refuses(spark.createDataFrame([("x", "AA")], "id string, carrier string"))

    assert "SchemaError" in text
    assert "`id`" in text
    assert [] == avro_topic.messages


def test_json_where_encoding_is_switched_off(spark: SparkSession, emulator: Emulator, topic: Topic):
    """`encode=topic` on a topic without a schema is refused, `encode=none` never asks for one."""
    rows = spark.range(1)

    assert f"Topic `{topic.names.topic}` has no schema for `encode=topic`" in topic.refuses(rows, encode="topic")
    topic.append(rows, encode="none")
    assert [b'{"id":0}'] == topic.data


def test_a_summary_counts_what_was_published(spark: SparkSession, topic: Topic):
    """The summary counts several writes of one program."""
    summary = WriteSummary(spark)
    rows = spark.range(0, 2500, 1, 1).selectExpr("string(id) data")
    topic.append(rows, format=summary.format)
    topic.append(rows.limit(10), format=summary.format)

    assert (2510, 4, 0) == (summary.value.messages, summary.value.requests, summary.value.retries)


def test_failing_calls_cost_retries_and_no_message(spark: SparkSession, emulator: Emulator, topic: Topic):
    """The service refuses for a while. The write then continues."""
    emulator.fail("Publish", "UNAVAILABLE", count=3)
    summary = WriteSummary(spark)
    topic.append(spark.range(0, 5000, 1, 1).selectExpr("string(id) data"), format=summary.format)

    assert 5000 == len(topic.messages)
    assert 3 == summary.value.retries


def test_each_write_names_its_rows(spark: SparkSession, topic: Topic):
    """`idAttribute` is another for every row and for every write."""
    rows = spark.range(0, 100, 1, 3).selectExpr("string(id) data")
    topic.append(rows, idAttribute="row")
    topic.append(rows, idAttribute="row")

    assert 200 == len({message.attributes["row"] for message in topic.messages})


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (["id data"], {}, "`data` is `bigint`, but must be binary or string"),
        (["string(id) data"], {"topicIdd": "x", "maxBatchMessages": "0"}, "`topicidd` is not an option; did you mean"),
        (["cast(NULL AS binary) data"], {}, "Row 0 of partition 0: `data` is null or empty, and there are no"),
        (["repeat('x', 10000000) data"], {}, "Row 0 of partition 0: `data` makes a request of 10,000,"),
        (["string(id) data", "map('googx', 'a') attributes"], {}, "`attributes` has the key `googx`, but names that"),
        (["string(id) data"], {"topicId": MISSING}, f"Topic `{MISSING}` does not exist"),
        (["id"], {"topicId": MISSING}, f"Topic `{MISSING}` does not exist"),
    ],
)
def test_bad_input_is_one_sentence(
    spark: SparkSession, topic: Topic, columns: str, options: dict[str, str], sentence: str
):
    """Bad input is one sentence inside Spark's exception, and nothing was published."""
    assert sentence in topic.refuses(spark.range(0, 1, 1, 1).selectExpr(*columns), **options)
    assert [] == topic.messages


def test_permission_denied_names_the_role(spark: SparkSession, emulator: Emulator, topic: Topic):
    """The error of a refused right names the role and the topic."""
    emulator.fail("Publish", "PERMISSION_DENIED", message="no")
    text = topic.refuses(spark.range(1).selectExpr("string(id) data"))

    assert f"Permission to publish to Topic `{topic.names.topic}` is denied. Grant the caller `roles/pubsub.pub" in text


def test_an_address_where_nobody_listens_is_named(spark: SparkSession, topic: Topic):
    """The error names an address without a server, within `connectTimeout`."""
    text = topic.refuses(spark.range(1).selectExpr("string(id) data"), endpoint="127.0.0.1:1", connectTimeout="1s")

    assert "`127.0.0.1:1` did not answer when asked to publish to Topic" in text


def test_overwrite_is_refused(spark: SparkSession, topic: Topic):
    """A topic cannot be emptied by its publisher."""
    rows = spark.range(1).selectExpr("string(id) data")
    with pytest.raises(Exception, match=r"`mode\(\"overwrite\"\)` is not supported, because a topic keeps"):
        rows.write.format("pubsub").mode("overwrite").options(**topic.options).save()


def test_no_write_mode_is_an_error_of_spark(spark: SparkSession, topic: Topic):
    """Spark's default is `errorifexists`, which it refuses itself before we are asked."""
    rows = spark.range(1).selectExpr("string(id) data")
    with pytest.raises(Exception, match="ErrorIfExists"):
        rows.write.format("pubsub").options(**topic.options).save()


def stream(topic: Topic, rows: DataFrame, checkpoint: Path, mode="append", format="pubsub", **options: str):  # noqa: A002
    """Run a stream to its end."""
    query = (
        rows.writeStream.format(format)
        .options(**(topic.options | options))
        .option("checkpointLocation", str(checkpoint))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


@pytest.fixture
def batches(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Return a stream of three micro-batches of ten rows."""
    for part in range(3):
        rows = spark.range(part * 10, part * 10 + 10, 1, 1).selectExpr("string(id) data")
        rows.write.parquet(f"{tmp_path}/in/{part}")
    source = spark.readStream.schema("data string").option("maxFilesPerTrigger", 1)
    return source.parquet(f"{tmp_path}/in/*")


def test_a_stream_publishes_each_batch(spark: SparkSession, topic: Topic, batches: DataFrame, tmp_path: Path):
    """A stream publishes every row once, named by query, batch, partition and row, and the summary counts them."""
    summary = WriteSummary(spark)
    stream(topic, batches, tmp_path / "checkpoint", idAttribute="row", format=summary.format)

    assert sorted(b"%d" % i for i in range(30)) == topic.data
    assert {"0/0", "1/0", "2/0"} == {message.attributes["row"].split("/", 1)[1][:3] for message in topic.messages}
    assert 30 == summary.value.messages


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("complete", r"`outputMode\(\"complete\"\)` is not supported, because a topic keeps its messages"),
        ("update", "does not support Update mode"),
    ],
)
def test_only_append_is_for_a_topic(topic: Topic, batches: DataFrame, tmp_path: Path, mode: str, sentence: str):
    """We refuse `complete`, with an error that says what to do. Spark refuses `update`."""
    with pytest.raises(Exception, match=sentence):
        stream(topic, batches.groupBy("data").count(), tmp_path / "checkpoint", mode=mode)


class FailsAfterwards(PubSubStreamWriter):
    """A stream's writer whose every task fails once in every batch, when it has published all of its rows."""

    marks: str

    def write(self, iterator: Any) -> Any:
        written = super().write(iterator)
        mark = Path(self.marks) / f"{written.batch_id}-{written.partition}"
        if not mark.exists():
            mark.touch()
            raise RuntimeError("injected failure")
        return written


class FailingSource(PubSubDataSource):
    """The source with that writer. Its option `projectId` names the folder of the marks."""

    @classmethod
    def name(cls) -> str:
        return "failing_pubsub"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FailsAfterwards:
        options = WriteOptions.parse(self._given, {})
        made = FailsAfterwards(options, from_options(options), schema, overwrite)
        assert options.project is not None
        made.marks = options.project
        return made


@pytest.mark.long
def test_retried_tasks_can_be_told_by_their_ids(spark, topic, batches, tmp_path):
    """Every task of every batch fails when it has published. The next try assigns every row its id again, and Spark
    drops the second message by it."""
    spark.dataSource.register(FailingSource)
    marks = tmp_path / "marks"
    marks.mkdir()

    def run() -> bool:
        query = (
            batches.writeStream.format("failing_pubsub")
            .options(**topic.options, idAttribute="row", projectId=str(marks))
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        try:
            return query.awaitTermination(60) is not False
        except StreamingQueryException as error:
            if "injected failure" not in str(error):
                raise
            return False

    tries = 1
    while not run():
        tries += 1

    assert 4 == tries
    assert {b"%d" % i: 2 for i in range(30)} == Counter(message.data for message in topic.messages)
    ids = {(message.data, message.attributes["row"]) for message in topic.messages}
    assert 30 == len(ids)
    [query_id] = {row.split("/")[0] for _, row in ids}
    assert {f"{query_id}/{batch}/0/{row}" for batch in range(3) for row in range(10)} == {row for _, row in ids}

    options = topic.options | {"subscriptionId": topic.names.subscription}
    back = spark.readStream.format("pubsub").options(**options, stagingLocation=f"{tmp_path}/staged").load()
    back = back.selectExpr("string(data) data", "attributes['row'] row", "publish_time")
    once = back.withWatermark("publish_time", "10 minutes").dropDuplicatesWithinWatermark(["row"])
    sink = once.writeStream.format("parquet").option("path", f"{tmp_path}/out")
    query = sink.option("checkpointLocation", f"{tmp_path}/back").start()
    try:
        until(lambda: topic.emulator.backlog(topic.names.subscription) == 0, lambda: str(query.lastProgress))
    finally:
        query.stop()
    found = spark.read.parquet(f"{tmp_path}/out").toArrow()["data"].to_pylist()
    assert sorted(str(i) for i in range(30)) == sorted(found)
