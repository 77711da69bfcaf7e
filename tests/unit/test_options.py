"""Options: which are accepted, which refused, and all complaints in one error."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from pubsub_spark.cli import app
from pubsub_spark.errors import OptionsError
from pubsub_spark.options import REFUSED, ReadOptions, WriteOptions

SUBSCRIPTION = "projects/my-project/subscriptions/my-sub"
TOPIC = "projects/my-project/topics/my-topic"


def read(**given: Any) -> ReadOptions:
    return ReadOptions.parse({"subscriptionId": SUBSCRIPTION} | given, {})


def problems(kind: Any = ReadOptions, **given: Any) -> list[str]:
    with pytest.raises(OptionsError) as refused:
        kind.parse(given, {})
    return list(refused.value.problems)


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("maxFetchPeriod", "1500ms", "max_fetch_period", 1.5),
        ("maxFetchPeriod", "1 minute", "max_fetch_period", 60.0),
        ("maxFetchPeriod", "7", "max_fetch_period", 7.0),
        ("maxBytesPerTrigger", "10m", "max_bytes_per_trigger", 10 * 2**20),
        ("maxBytesPerTrigger", "1 GB", "max_bytes_per_trigger", 2**30),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("mode", "failfast", "mode", "FAILFAST"),
        ("MAXMESSAGES", "5", "max_messages", 5),
        ("startingTimestamp", "2026-01-31", "starting_timestamp", datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)),
        ("startingTimestamp", "20260131", "starting_timestamp", datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)),
    ],
)
def test_values_are_read_as_spark_writes_them(option: str, text: str, field: str, value: Any):
    assert value == getattr(read(**{option: text}), field)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"maxMesages": "5"}, "`maxMesages` is not an option; did you mean `maxMessages`?"),
        ({"zzz": "5"}, "`zzz` is not an option; `pubsub-spark options` lists them"),
        ({"onoversize": "drop"}, "`onOversize` is an option of writing, not of reading"),
        (
            {"path": "my-sub"},
            "`path` is not used: `save`, `load` and `start` accept none here. Name a topic with `topicId`, a "
            "subscription with `subscriptionId`",
        ),
        (
            {"serviceCredential": "c"},
            "`serviceCredential` names a credential of Unity Catalog, which Databricks passes only to its own "
            "connector. Set `credentials`, `credentialsFile`, or `clientEmail` with its key",
        ),
        ({"maxMessages": "many"}, "`maxMessages` must be a whole number, got `many`"),
        ({"maxMessages": "0"}, "`maxMessages` must be at least 1, got `0`"),
        (
            {"maxMessagesPerTrigger": "9223372036854775808"},
            "`maxMessagesPerTrigger` must be at most 9223372036854775807, got `9223372036854775808`",
        ),
        ({"idleTimeout": "601s"}, "`idleTimeout` must be between 0.01s and 10m, got `601s`"),
        ({"idleTimeout": "soon"}, "`idleTimeout` must be a duration such as `500ms`, `10s` or `5m`, got `soon`"),
        (
            {"maxBytesPerTrigger": "9" * 400},
            f"`maxBytesPerTrigger` must be at most 9223372036854775807, got `{'9' * 400}`",
        ),
        ({"idleTimeout": "9" * 400}, f"`idleTimeout` must be between 0.01s and 10m, got `{'9' * 400}`"),
        ({"maxBytesPerTrigger": "1x"}, "`maxBytesPerTrigger` must be a size such as `64m` or `1g`, got `1x`"),
        ({"failOnDataLoss": "maybe"}, "`failOnDataLoss` must be `true` or `false`, got `maybe`"),
        ({"columns": "kafka"}, "`columns` must be one of `pubsub`, `databricks`, got `kafka`"),
        ({"filter": ""}, "`filter` must not be empty"),
        (
            {"startingTimestamp": "yesterday"},
            "`startingTimestamp` must be a timestamp such as `2026-01-31T00:00:00Z`, got `yesterday`",
        ),
        (
            {"startingTimestamp": "1711123100000"},
            "`startingTimestamp` must be a timestamp such as `2026-01-31T00:00:00Z`, got `1711123100000`",
        ),
        ({"schema": "a INT"}, "`schema` says how payloads are decoded. It needs `decode=topic` or `decode=json`"),
        ({"schemaRevision": "1a2b3c4d"}, "`schemaRevision` needs `decode=topic`"),
        (
            {"decode": "json", "schema": "carrier STRING", "schemaEncoding": "JSON"},
            "`schemaEncoding` needs `decode=topic`",
        ),
        (
            {"decode": "topic", "schemaEncoding": "JSON"},
            "`schemaEncoding` needs `schema`. Without it the topic has the encoding",
        ),
        (
            {"decode": "topic", "schema": '{"type": "int"}', "schemaRevision": "1a2b3c4d"},
            "`schemaRevision` is one of a schema resource. `schema` is a definition, which has none",
        ),
        (
            {"topicId": "my-topic"},
            "`topicId`: `my-topic` needs `projectId`, or write `projects/PROJECT/topics/my-topic`",
        ),
        (
            {"deadLetterTopic": TOPIC},
            "`deadLetterTopic` is for payloads that cannot be decoded. It needs `decode=topic` or `decode=json`",
        ),
        *(
            (
                {"endpoint": text},
                f"`endpoint` must be `host:port` without `http://`, the port 1 to 65535, got `{text}`",
            )
            for text in (
                "localhost",
                "http://localhost:8085",
                "localhost:99999",
                "localhost:0",
                "local host:1",
                "::1:1",
            )
        ),
        (
            {"topicId": "projects/p/topics/t"},
            "`topicId`: `t` in `projects/p/topics/t` is not an id: 3 to 255 of letters, digits and `-_.~+%`, a letter "
            "first, not `goog`",
        ),
        (
            {"topicId": "projects/p/subscriptions/sub"},
            "`topicId`: `projects/p/subscriptions/sub` is not of the form `projects/PROJECT/topics/ID`",
        ),
    ],
)
def test_what_does_not_fit_is_a_sentence(given: dict[str, str], sentence: str):
    assert [sentence] == problems(subscriptionId=SUBSCRIPTION, **given)


@pytest.mark.parametrize("name", ["ackDeadlineSeconds", "retainackedmessages", "MAXIMUMBACKOFF"])
def test_settings_of_a_subscription_name_the_command_that_sets_them(name: str):
    """A query does not configure subscriptions, whatever the case and the value of the option."""
    [problem] = problems(subscriptionId=SUBSCRIPTION, **{name: "5"})

    assert "is not an option of a query. Create the subscription with `pubsub-spark subscriptions create" in problem


def test_reading_by_an_attribute_is_sparks():
    """`idAttribute` is refused together with other mistakes. The message has the operators to use instead."""
    [problem, other] = problems(subscriptionId=SUBSCRIPTION, idattribute="row", idleTimeout="0s")

    assert problem.startswith("`idAttribute` is an option of writing, not of reading. ")
    assert '.withWatermark("publish_time", "10 minutes").dropDuplicatesWithinWatermark(["id"])`' in problem
    assert "idleTimeout" in other


@pytest.mark.parametrize("command", [re.split("`", reply)[1] for reply in REFUSED.values() if "pubsub-spark" in reply])
def test_commands_in_refusals_exist(command: str):
    """Each command has the flags that the error message names."""
    result = CliRunner().invoke(app, [*command.split()[1:], "--help"])

    assert (0, "") == (result.exit_code, result.stderr)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("kafka.bootstrap.servers", "`endpoint`"),
        ("subscribe", "`subscriptionId`"),
        ("startingOffsets", "`startingTimestamp` or `startingSnapshot`"),
        ("maxOffsetsPerTrigger", "`maxMessagesPerTrigger`"),
        ("minPartitions", "`numFetchPartitions`"),
        ("topic", "`topicId`"),
    ],
)
def test_options_of_sparks_kafka_source_name_ours(theirs: str, ours: str):
    """An option of the Kafka source, in lower case as Spark hands it over, is answered with the one to use."""
    [problem] = problems(subscriptionId=SUBSCRIPTION, **{theirs.lower(): "1"})

    assert (f"`{theirs}` is Kafka's. ", ours) == (problem[: len(theirs) + 15], problem[-len(ours) :])


@pytest.mark.parametrize("text", ["localhost:1", "[::1]:65535", "us-east1-pubsub.googleapis.com:443", "10.0.0.1:8085"])
def test_endpoints_are_host_and_port(text: str):
    assert text == read(endpoint=text, backend="gcp").endpoint


KEY = {"credentials": '{"type": "service_account"}'}


@pytest.mark.parametrize(
    ("given", "is_emulator"),
    [
        ({}, False),
        ({"endpoint": "localhost:8085"}, True),
        ({"endpoint": "[::1]:8085"}, True),
        ({"endpoint": "0.0.0.0:8085"}, True),
        ({"endpoint": "emulator:8085"}, True),
        ({"endpoint": "europe-west1-pubsub.googleapis.com:443"}, False),
        ({"endpoint": "Pubsub.GoogleAPIs.com.:443"}, False),
        ({"endpoint": "pubsub.internal:443", "backend": "gcp"}, False),
        ({"endpoint": "pubsub.internal:443", "backend": "emulator"}, True),
        ({"endpoint": "localhost:443", "backend": "gcp"}, False),
        ({"endpoint": "localhost:443", "credentialsFile": "key.json"}, False),
        ({"endpoint": "pubsub.internal:443", "privateKey": "k", "clientEmail": "a@b"}, False),
        ({"endpoint": "localhost:443", "backend": "emulator", **KEY}, True),
    ],
)
def test_an_emulator_is_called_without_tls(given: dict[str, str], is_emulator: bool):
    """Only one that is on this machine, has a name without dots or is declared as one. Never with credentials."""
    assert is_emulator == read(**given).is_emulator


@pytest.mark.parametrize(
    "host", ["10.0.0.5", "pubsub.internal", "evilgoogleapis.com", "googleapis.com.evil", "[fd00::5]"]
)
def test_an_endpoint_elsewhere_needs_a_backend(host: str):
    """Neither is TLS dropped for a name that may be Pub/Sub's, nor are a machine's credentials sent to any host."""
    [problem] = problems(subscriptionId=SUBSCRIPTION, endpoint=f"{host}:443")

    assert problem.startswith(f"`endpoint` `{host}:443` is neither in `googleapis.com` nor on this machine. If it is")


def test_all_complaints_come_at_once():
    assert [
        "`maxMesages` is not an option; did you mean `maxMessages`?",
        "`idleTimeout` must be between 0.01s and 10m, got `0s`",
        "`subscriptionId` is required, e.g. `projects/my-project/subscriptions/my-sub`",
    ] == problems(maxMesages="5", idleTimeout="0s")


def test_options_of_spark_itself_pass():
    """Those of a query, and the properties of a table of the catalog, its `path` among them."""
    assert read() == read(checkpointLocation="/somewhere", queryName="q")
    assert read() == read(provider="pubsub", owner="me", location="file:/t", path="file:/t", **{"option.path": "/t"})


@pytest.mark.parametrize("kind", [ReadOptions, WriteOptions])
def test_the_environment_is_the_default(kind: Any):
    """PUBSUB_EMULATOR_HOST and GOOGLE_CLOUD_PROJECT are defaults. Options win, and `backend=gcp` ignores the first.

    PUBSUB_PROJECT_ID, which Google's emulator sets, comes after both.
    """
    environ = {"PUBSUB_EMULATOR_HOST": "localhost:8085", "GOOGLE_CLOUD_PROJECT": "my-project", "PUBSUB_PROJECT_ID": "x"}
    ids = {"topicId": "my-topic"} | ({"subscriptionId": "my-sub"} if kind is ReadOptions else {})

    found = kind.parse(ids, environ)
    assert ("localhost:8085", "emulator", TOPIC) == (found.endpoint, found.backend, found.topic)
    given = kind.parse(ids | {"endpoint": "127.0.0.1:1", "projectId": "other"}, environ)
    assert ("127.0.0.1:1", "projects/other/topics/my-topic") == (given.endpoint, given.topic)
    assert kind.parse(ids | {"backend": "gcp"}, environ).endpoint is None
    assert "x" == kind.parse(ids, {"PUBSUB_PROJECT_ID": "x", "GOOGLE_CLOUD_PROJECT": ""}).project


@pytest.mark.parametrize("repeated", [{}, {"endpoint": "http://localhost:8085"}])
def test_url_in_the_environment_is_named_by_its_variable(repeated: dict[str, str]):
    """A PUBSUB_EMULATOR_HOST with `http://` is one complaint, about the variable, also where a command repeats it."""
    with pytest.raises(OptionsError) as refused:
        ReadOptions.parse(
            {"subscriptionId": SUBSCRIPTION, **repeated}, {"PUBSUB_EMULATOR_HOST": "http://localhost:8085"}
        )
    [problem] = refused.value.problems
    assert problem.startswith("the variable PUBSUB_EMULATOR_HOST must be `host:port` without `http://`")


def test_the_emulator_of_the_environment_may_be_anywhere():
    """An `endpoint` that repeats PUBSUB_EMULATOR_HOST is one, too: commands pass it on so."""
    ids, environ = {"subscriptionId": SUBSCRIPTION}, {"PUBSUB_EMULATOR_HOST": "10.0.0.5:8085"}

    assert ReadOptions.parse(ids, environ).is_emulator
    assert ReadOptions.parse(ids | {"endpoint": "10.0.0.5:8085"}, environ).is_emulator
    with pytest.raises(OptionsError):
        ReadOptions.parse(ids | {"endpoint": "10.0.0.6:8085"}, environ)


def test_the_universe_of_the_environment_is_googles():
    """GOOGLE_CLOUD_UNIVERSE_DOMAIN is the domain of Google's endpoints."""
    given = {"subscriptionId": SUBSCRIPTION, "endpoint": "pubsub.example.goog:443"}

    assert not ReadOptions.parse(given, {"GOOGLE_CLOUD_UNIVERSE_DOMAIN": "example.goog"}).is_emulator


