"""The options of a read or a write that come from a message of an AsyncAPI document: `asyncapi` and `message`.

The user's own options take precedence. The document is read on the driver.

    binding        writing                                          reading
    schema.name    `encode=topic`, by the topic's schema, which     `decode=topic`, `schema`
                   must be this one
    attributes     added to each message                            others than these make a message malformed
    orderingKey    the field of the payload that it names, or       nothing
                   a text where the payload has no such field
    channel        `topicId`                                        `subscriptionId`, of its only receive operation
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from .. import names
from ..errors import OptionsError
from ..options import ReadOptions, WriteOptions
from ..service_options import project_of
from .api import Api, Message, read

Options = TypeVar("Options", ReadOptions, WriteOptions)


def parse(cls: type[Options], options: Mapping[str, str], environ: Mapping[str, str]) -> Options:
    """Return the `options`, completed from their document. Raises AsyncApiError, OptionsError."""
    lowered = {name.lower(): text for name, text in options.items()}
    project = lowered.get("projectid") or project_of(environ)
    api = read(lowered["asyncapi"], project)
    message = _message(api, lowered.get("message"), _topic(api, lowered, project))
    defaults = _defaults(cls, api, message)
    parsed = cls.parse(
        {**{name: text for name, text in defaults.items() if name.lower() not in lowered}, **options}, environ
    )
    described: dict[str, Any] = {"described_attributes": tuple(message.binding.attributes.items())}
    if isinstance(parsed, WriteOptions):
        key = message.binding.ordering_key if parsed.ordering_key is None else None
        is_field = key is not None and (message.fields is None or key.partition(".")[0] in message.fields)
        described["described_schema"] = message.binding.schema
        described["ordering_field"] = tuple(key.split(".")) if is_field and key else None
        described["ordering_text"] = None if is_field else key
    return replace(parsed, **described)


def _topic(api: Api, options: Mapping[str, str], project: str | None) -> str | None:
    subscription, topic = options.get("subscriptionid"), options.get("topicid")
    try:
        if subscription:
            described = api.subscriptions.get(names.full(subscription, project, "subscriptions"))
            return described.topic if described is not None else None
        return names.full(topic, project, "topics") if topic else None
    except ValueError:  # not a name: parsing the options reports it
        return None


def _message(api: Api, name: str | None, topic: str | None) -> Message:
    """Return the message of this name, or the only one. If several channels have it, that of the topic."""
    known = ", ".join(f"`{message_name}`" for message_name in api.messages) or "none"
    if name is None and len(api.messages) == 1:
        [name] = api.messages
    if name is None:
        raise OptionsError([f"`message` is required with `asyncapi`. The document's messages are {known}"])
    if name not in api.messages:
        raise OptionsError([f"`message` names `{name}`, but the document's messages are {known}"])
    variants = [variant for variant in api.messages[name] if variant.topic == topic] or api.messages[name]
    if any(replace(variant, topic=variants[0].topic) != variants[0] for variant in variants):
        topics = " and ".join(f"`{variant.topic}`" for variant in variants)
        raise OptionsError(
            [
                f"`message` names `{name}`, which the channels of the topics {topics} describe differently. To "
                f"choose one, set `topicId`, or `subscriptionId` of one of the document's subscriptions"
            ]
        )
    return variants[0]


def _defaults(cls: type[ReadOptions] | type[WriteOptions], api: Api, message: Message) -> dict[str, str]:
    topics = {variant.topic for variant in api.messages[message.name]}
    schema = message.binding.schema
    defaults: dict[str, str] = {}
    if cls is WriteOptions:
        if len(topics) == 1:
            defaults["topicId"] = message.topic
        return defaults | ({"encode": "topic"} if schema is not None else {})
    subscriptions = [subscription.name for subscription in api.subscriptions.values() if subscription.topic in topics]
    if len(subscriptions) == 1:
        defaults["subscriptionId"] = subscriptions[0]
    return defaults | ({"decode": "topic", "schema": schema} if schema is not None else {})
