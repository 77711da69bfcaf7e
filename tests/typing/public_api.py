"""User code, checked by mypy in `make lint` and never run: the types of the public API are part of it.

`assert_type` fails if a type changes. A `type: ignore` fails if a mistake is no longer found (`warn_unused_ignores`).
"""

from __future__ import annotations

from typing import assert_type

from pyspark.sql import DataFrame, SparkSession

import pubsub_spark
from pubsub_spark.emulator import Emulator, Record, Recorded
from pubsub_spark.errors import ForbiddenError, OptionsError, PubSubError, ResourceError, ServiceError
from pubsub_spark.write import WriteMetrics, WriteSummary


def connector(spark: SparkSession, messages: DataFrame) -> int:
    assert_type(pubsub_spark.__version__, str)
    pubsub_spark.register(spark)
    pubsub_spark.register("spark")  # type: ignore[arg-type]
    pubsub_spark.unknown  # type: ignore[attr-defined] # noqa: B018
    spark.dataSource.register(pubsub_spark.PubSubDataSource)
    summary = WriteSummary(spark)
    messages.write.format(summary.format).mode("append").option("topicId", "t").save()
    assert_type(summary.value, WriteMetrics)
    assert_type(summary.value + summary.value, WriteMetrics)
    return assert_type(summary.value.messages, int)


def errors(error: PubSubError) -> str:
    match error:
        case OptionsError():
            return "correct the options"
        case ForbiddenError():
            return assert_type(str(error), str)
        case ResourceError() | ServiceError():
            return "correct the project, or try again"
        case _:
            return "other"


def emulator() -> None:
    with Emulator(record=True) as running:
        assert_type(running, Emulator)
        assert_type(running.endpoint, str)
        running.create_topic("projects/p/topics/t", enableMessageOrdering=True)
        running.create_subscription("projects/p/subscriptions/s", "projects/p/topics/t")
        assert_type(
            running.publish("projects/p/topics/t", b"a", "b", {"data": b"c", "attributes": {"k": "v"}}), list[str]
        )
        running.publish("projects/p/topics/t", 1)  # type: ignore[arg-type]
        record = running.messages("projects/p/subscriptions/s")[0]
        assert_type(record, Record)
        assert_type(record.attributes, dict[str, str])
        assert_type(running.calls, list[Recorded])
        assert_type(running.backlog("projects/p/subscriptions/s"), int)
        running.advance(10)
        running.fail("Publish", "UNAVAILABLE", count=2)
        running.fail("Publish", "UNAVAILBLE")  # type: ignore[arg-type]
        running.chaos(seed=1)
    Emulator(prot=1)  # type: ignore[call-arg]


async def emulator_in_asyncio() -> None:
    async with Emulator() as running:
        assert_type(running, Emulator)
