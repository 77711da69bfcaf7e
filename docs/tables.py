"""The parts of README and docs/scaling.md that the code knows better: tables, and an example of an error.

    python docs/tables.py       brings both up to date

Each stands between `<!-- name -->` and `<!-- end -->`. A test asks that they are what `render` makes of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from grpc import StatusCode
from pyspark.sql.types import DataType, StructType

from pubsub_spark.backend import GLOBAL_ENDPOINT, EmulatorBackend
from pubsub_spark.backend.status import failure
from pubsub_spark.codec.registry import SchemaRevision, TopicSchema
from pubsub_spark.declare import table
from pubsub_spark.errors import OptionsError
from pubsub_spark.options import ReadOptions, ServiceOptions, WriteOptions
from pubsub_spark.read.rows import Rows

sys.path.insert(0, str(Path(__file__).parent))
import scaling_model  # type: ignore[import-not-found]

README = Path(__file__).parent.parent / "README.md"
SCALING = Path(__file__).parent / "scaling.md"

_MEANING = {
    "message_id": "unique in the topic",
    "data": "the payload, as published",
    "attributes": "",
    "publish_time": "when Pub/Sub took the message",
    "ordering_key": "null when the message has none",
    "delivery_attempt": "null unless the subscription has a dead-letter topic",
    "value": "with `decode=topic`: the fields of the topic's schema",
    "schema_revision": "with `decode=topic`: the revision that the payload was written with",
    "decode_error": "with `decode=topic` and `mode=PERMISSIVE`: why `value` is null",
}
_SCHEMA = SchemaRevision(
    "projects/p/schemas/s", "1", "AVRO", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
)
_MISTAKES = {"maxmessage": "5", "ackDeadlineSeconds": "5"}  # Spark hands over names in lower case


def columns() -> str:
    """The columns of a read, and the four that `columns=databricks` gives instead."""
    nowhere = EmulatorBackend("localhost:8085")
    given = {"subscriptionId": "projects/p/subscriptions/s-1"}
    fields = Rows(ReadOptions.parse(given, {}), nowhere, TopicSchema("BINARY", _SCHEMA)).spark_schema
    lines = ["| column | type | |", "|---|---|---|"]
    lines += [f"| `{field.name}` | {_kind(field.dataType)} | {_MEANING[field.name]} |" for field in fields]
    databricks = Rows(ReadOptions.parse({**given, "columns": "databricks"}, {}), nowhere).spark_schema
    instead = ", ".join(f"`{field.name}` ({_kind(field.dataType)})" for field in databricks)
    return "\n".join(lines) + f"\n\n`columns=databricks` gives Databricks' columns instead: {instead}."


def _kind(kind: DataType) -> str:
    return "struct" if isinstance(kind, StructType) else kind.simpleString()


def options(cls: type[ServiceOptions]) -> str:
    """The table of a class's own options, without those that reading and writing share."""
    shared = table(ServiceOptions).splitlines()[2:] if cls is not ServiceOptions else []
    return "\n".join(line for line in table(cls).splitlines() if line not in shared)


def error() -> str:
    """What three mistakes at once look like."""
    try:
        ReadOptions.parse(_MISTAKES, {})
    except OptionsError as refused:
        return f"```text\nOptionsError: {refused}\n```"
    raise AssertionError("options that cannot work were taken")


def refusals() -> str:
    """What is said when Pub/Sub itself says no, or nothing."""
    cases = (
        (StatusCode.NOT_FOUND, "Resource not found (resource=flights)", "pull from", "Subscription", "subscriptions"),
        (StatusCode.PERMISSION_DENIED, "User not authorized to perform this action", "publish to", "Topic", "topics"),
        (StatusCode.UNAVAILABLE, "Connection refused", "look at", "Topic", "topics"),
    )
    lines = []
    for code, detail, verb, kind, collection in cases:
        name = f"projects/my-project/{collection}/flights"
        refused = failure(code, detail, verb, kind, name, GLOBAL_ENDPOINT)
        lines.append(f"{type(refused).__name__}: {refused}")
    return "```text\n" + "\n".join(lines) + "\n```"


PARTS: dict[str, Callable[[], str]] = {
    "columns": columns,
    "error": error,
    "refusals": refusals,
    "options: both": lambda: options(ServiceOptions),
    "options: reading": lambda: options(ReadOptions),
    "options: writing": lambda: options(WriteOptions),
    "scaling: rates": scaling_model.rates,
    "scaling: costs": scaling_model.costs,
}


def render(page: str) -> str:
    """The page with every part as the code has it; KeyError for a part nobody makes."""
    return re.sub(
        r"<!-- (?P<name>(?!end)[^>]+) -->\n.*?<!-- end -->",
        lambda match: f"<!-- {match['name']} -->\n{PARTS[match['name']]()}\n<!-- end -->",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for page in (README, SCALING):
        page.write_text(render(page.read_text()))
