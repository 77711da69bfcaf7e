"""`pubsub-spark topics`: list, describe, create, update, delete."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import typer

from .command import Service, command, exit_with, pairs, seconds
from .resources import field, group, labels_after, paths_of, print_resource, short

app = group(
    "topics",
    {
        "schema": lambda topic: short("schema")(topic.get("schemaSettings", {})),
        "encoding": lambda topic: field("encoding")(topic.get("schemaSettings", {})),
        "retention": field("messageRetentionDuration"),
    },
)

Retention = Annotated[
    float | None,
    typer.Option(
        "--message-retention-duration",
        parser=seconds,
        metavar="DURATION",
        help="Keep messages so long (10m to 31d).",
    ),
]
Schema = Annotated[str | None, typer.Option(metavar="NAME", help="The schema that messages must have.")]
Encoding = Annotated[
    str | None,
    typer.Option("--message-encoding", metavar="json|binary", help="Encoding of messages with a schema."),
]
First = Annotated[
    str | None, typer.Option("--first-revision-id", metavar="ID", help="The oldest revision that messages may have.")
]
Last = Annotated[
    str | None, typer.Option("--last-revision-id", metavar="ID", help="The newest revision that messages may have.")
]
Regions = Annotated[
    str | None,
    typer.Option(
        "--message-storage-policy-allowed-regions", metavar="REGION,...", help="Regions where messages may be stored."
    ),
]
KEY = Annotated[str | None, typer.Option("--topic-encryption-key", metavar="NAME", help="A key of Cloud KMS.")]

_ENCODINGS = {"json": "JSON", "binary": "BINARY"}


def _fields(
    service: Service,
    retention: float | None,
    schema: str | None,
    encoding: str | None,
    first: str | None,
    last: str | None,
    regions: str | None,
) -> dict[str, Any]:
    """The fields of Topic that the flags set."""
    found: dict[str, Any] = {}
    if retention is not None:
        found["message_retention_duration"] = datetime.timedelta(seconds=retention)
    if schema is not None:
        if (encoding or "").lower() not in _ENCODINGS:
            exit_with("`--schema` needs `--message-encoding json` or `--message-encoding binary`.", 2)
        found["schema_settings"] = {
            "schema": service.full(schema, "schemas"),
            "encoding": _ENCODINGS[str(encoding).lower()],
            "first_revision_id": first or "",
            "last_revision_id": last or "",
        }
    elif encoding or first or last:
        exit_with("`--message-encoding` and revision ids are settings of a schema: give `--schema`, too.", 2)
    if regions is not None:
        found["message_storage_policy"] = {"allowed_persistence_regions": [each for each in regions.split(",") if each]}
    return found


@command(app, "create")
def create(
    service: Service,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    labels: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Labels.")] = None,
    retention: Retention = None,
    schema: Schema = None,
    encoding: Encoding = None,
    first: First = None,
    last: Last = None,
    regions: Regions = None,
    key: KEY = None,
) -> None:
    """Create a topic."""
    from google.pubsub_v1 import types

    fields = _fields(service, retention, schema, encoding, first, last, regions)
    topic = types.Topic(name=service.full(name, "topics"), labels=pairs(labels), kms_key_name=key or "", **fields)
    used = [("Schema", topic.schema_settings.schema)]
    with service.connect() as resources:
        print_resource(resources.create("topics", topic, topic.name, used), service)


@command(app, "update")
def update(
    service: Service,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    update_labels: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Labels to set.")] = None,
    remove_labels: Annotated[list[str] | None, typer.Option(metavar="KEY,...", help="Labels to remove.")] = None,
    clear_labels: Annotated[bool, typer.Option("--clear-labels", help="Remove all labels.")] = False,
    retention: Retention = None,
    clear_retention: Annotated[
        bool, typer.Option("--clear-message-retention-duration", help="Keep no messages for seeks.")
    ] = False,
    schema: Schema = None,
    encoding: Encoding = None,
    first: First = None,
    last: Last = None,
    clear_schema: Annotated[bool, typer.Option("--clear-schema-settings", help="Take the schema away.")] = False,
    regions: Regions = None,
) -> None:
    """Change settings of a topic; those that are not named stay."""
    from google.pubsub_v1 import types

    full = service.full(name, "topics")
    fields = _fields(service, retention, schema, encoding, first, last, regions)
    paths = paths_of(fields, message_retention_duration=clear_retention, schema_settings=clear_schema)
    with service.connect() as resources:
        if update_labels or remove_labels or clear_labels:
            paths.add("labels")
            before = {} if clear_labels else dict(resources.get("topics", full).labels)
            fields["labels"] = labels_after(before, pairs(update_labels), remove_labels, clear_labels)
        if not paths:
            exit_with("Nothing to change: `pubsub-spark topics update --help` lists the settings.", 2)
        print_resource(resources.update("topics", types.Topic(name=full, **fields), paths), service)
