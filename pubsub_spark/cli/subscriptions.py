"""`pubsub-spark subscriptions`: list, describe, create, update, delete."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from . import backlog, exports, messages, push
from .command import Service, command, exit_with, names_of, pairs, seconds
from .resources import LABEL_FLAGS, Labels, Retention, create_each, field, group, short, update_resource

app = group(
    "subscriptions",
    {
        "topic": short("topic"),
        "ack deadline": lambda subscription: f"{subscription.get('ackDeadlineSeconds', 10)} s",
        "ordering": field("enableMessageOrdering"),
        "exactly once": field("enableExactlyOnceDelivery"),
        "filter": field("filter"),
    },
)

# Parameters of `create` and `update`, and their types.
_FLAGS: Mapping[str, Any] = {
    "ack_deadline": Annotated[
        int | None, typer.Option("--ack-deadline", min=10, max=600, metavar="SECONDS", help="The ack deadline.")
    ],
    "retention": Retention,
    "retain_acked": Annotated[
        bool | None,
        typer.Option("--retain-acked-messages/--no-retain-acked-messages", help="Also keep acknowledged messages."),
    ],
    "expiration": Annotated[
        str | None,
        typer.Option(
            "--expiration-period",
            metavar="DURATION|never",
            help="Delete the subscription when it was unused for this time.",
        ),
    ],
    "exactly_once": Annotated[
        bool | None,
        typer.Option("--enable-exactly-once-delivery/--no-enable-exactly-once-delivery", help="Exactly-once delivery."),
    ],
    "dead_letter": Annotated[
        str | None,
        typer.Option("--dead-letter-topic", **names_of("topics"), help="Topic for messages that fail too often."),
    ],
    "dead_letter_project": Annotated[
        str | None,
        typer.Option("--dead-letter-topic-project", metavar="ID", help="The project of --dead-letter-topic."),
    ],
    "attempts": Annotated[
        int | None, typer.Option("--max-delivery-attempts", min=5, max=100, help="Deliveries before dead-lettering.")
    ],
    "min_delay": Annotated[
        float | None,
        typer.Option("--min-retry-delay", parser=seconds, metavar="DURATION", help="Shortest delay of a redelivery."),
    ],
    "max_delay": Annotated[
        float | None,
        typer.Option("--max-retry-delay", parser=seconds, metavar="DURATION", help="Longest delay of a redelivery."),
    ],
    **push.FLAGS,
}


def _fields(
    service: Service,
    ack_deadline: int | None,
    retention: float | None,
    retain_acked: bool | None,
    expiration: str | None,
    exactly_once: bool | None,
    dead_letter: str | None,
    dead_letter_project: str | None,
    attempts: int | None,
    min_delay: float | None,
    max_delay: float | None,
    **pushed: Any,
) -> dict[str, Any]:
    plain = {
        "ack_deadline_seconds": ack_deadline,
        "retain_acked_messages": retain_acked,
        "enable_exactly_once_delivery": exactly_once,
    }
    fields: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    if retention is not None:
        fields["message_retention_duration"] = datetime.timedelta(seconds=retention)
    if expiration is not None:
        never = expiration.lower() == "never"
        fields["expiration_policy"] = {} if never else {"ttl": datetime.timedelta(seconds=_period(expiration))}
    if dead_letter is not None:
        fields["dead_letter_policy"] = {
            "dead_letter_topic": service.full(dead_letter, "topics", dead_letter_project),
            "max_delivery_attempts": attempts or 5,
        }
    elif attempts is not None or dead_letter_project is not None:
        flag = "--dead-letter-topic-project" if attempts is None else "--max-delivery-attempts"
        exit_with(f"`{flag}` needs `--dead-letter-topic`.", 2)
    if min_delay is not None or max_delay is not None:
        delays = {"minimum_backoff": min_delay, "maximum_backoff": max_delay}
        fields["retry_policy"] = {
            name: datetime.timedelta(seconds=delay) for name, delay in delays.items() if delay is not None
        }
    return {**fields, **push.config(pushed)}


def _period(text: str) -> float:
    try:
        return seconds(text)
    except typer.BadParameter:
        exit_with(f"`--expiration-period` must be `never` or a duration of days or hours (`30d`), got `{text}`.", 2)


@command(app, "create", flags={**_FLAGS, **exports.FLAGS})
def create(
    service: Service,
    names: Annotated[list[str], typer.Argument(metavar="NAME")],
    topic: Annotated[str, typer.Option(**names_of("topics"), help="The topic to subscribe to.")],
    topic_project: Annotated[str | None, typer.Option(metavar="ID", help="The project of --topic.")] = None,
    labels: Labels = None,
    ordering: Annotated[
        bool, typer.Option("--enable-message-ordering", help="Deliver messages of one key in their order.")
    ] = False,
    message_filter: Annotated[
        str | None, typer.Option(metavar="FILTER", help="Deliver only messages whose attributes match.")
    ] = None,
    **flags: Any,
) -> None:
    """Create subscriptions, all with these settings. Messages that were published before are not in them."""
    from google.pubsub_v1 import types

    export = exports.config({flag: flags.pop(flag) for flag in exports.FLAGS})
    if flags["push_endpoint"] is not None and export:
        exit_with("`--push-endpoint` and an export exclude each other.", 2)
    wanted = types.Subscription(
        topic=service.full(topic, "topics", topic_project),
        labels=pairs(labels),
        enable_message_ordering=ordering,
        filter=message_filter or "",
        **_fields(service, **flags),
        **export,
    )
    create_each(service, "subscriptions", wanted, names)


@command(app, "update", flags={**LABEL_FLAGS, **_FLAGS})
def update(
    service: Service,
    name: Annotated[str, typer.Argument(**names_of("subscriptions"))],
    clear_dead_letter: Annotated[
        bool,
        typer.Option("--clear-dead-letter-policy", help="Remove the dead-letter policy."),
    ] = False,
    clear_retry: Annotated[bool, typer.Option("--clear-retry-policy", help="Redeliver at once.")] = False,
    **flags: Any,
) -> None:
    """Change the named settings of a subscription. Its topic, filter and ordering never change."""
    from google.pubsub_v1 import types

    labels = {flag: flags.pop(flag) for flag in LABEL_FLAGS}
    update_resource(
        service,
        "subscriptions",
        types.Subscription,
        name,
        _fields(service, **flags),
        labels,
        dead_letter_policy=clear_dead_letter,
        retry_policy=clear_retry,
    )


# gcloud also has these here.
command(app, "pull")(messages.pull)
command(app, "seek")(backlog.seek)
