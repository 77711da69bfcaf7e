"""The generated parts of the documents: tables, and examples of errors.

    python docs/tables.py       brings all pages up to date

Each is between `<!-- name -->` and `<!-- end -->`. A test compares the pages with the result of `render`.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from google.pubsub_v1 import types
from grpc import StatusCode
from pyspark.sql.types import DataType, StructType

from pubsub_spark.asyncapi.api import read
from pubsub_spark.backend import GLOBAL_ENDPOINT, EmulatorBackend
from pubsub_spark.backend.status import failure, no_token
from pubsub_spark.codec.envelope import received
from pubsub_spark.codec.registry import SchemaRevision, TopicSchema
from pubsub_spark.declare import declared
from pubsub_spark.emulator.options import EmulatorOptions, ServeOptions
from pubsub_spark.errors import AsyncApiError, OptionsError, PubSubError
from pubsub_spark.options import ReadOptions, ServiceOptions, WriteOptions
from pubsub_spark.read.rows import Rows
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store

sys.path.insert(0, str(Path(__file__).parent))
import compatibility  # type: ignore[import-not-found]
import scaling_model  # type: ignore[import-not-found]

PAGES = [Path(__file__).parent.parent / "README.md", *sorted(Path(__file__).parent.glob("*.md"))]

_MEANING = {
    "message_id": "unique in the topic",
    "data": "the payload, as published",
    "attributes": "",
    "publish_time": "when Pub/Sub received the message",
    "ordering_key": "null when the message has none",
    "delivery_attempt": "null unless the subscription has a dead-letter topic",
    "value": "with `decode`: the decoded payload",
    "schema_revision": "with `decode=topic`: the revision that the payload was written with",
    "decode_error": "with `decode` and `mode=PERMISSIVE`: why `value` is null",
}
_SCHEMA = SchemaRevision(
    "projects/p/schemas/s", "1", "AVRO", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
)
_DOCUMENT = """asyncapi: 3.0.0
channels:
  flights:
    bindings: {googlepubsub: {labels: {team: 7}, retention: 1d}}
