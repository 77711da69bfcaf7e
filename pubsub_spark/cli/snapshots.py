"""`pubsub-spark snapshots`: list, describe, create, update, delete."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import typer

from .command import Service, command, names_of, pairs
from .resources import LABEL_FLAGS, Labels, field, group, print_resource, short, update_resource

app = group("snapshots", {"topic": short("topic"), "expires": field("expireTime")})


def moment(text: str) -> datetime.datetime:
    """Return the time of a text such as `2026-01-31T00:00:00Z`, for typer's `parser`."""
    from ..declare import timestamp

    try:
        return timestamp(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, got `{text}`") from None


@command(app, "create")
def create(
    service: Service,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    subscription: Annotated[
        str, typer.Option(**names_of("subscriptions"), help="The subscription whose position is kept.")
    ],
    subscription_project: Annotated[
        str | None, typer.Option(metavar="ID", help="The project of --subscription.")
    ] = None,
    labels: Labels = None,
) -> None:
    """Keep the current position of a subscription for `seek --snapshot`."""
    from google.pubsub_v1 import types

    full, of = service.full(name, "snapshots"), service.full(subscription, "subscriptions", subscription_project)
    request = types.CreateSnapshotRequest(name=full, subscription=of, labels=pairs(labels))
    with service.connect() as admin:
        print_resource(admin.create("snapshots", request, full), service)


@command(app, "update", flags=LABEL_FLAGS)
def update(
    service: Service,
    name: Annotated[str, typer.Argument(**names_of("snapshots"))],
    expire_time: Annotated[
        datetime.datetime | None, typer.Option(parser=moment, metavar="TIME", help="When the snapshot is deleted.")
    ] = None,
    **labels: Any,
) -> None:
    """Change labels or the expiry of a snapshot."""
    from google.pubsub_v1 import types

    fields = {} if expire_time is None else {"expire_time": expire_time}
    update_resource(service, "snapshots", types.Snapshot, name, fields, labels)