def test_secrets_are_not_shown():
    """Secrets are neither in the object's text nor in a complaint."""
    secret = "-----BEGIN PRIVATE KEY-----"
    assert secret not in repr(read(privateKey=secret, clientEmail="me@example.com"))
    assert ["`clientEmail` is required with `privateKey`"] == problems(subscriptionId=SUBSCRIPTION, privateKey=secret)
    assert ["`privateKey` is required with `clientEmail` and `clientId`"] == problems(
        subscriptionId=SUBSCRIPTION, clientEmail="me@example.com", clientId="1"
    )


def test_who_calls_is_said_once():
    [sentence] = problems(subscriptionId=SUBSCRIPTION, credentials="{}", credentialsFile="key.json")
    assert "`credentialsFile` and `credentials` are set, but there can be only one credential" in sentence


def test_oversize_messages_need_somewhere_to_go():
    assert ["`deadLetterTopic` is required with `onOversize=deadletter`"] == problems(
        WriteOptions, topicId=TOPIC, onOversize="deadletter"
    )


def test_a_list_of_nothing_is_refused():
    """A list that names nothing was meant to name something."""
    assert ["`attributeColumns` must not be empty"] == problems(WriteOptions, topicId=TOPIC, attributeColumns=" , ")


def test_reserved_attribute_is_refused_before_any_row():
    end = "but names that begin with `goog` are Google's own"
    assert [
        f"`idAttribute` names the attribute `GoogId`, {end}",
        f"`attributeColumns` names the attribute `google`, {end}",
    ] == problems(WriteOptions, topicId=TOPIC, idAttribute="GoogId", attributeColumns="country,google")