"""
_MISTAKES = {"maxmessage": "5", "idleTimeout": "20m"}  # Spark hands over names in lower case


def columns() -> str:
    """Return the table of the columns of a read, and the four of `columns=databricks`."""
    nowhere = EmulatorBackend("localhost:8085")
    given = {"subscriptionId": "projects/p/subscriptions/s-1"}
    fields = Rows(ReadOptions.parse(given, {}), nowhere, TopicSchema("BINARY", _SCHEMA)).spark_schema
    lines = ["| column | type | |", "|---|---|---|"]
    lines += [f"| `{field.name}` | {_kind(field.dataType)} | {_MEANING[field.name]} |" for field in fields]
    databricks = Rows(ReadOptions.parse({**given, "columns": "databricks"}, {}), nowhere).spark_schema
    instead = ", ".join(f"`{field.name}` ({_kind(field.dataType)})" for field in databricks)
    return "\n".join(lines) + f"\n\nWith `columns=databricks`: {instead}."


def _kind(kind: DataType) -> str:
    return "struct" if isinstance(kind, StructType) else kind.simpleString()


_SHARED = {
    "Where": ("projectId", "endpoint", "backend", "connectTimeout"),
    "Credentials": ("credentialsFile", "credentials", "clientEmail", "clientId", "privateKey", "privateKeyId"),
    "Document and log": ("asyncapi", "message", "logLevel"),
}
_READING = {
    "Required": ("subscriptionId",),
    "Decoding and columns": (
        "decode",
        "mode",
        "schema",
        "schemaEncoding",
        "schemaRevision",
        "topicId",
        "deadLetterTopic",
        "columns",
    ),
    "Size of a batch": (
        "maxMessagesPerTrigger",
        "maxBytesPerTrigger",
        "maxRecordsPerFetch",
        "maxFetchPeriod",
        "idleTimeout",
        "maxMessages",
    ),
    "Parallelism": ("numFetchPartitions", "streamsPerPartition"),
    "Staging, acks, metrics": ("stagingLocation", "maxUnacknowledgedBatches", "failAfter", "metricsLocation"),
    "Where a stream starts": ("startingTimestamp", "startingSnapshot", "failOnDataLoss"),
    "A subscription that the query creates or deletes": (
        "enableMessageOrdering",
        "enableExactlyOnceDelivery",
        "filter",
        "deleteSubscriptionOnStreamStop",
    ),
}
_WRITING = {
    "Required": ("topicId",),
    "Payload, attributes, key": (
        "encode",
        "columns",
        "ignoreExtraColumns",
        "attributeColumns",
        "orderingKey",
        "idAttribute",
    ),
    "Requests": ("maxBatchMessages", "maxBatchBytes", "maxOutstandingRequests", "publishTimeout"),
    "Messages over a limit": ("onOversize", "deadLetterTopic"),
}
# The options of reading that a batch read uses (`read/batch_reader.py`, `read/rows.py`).
_BATCH = {
    "subscriptionId",
    "maxMessages",
    "maxBytesPerTrigger",
    "maxFetchPeriod",
    "idleTimeout",
    *_READING["Decoding and columns"],
}


def options(cls: type[ServiceOptions], groups: Mapping[str, Sequence[str]]) -> str:
    """Return the options of a class in groups, each with an anchor. Raise ValueError for one in no group, or in two."""
    known = {option.name: option for option in declared(cls).values()}
    shared = {option.name for option in declared(ServiceOptions).values()} if cls is not ServiceOptions else set()
    grouped = [name for names in groups.values() for name in names]
    if sorted(grouped) != sorted(known.keys() - shared):
        raise ValueError(f"options in no group or in two: {sorted(grouped)} and {sorted(known.keys() - shared)}")
    prefix = getattr(cls, "purpose", "") or "both"
    is_reading = cls is ReadOptions
    tables = []
    for group, names in groups.items():
        lines = [f"### {group}", "", f"| option |{' query |' if is_reading else ''} kind | default | meaning |"]
        lines.append("|---|---|---|---|---|" if is_reading else "|---|---|---|---|")
        for name in names:
            query = f" {_queries(name)} |" if is_reading else ""
            cells = known[name].cells.removeprefix("|")
            lines.append(f'| <a id="{prefix}-{name.lower()}"></a>`{name}` |{query}{cells}')
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _queries(name: str) -> str:
    """Return the kinds of queries that use an option of reading."""
    if name == "maxMessages":
        return "batch"
    return "stream, batch" if name in _BATCH else "stream"


def emulator_options() -> str:
    """Return the options of `pubsub-spark emulator`, and the keywords of `Emulator` for them."""
    keywords = declared(EmulatorOptions)
    lines = ["| option | `Emulator` | kind | default | meaning |", "|---|---|---|---|---|"]
    for name, option in declared(ServeOptions).items():
        lines.append(f"| `--{option.name}` | {f'`{name}`' if name in keywords else ''} {option.cells}")
    return "\n".join(lines)


def _mistaken_options() -> PubSubError:
    try:
        ReadOptions.parse(_MISTAKES, {})
    except OptionsError as error:
        return error
    raise AssertionError("options that cannot work were taken")


def error() -> str:
    """Return the error for three mistakes at once."""
    return f"```text\nOptionsError: {_mistaken_options()}\n```"


def _mistaken_document() -> PubSubError:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flights.yaml"
        path.write_text(_DOCUMENT)
        try:
            read(path, "my-project")
        except AsyncApiError as error:
            return AsyncApiError(path.name, error.problems)
    raise AssertionError("a document that cannot be used was taken")


_NO_TOKEN = "Getting metadata from plugin failed with error: " + no_token(
    "https://oauth2.googleapis.com/token", 503, ""
)
_REFUSED = (  # Pub/Sub's answer, and the request
    (StatusCode.NOT_FOUND, "Resource not found (resource=flights)", "pull from", "Subscription"),
    (StatusCode.PERMISSION_DENIED, "User not authorized to perform this action", "publish to", "Topic"),
    (StatusCode.INVALID_ARGUMENT, "The name is too short", "create", "Subscription"),
    (StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials", "pull from", "Subscription"),
    (StatusCode.UNAVAILABLE, "Connection refused", "look at", "Topic"),
    (StatusCode.UNAVAILABLE, _NO_TOKEN, "pull from", "Subscription"),
)


def _refusals() -> Iterator[PubSubError]:
    """Yield the errors for refusals of Pub/Sub, and for no answer."""
    for code, detail, verb, kind in _REFUSED:
        name = f"projects/my-project/{kind.lower()}s/flights"
        yield failure(code, detail, verb, kind, name, GLOBAL_ENDPOINT)


def _unreadable_schema() -> PubSubError:
    schema = SchemaRevision("projects/my-project/schemas/flight", "1", "AVRO", '{"type": "integer"}')
    try:
        schema.parsed()
    except PubSubError as error:
        return error
    raise AssertionError("a schema that cannot be read was taken")


def _undecodable_payload() -> PubSubError:
    given = {"subscriptionId": "projects/p/subscriptions/flights", "decode": "topic", "mode": "FAILFAST"}
    options = ReadOptions.parse(given, {})
    response = types.StreamingPullResponse.pb()()
    response.received_messages.add().message.message_id = "17"
    rows = Rows(options, EmulatorBackend("localhost:8085"), TopicSchema("BINARY", _SCHEMA))
    try:
        list(rows.of(iter([received([response.SerializeToString()]).messages]), lambda _: None))
    except PubSubError as error:
        return error
    raise AssertionError("a payload that cannot be decoded was taken")


def _invisible_staging() -> PubSubError:
    with tempfile.TemporaryDirectory() as folder:
        try:
            Staging(open_store(folder), "projects/p/subscriptions/flights", "0").check_token()
        except PubSubError as error:
            return type(error)(str(error).replace(folder, "/tmp/pubsub-spark"))  # noqa: S108
    raise AssertionError("an area without a token was taken")


def refusals() -> str:
    """Return one example of each class of error, made by the code that raises it."""
    documents = [_mistaken_options(), _mistaken_document()]
    examples = [*documents, *_refusals(), _unreadable_schema(), _undecodable_payload(), _invisible_staging()]
    return "```text\n" + "\n".join(f"{type(each).__name__}: {each}" for each in examples) + "\n```"


def bodies() -> str:
    """Return the counts of `make test-bodies`: each body's cases that agree with its judge, and the differences."""
    counts = json.loads((Path(__file__).parent / "bodies.json").read_text())
    lines = ["| cases | judge | agree | differ | left out |", "|---|---|---|---|---|"]
    sentences: dict[str, list[int]] = {}
    for number, row in enumerate(counts, 1):
        differ = sum(row["differences"].values())
        lines.append(
            f"| {number}. {row['body']} | {row['judge']} | {row['agree']:,} | {differ:,} | {row['left_out']:,} |"
        )
        for sentence, cases in row["differences"].items():
            sentences.setdefault(sentence, [0] * len(counts))[number - 1] = cases
    lines += ["", "| difference | cases of each row |", "|---|---|"]
    for sentence, found in sentences.items():
        cases = ", ".join(f"{cases:,} of {number}" for number, cases in enumerate(found, 1) if cases)
        lines.append(f"| {sentence} | {cases} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "bodies": bodies,
    "columns": columns,
    "error": error,
    "refusals": refusals,
    "options: both": lambda: options(ServiceOptions, _SHARED),
    "options: reading": lambda: options(ReadOptions, _READING),
    "options: writing": lambda: options(WriteOptions, _WRITING),
    "options: emulator": emulator_options,
    "compatibility: environments": compatibility.by_environment,
    "scaling: rates": scaling_model.rates,
    "scaling: costs": scaling_model.costs,
    "scaling: monthly": scaling_model.monthly,
}


def render(page: str) -> str:
    """Return the page with every part generated again. Raise KeyError for an unknown part."""
    return re.sub(
        r"<!-- (?P<name>(?!end|not run|run by)[^>]+) -->\n.*?<!-- end -->",
        lambda match: f"<!-- {match['name']} -->\n{PARTS[match['name']]()}\n<!-- end -->",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(render(page.read_text()))
