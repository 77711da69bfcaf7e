"""`pubsub-spark snapshots`: list, describe, create, update, delete."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import typer

from .command import Service, command, exit_with, pairs
from .resources import field, group, labels_after, print_resource, short

app = group("snapshots", {"topic": short("topic"), "expires": field("expireTime")})


def moment(text: str) -> datetime.datetime:
    """The time that a text such as `2026-01-31T00:00:00Z` names; for typer's `parser`."""
    from ..declare import timestamp

    try:
        return timestamp(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, got `{text}`") from None


@command(app, "create")
def create(
    service: Service,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    subscription: Annotated[str, typer.Option(metavar="NAME", help="The subscription whose position is kept.")],
    labels: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Labels.")] = None,
) -> None:
    """Keep what is not acknowledged in a subscription now, for `seek --snapshot`."""
    full, of = service.full(name, "snapshots"), service.full(subscription, "subscriptions")
    request = {"name": full, "subscription": of, "labels": pairs(labels)}
    with service.connect() as resources:
        print_resource(resources.create("snapshots", request, full, [("Subscription", of)]), service)


@command(app, "update")
def update(
    service: Service,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    update_labels: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Labels to set.")] = None,
    remove_labels: Annotated[list[str] | None, typer.Option(metavar="KEY,...", help="Labels to remove.")] = None,
    clear_labels: Annotated[bool, typer.Option("--clear-labels", help="Remove all labels.")] = False,
    expire_time: Annotated[
        datetime.datetime | None, typer.Option(parser=moment, metavar="TIME", help="When the snapshot is deleted.")
    ] = None,
) -> None:
    """Change labels or the expiry of a snapshot."""
    from google.pubsub_v1 import types

    full = service.full(name, "snapshots")
    fields: dict[str, Any] = {} if expire_time is None else {"expire_time": expire_time}
    with service.connect() as resources:
        if update_labels or remove_labels or clear_labels:
            before = {} if clear_labels else dict(resources.get("snapshots", full).labels)
            fields["labels"] = labels_after(before, pairs(update_labels), remove_labels, clear_labels)
        if not fields:
            exit_with("Nothing to change: `pubsub-spark snapshots update --help` lists the settings.", 2)
        print_resource(resources.update("snapshots", types.Snapshot(name=full, **fields), fields), service)
