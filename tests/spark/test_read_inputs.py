"""Bad input to `readStream`: each mistake is a sentence that a person finds in Spark's exception."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tests.spark.scenario import BOUND, Fails, Scenario, Start

GOOD = {"subscriptionId": "projects/p/subscriptions/sub", "endpoint": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        ({"maxMessage": "5"}, ["`maxmessage` is not an option; did you mean `maxMessages`?"]),
        ({"colour": "red"}, ["`colour` is not an option"]),
        ({"subscriptionId": None}, ["`subscriptionId` is required, e.g. `projects/my-project/subscriptions/my-sub`"]),
        ({"subscriptionId": "sub-without-project"}, ["needs `projectId`"]),
        ({"subscriptionId": "projects/p/topics/t"}, ["`projects/p/topics/t` is not of the form"]),
        ({"maxMessagesPerTrigger": "0"}, ["`maxMessagesPerTrigger` must be at least 1, got `0`"]),
        ({"ackDeadlineSeconds": "60"}, ["`ackDeadlineSeconds` is not an option of a query", "--ack-deadline 60"]),
        ({"idleTimeout": "soon"}, ["`idleTimeout` must be a duration such as `500ms`, `10s` or `5m`, got `soon`"]),
        ({"failOnDataLoss": "maybe"}, ["`failOnDataLoss` must be `true` or `false`, got `maybe`"]),
        ({"columns": "mine"}, ["`columns` must be one of `pubsub`, `databricks`, got `mine`"]),
        ({"endpoint": "localhost"}, ["`endpoint` must be `host:port` without `http://`"]),
        (
            {"subscriptionId": None, "maxMessage": "5", "idleTimeout": "20m"},
            ["3 problems", "`subscriptionId` is required", "`maxmessage` is not", "between 0.01s and 10m"],
        ),
    ],
)
def test_options_are_refused_with_all_complaints(
    scenario: Scenario, options: dict[str, str | None], phrases: list[str]
):
    """Unknown, misspelt, missing, malformed, out of bounds: all in one error. Spark hands names in lower case."""
    given: dict[str, Any] = {name: value for name, value in (GOOD | options).items() if value is not None}
    with pytest.raises(PySparkException) as refused:
        scenario.spark.readStream.format("pubsub").options(**given).load().schema  # noqa: B018 - asks for the columns
    for phrase in phrases:
        assert phrase in str(refused.value)


def test_secrets_are_not_shown(scenario: Scenario):
    """An error about credentials does not repeat them."""
    with pytest.raises(PySparkException, match="`credentials` must hold credentials in JSON") as refused:
        _started(scenario, scenario.load(credentials="s3cret", backend="gcp", endpoint=None))
    assert "s3cret" not in str(refused.value)


def test_schema_of_ones_own_is_refused(scenario: Scenario):
    """The columns are the source's. The error lists them."""
    reader = scenario.spark.readStream.format("pubsub").options(**scenario.options()).schema("data string")
    with pytest.raises(PySparkException, match=r"does not accept `\.schema\(\.\.\.\)`") as refused:
        _started(scenario, reader.load())
    assert "message_id" in str(refused.value)


def _started(scenario: Scenario, df: DataFrame) -> None:
    """Start a query and wait for its end. Some mistakes are found at `load`, some at the start."""
    scenario.query = df.writeStream.foreachBatch(scenario.sink).start()
    scenario.query.awaitTermination(int(BOUND))


def test_missing_subscription(scenario: Scenario):
    """The query fails with the full name, and with the option that would create it."""
    scenario.run(
        Start(subscriptionId="projects/test-project/subscriptions/nowhere"),
        Fails("Subscription `projects/test-project/subscriptions/nowhere` does not exist", "With `topicId`"),
    )


def test_permission_denied(scenario: Scenario):
    """The query fails with the role that is missing."""
    scenario.emulator.fail("StreamingPull", "PERMISSION_DENIED", count=1000)
    scenario.run(
        Start(),
        Fails(f"Permission to pull from Subscription `{scenario.names.subscription}` is denied", "pubsub.subscriber"),
    )


def test_address_that_does_not_answer(scenario: Scenario):
    """An address that does not answer is an error within `connectTimeout` that names the address."""
    scenario.run(Start(endpoint="127.0.0.1:1", connectTimeout="500ms"), Fails("`127.0.0.1:1` did not answer"))


def test_staging_area_that_cannot_be_written(scenario: Scenario):
    """A staging area that cannot be written is an error before anything is pulled."""
    scenario.run(Start(stagingLocation="/dev/null/x"), Fails("The staging area `/dev/null/x` cannot be used"))
