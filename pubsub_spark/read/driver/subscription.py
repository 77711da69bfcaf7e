"""The checks and changes of a subscription before the first pull: get it, create it if asked to, seek it once.

A caller that may pull but not get the subscription (`roles/pubsub.subscriber` alone) can read it: errors then come from
the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from ... import names
from ...errors import ForbiddenError, MissingError, OptionsError, PubSubError, ResourceError
from ...options import ReadOptions
from ..offset import Offset

if TYPE_CHECKING:
    from google.pubsub_v1 import types

    from ...backend.admin import Admin

_log = logging.getLogger(__name__)

# Kinds of delivery that leave nothing to pull: field of Subscription -> words for the error, whether it is set.
_NOT_PULLED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "push_config": ("pushes its messages to an endpoint", lambda config: bool(config.push_endpoint)),
    "bigquery_config": ("writes its messages to BigQuery", lambda config: bool(config.table)),
    "cloud_storage_config": ("writes its messages to Cloud Storage", lambda config: bool(config.bucket)),
    "bigtable_config": ("writes its messages to Bigtable", lambda config: bool(config.table)),
}


def prepare(admin: Admin, options: ReadOptions, is_first: bool) -> str | None:
    """Check that the subscription can be pulled. Create it if asked to. Seek it at the first start of a checkpoint.

    Returns its topic, or None if the caller may not look at it. Raises ResourceError if it does not exist and no
    `topicId` says where to create it, if it is of a kind that cannot be pulled, or if a permission or the dead-letter
    topic is missing.
    """
    if options.dead_letter is not None:  # before anything is created
        with suppress(ForbiddenError):  # who may publish need not be allowed to look
            admin.topic(options.dead_letter)
        admin.check_permission("publish to", "topics", options.dead_letter, "pubsub.topics.publish")
    try:
        existing: types.Subscription | None = admin.subscription(options.subscription)
    except ForbiddenError:
        existing = None
    except MissingError as error:
        if options.topic is None:
            raise MissingError(f"{error} With `topicId` the connector creates it.") from None
        existing = _create(admin, _wanted(options, options.topic))
        if not is_first:
            _log.warning(
                "`%s` was deleted or has expired since the last run, and is created again. Messages that it had, and "
                "those published meanwhile, are lost",
                options.subscription,
            )
    if existing is not None:
        refuse_unless_pulled(existing)
        _check_topic(existing, options)
        _warn_of_other_settings(existing, _wanted(options, existing.topic))
    admin.check_permission("pull from", "subscriptions", options.subscription, "pubsub.subscriptions.consume")
    if options.delete_subscription_on_stream_stop:
        admin.check_permission("delete", "subscriptions", options.subscription, "pubsub.subscriptions.delete")
    if is_first:
        if options.starting_timestamp is not None:
            admin.seek(options.subscription, options.starting_timestamp)
        if options.starting_snapshot is not None:
            admin.seek(options.subscription, names.full(options.starting_snapshot, options.project, "snapshots"))
    return None if existing is None else str(existing.topic)


def check_offset(options: ReadOptions, offset: Offset) -> None:
    """Raise OptionsError if the offset of a checkpoint is of another subscription."""
    if offset.subscription not in (None, options.subscription):
        raise OptionsError(
            [
                f"the checkpoint location belongs to a query of `{offset.subscription}`, not of "
                f"`{options.subscription}`. Use a checkpoint location of its own for each subscription, or correct "
                f"`subscriptionId`"
            ]
        )


def _check_topic(existing: types.Subscription, options: ReadOptions) -> None:
    """Raise OptionsError unless the subscription is one of `topicId`, or its topic was deleted."""
    if options.topic in (None, existing.topic):
        return
    if existing.topic == names.DELETED_TOPIC:
        _log.warning("the topic of `%s` was deleted. Only the existing backlog will be read", existing.name)
        return
    raise OptionsError(
        [
            f"`topicId` is `{options.topic}`, but `{existing.name}` is a subscription of `{existing.topic}`. Correct "
            "`topicId` or `subscriptionId`, or leave out `topicId`"
        ]
    )


def _warn_of_other_settings(existing: types.Subscription, wanted: types.Subscription) -> None:
    from google.pubsub_v1 import types

    current = types.Subscription.pb(existing)
    other = [
        field.json_name
        for field, value in types.Subscription.pb(wanted).ListFields()
        if getattr(current, field.name) != value
    ]
    if other:
        _log.warning(
            "`%s` exists with other settings than %s, which are for a subscription that is created. Change the "
            "subscription, or leave these options out",
            existing.name,
            ", ".join(f"`{name}`" for name in other),
        )


def _create(admin: Admin, wanted: types.Subscription) -> types.Subscription:
    try:
        return cast("types.Subscription", admin.create("subscriptions", wanted, wanted.name))
    except ResourceError:
        with suppress(PubSubError):  # another query was faster, or the answer to our first try was lost
            return admin.subscription(wanted.name)
        raise


def refuse_unless_pulled(subscription: types.Subscription) -> None:
    """Raise ResourceError for a subscription whose messages go elsewhere."""
    for field, (does, is_set) in _NOT_PULLED.items():
        config = getattr(subscription, field, None)
        if config is not None and is_set(config):
            raise ResourceError(
                f"Subscription `{subscription.name}` {does}. Read from a pull subscription of its topic."
            )
    if subscription.detached:
        raise ResourceError(
            f"Subscription `{subscription.name}` is detached from its topic and receives no messages. Create a new one."
        )


def _wanted(options: ReadOptions, topic: str) -> types.Subscription:
    from google.pubsub_v1 import types

    return types.Subscription(
        name=options.subscription,
        topic=topic,
        enable_message_ordering=options.enable_message_ordering,
        enable_exactly_once_delivery=options.enable_exactly_once_delivery,
        filter=options.filter or "",
    )
