"""Spark's writer classes: refusals on the driver, pickling to tasks, and the log at the end."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import types as spark
from pyspark.sql.connect.session import SparkSession

from pubsub_spark.backend import EmulatorBackend
from pubsub_spark.errors import OptionsError, SchemaError
from pubsub_spark.options import WriteOptions
from pubsub_spark.write import WriteSummary
from pubsub_spark.write.metrics import WriteMetrics
from pubsub_spark.write.writer import PublishCommitMessage, PubSubBatchWriter, PubSubStreamWriter, rows_to_arrow

OPTIONS = WriteOptions.parse({"topicId": "projects/p/topics/ttt"}, {})
BACKEND = EmulatorBackend("nowhere:1")
BYTES = spark.StructType([spark.StructField("data", spark.BinaryType())])


@pytest.mark.parametrize("writer", [PubSubBatchWriter, PubSubStreamWriter])
def test_a_writer_travels(writer):
    """A writer is plain values, because Spark pickles it to every task."""
    made = writer(OPTIONS, BACKEND, BYTES, overwrite=False)

    assert vars(made) == vars(pickle.loads(pickle.dumps(made)))


@pytest.mark.parametrize("writer", [PubSubBatchWriter, PubSubStreamWriter])
def test_columns_are_looked_at_when_it_is_made(writer):
    """Columns are checked when the writer is made, on the driver, before any task."""
    with pytest.raises(SchemaError, match="`data` is `bigint`"):
        writer(OPTIONS, BACKEND, spark.StructType([spark.StructField("data", spark.LongType())]), overwrite=False)


@pytest.mark.parametrize(
    ("writer", "sentence"),
    [
        (PubSubBatchWriter, r'`mode\("overwrite"\)` is not supported, .*\. Use `mode\("append"\)`'),
        (
            PubSubStreamWriter,
            r'`outputMode\("complete"\)` is not supported, .*\. Use `outputMode\("append"\)`, or',
        ),
    ],
)
def test_nothing_is_overwritten(writer, sentence):
    """`overwrite` is refused, because published messages cannot be taken back. The error has the fix."""
    with pytest.raises(OptionsError, match=sentence):
        writer(OPTIONS, BACKEND, BYTES, overwrite=True)


def written(partition: int, **counts: int) -> PublishCommitMessage:
    return PublishCommitMessage(partition, 0, 7, WriteMetrics(**counts))


def test_a_commit_says_the_sum(caplog):
    """A commit logs one line with the sum of the messages that the tasks of the micro-batch have published."""
    made = PubSubStreamWriter(OPTIONS, BACKEND, BYTES, overwrite=False)
    with caplog.at_level(logging.INFO, "pubsub_spark"):
        made.commit([written(0, messages=2, bytes=10, requests=1), written(1, messages=3, bytes=20, retries=1)], 7)

    assert [
        "batch 7 published to projects/p/topics/ttt: 5 messages, 30 bytes, 1 requests, 1 retries, "
        "0 rows dropped, 0 dead-lettered"
    ] == caplog.messages


def test_a_commit_of_rows_that_name_their_topics_names_none(caplog):
    """Where each row has its own topic, batch writes and streams say that in the place of a topic's name."""
    columns = spark.StructType([*BYTES.fields, spark.StructField("topic", spark.StringType())])
    options = WriteOptions.parse({"projectId": "p"}, {})
    with caplog.at_level(logging.INFO, "pubsub_spark"):
        PubSubBatchWriter(options, BACKEND, columns, overwrite=False).commit([])
        PubSubStreamWriter(options, BACKEND, columns, overwrite=False).commit([], 7)

    counts = "0 messages, 0 bytes, 0 requests, 0 retries, 0 rows dropped, 0 dead-lettered"
    assert [
        f"published to the topics of the rows: {counts}",
        f"batch 7 published to the topics of the rows: {counts}",
    ] == caplog.messages


@pytest.mark.parametrize("writer", [PubSubBatchWriter, PubSubStreamWriter])
def test_a_commit_warns_of_rows_that_were_dropped(caplog, writer):
    """With `onOversize=drop` a WARNING reports how many rows of the write or the micro-batch were not published."""
    made = writer(OPTIONS, BACKEND, BYTES, overwrite=False)
    made.commit(
        [written(0, messages=2, dropped=1), written(1, dropped=2)], *([7] if writer is PubSubStreamWriter else [])
    )

    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("3 rows are over a limit of Pub/Sub and were not published to projects/p/topics/ttt,")


def test_an_abort_says_what_cannot_be_taken_back(caplog):
    """Tasks that failed have no message. The others' messages are out."""
    PubSubBatchWriter(OPTIONS, BACKEND, BYTES, overwrite=False).abort([None, written(1, messages=3)])

    assert caplog.messages[0].startswith("the write failed. Tasks that ended well had published 3 messages")


def test_a_summary_needs_classic_spark():
    """A session of Spark Connect has no accumulators: the error says so, and names the place of the counts."""
    session: Any = SparkSession.__new__(SparkSession)

    with pytest.raises(RuntimeError, match=r"which a session of Spark Connect does not have. The log of the Connect"):
        WriteSummary(session)


def test_rows_become_arrow_batches():
    """For Spark 4.0, whose streams hand over rows: ten thousand at a time, none for none."""
    columns = spark.StructType(
        [spark.StructField("data", spark.StringType()), spark.StructField("n", spark.LongType())]
    )
    batches = list(rows_to_arrow(iter([Row(data=str(n), n=n) for n in range(10_001)]), columns))

    assert [10_000, 1] == [len(batch) for batch in batches]
    assert {"data": "10000", "n": 10_000} == batches[1].to_pylist()[0]
    assert [] == list(rows_to_arrow(iter([]), columns))
