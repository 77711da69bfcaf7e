"""`pubsub-spark topics`: list, describe, create, update, delete."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from . import messages
from .command import Service, choices, command, exit_with, names_of, pairs
from .output import print_json, print_table
from .resources import ENCODINGS, LABEL_FLAGS, Labels, Retention, create_each, field, group, short, update_resource

app = group(
    "topics",
    {
        "schema": lambda topic: short("schema")(topic.get("schemaSettings", {})),
        "encoding": lambda topic: field("encoding")(topic.get("schemaSettings", {})),
        "retention": field("messageRetentionDuration"),
    },
)

# Parameters of `create` and `update`, and their types.
_FLAGS: Mapping[str, Any] = {
    "retention": Retention,
    "schema": Annotated[str | None, typer.Option(**names_of("schemas"), help="The schema that messages must have.")],
    "schema_project": Annotated[str | None, typer.Option(metavar="ID", help="The project of --schema.")],
    "encoding": Annotated[
        str | None,
        typer.Option("--message-encoding", **choices("json", "binary"), help="Encoding of messages with a schema."),
    ],
    "first": Annotated[
        str | None,
        typer.Option("--first-revision-id", metavar="ID", help="The oldest revision that messages may have."),
    ],
    "last": Annotated[
        str | None, typer.Option("--last-revision-id", metavar="ID", help="The newest revision that messages may have.")
    ],
    "regions": Annotated[
        str | None,
        typer.Option(
            "--message-storage-policy-allowed-regions",
            metavar="REGION,...",
            help="Regions where messages may be stored.",
        ),
    ],
}


def _fields(
    service: Service,
    retention: float | None,
    schema: str | None,
    schema_project: str | None,
    encoding: str | None,
    first: str | None,
    last: str | None,
    regions: str | None,
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if retention is not None:
        fields["message_retention_duration"] = datetime.timedelta(seconds=retention)
    if schema is not None:
        if (encoding or "").lower() not in ENCODINGS:
            exit_with("`--schema` needs `--message-encoding json` or `--message-encoding binary`.", 2)
        fields["schema_settings"] = {
            "schema": service.full(schema, "schemas", schema_project),
            "encoding": ENCODINGS[str(encoding).lower()],
            "first_revision_id": first or "",
            "last_revision_id": last or "",
        }
    elif encoding or first or last or schema_project:
        exit_with("Encoding, revision ids and project are settings of a schema. Also pass `--schema`.", 2)
    if regions is not None:
        fields["message_storage_policy"] = {"allowed_persistence_regions": list(filter(None, regions.split(",")))}
    return fields


@command(app, "create", flags=_FLAGS)
def create(
    service: Service,
    names: Annotated[list[str], typer.Argument(metavar="NAME")],
    labels: Labels = None,
    key: Annotated[
        str | None, typer.Option("--topic-encryption-key", metavar="NAME", help="A key of Cloud KMS.")
    ] = None,
    **flags: Any,
) -> None:
    """Create topics, all with these settings."""
    from google.pubsub_v1 import types

    wanted = types.Topic(labels=pairs(labels), kms_key_name=key or "", **_fields(service, **flags))
    create_each(service, "topics", wanted, names)


@command(app, "update", flags={**LABEL_FLAGS, **_FLAGS})
def update(
    service: Service,
    name: Annotated[str, typer.Argument(**names_of("topics"))],
    clear_retention: Annotated[
        bool, typer.Option("--clear-message-retention-duration", help="Keep no messages for seeks.")
    ] = False,
    clear_schema: Annotated[bool, typer.Option("--clear-schema-settings", help="Remove the schema.")] = False,
    **flags: Any,
) -> None:
    """Change the named settings of a topic."""
    from google.pubsub_v1 import types

    labels = {flag: flags.pop(flag) for flag in LABEL_FLAGS}
    update_resource(
        service,
        "topics",
        types.Topic,
        name,
        _fields(service, **flags),
        labels,
        message_retention_duration=clear_retention,
        schema_settings=clear_schema,
    )


@command(app, "list-subscriptions")
def list_subscriptions(service: Service, topic: Annotated[str, typer.Argument(**names_of("topics", "TOPIC"))]) -> None:
    """List the subscriptions of a topic, by their full names."""
    name = service.full(topic, "topics")
    with service.connect() as admin:
        subscriptions = admin.subscriptions_of(name)
    if service.as_json:
        print_json(subscriptions)
    else:
        print_table(["subscription"], [[subscription] for subscription in subscriptions])


@command(app, "detach-subscription")
def detach_subscription(
    service: Service, subscription: Annotated[str, typer.Argument(**names_of("subscriptions", "SUBSCRIPTION"))]
) -> None:
    """Detach a subscription from its topic. Its backlog is deleted, and it receives no more messages."""
    name = service.full(subscription, "subscriptions")
    with service.connect() as admin:
        admin.detach(name)
    if service.as_json:
        print_json({"detached": name})
    else:
        typer.echo(f"detached {name}")


command(app, "publish")(messages.publish)  # gcloud also has it here
