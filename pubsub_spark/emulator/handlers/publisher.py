"""Publisher: topics, and messages into them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import count
from typing import Any

from pubsub_spark import names
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError, already_exists, invalid, invalid_argument, not_found
from pubsub_spark.emulator.resources import field_masks, integrations, limits, pagination, resource_validation
from pubsub_spark.emulator.runtime import transforms
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.javascript import Transformable, TransformError
from pubsub_spark.emulator.runtime.transforms import Runner
from pubsub_spark.emulator.runtime.unanswered import Answer
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.schema_store import Revision
from pubsub_spark.emulator.state.subscription import Subscription
from pubsub_spark.emulator.state.topic import Snapshot, Topic
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.schema_types import ENCODINGS_BY_NUMBER

_FIRST_DROPPED = 10**17  # ids of dropped messages have 18 digits, those of the broker 17
_MUTABLE = frozenset(
    {
        "labels",
        "message_storage_policy",
        "message_retention_duration",
        "schema_settings",
        "ingestion_data_source_settings",
        "message_transforms",
    }
)


class Publisher:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._schemas = engine.state.schemas
        self._dropped_ids = count(_FIRST_DROPPED + int(engine.now() * 1e7))

    def create_topic(self, request: Any) -> Any:
        limits.check_name(request.name, "topics")
        topic = resource_validation.topic(request)
        transforms.check(topic.message_transforms)
        with self._engine.open() as (broker, _):
            if request.name in broker.topics:
                raise already_exists(request.name)
            self._check_schema(topic)
            broker.create_topic(request.name, topic, resource_validation.retention(topic))
            return topic

    def update_topic(self, request: Any) -> Any:
        transforms.check(request.topic.message_transforms)
        with self._engine.open() as (broker, now):
            topic = find_topic(broker, request.topic.name)
            changed = field_masks.updated(topic.resource, request.topic, request.update_mask.paths, _MUTABLE)
            changed = resource_validation.topic(changed)
            integrations.keep_state(changed, topic.resource)
            if changed.schema_settings != topic.resource.schema_settings:
                self._check_schema(changed)
            broker.update_topic(topic, changed, resource_validation.retention(changed), now)
            for subscription in topic.subscriptions.values():
                resource = deepcopy(subscription.resource)
                resource_validation.show_topic_retention(resource, changed)
                broker.replace(subscription, resource)
            return changed

    def get_topic(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            return find_topic(broker, request.topic).resource

    def list_topics(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            topics, token = pagination.of_project(broker.topics, request)
            return protos.ListTopicsResponse(topics=topics, next_page_token=token)

    def list_topic_subscriptions(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            listed, token = pagination.page(find_topic(broker, request.topic).subscriptions, request)
            return protos.ListTopicSubscriptionsResponse(subscriptions=listed, next_page_token=token)

    def list_topic_snapshots(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            listed, token = pagination.page(find_topic(broker, request.topic).snapshots, request)
            return protos.ListTopicSnapshotsResponse(snapshots=listed, next_page_token=token)

    def delete_topic(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            topic = find_topic(broker, request.topic)
            children: list[Subscription | Snapshot] = [*broker.subscriptions.values(), *topic.snapshots.values()]
            for child in children:
                if child.resource.topic == topic.name:
                    resource = deepcopy(child.resource)
                    resource.topic = names.DELETED_TOPIC
                    if isinstance(child, Subscription):
                        resource.ClearField("topic_message_retention_duration")
                    broker.replace(child, resource)
            broker.delete_topic(topic)
            self._engine.transforms.discard(topic.name)
            return protos.Empty()

    def detach_subscription(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            name = limits.check_name(request.subscription, "subscriptions")
            if name not in broker.subscriptions:
                raise not_found(name)
            subscription = broker.subscriptions[name]
            resource = deepcopy(subscription.resource)
            resource.detached = True
            resource.ClearField("topic_message_retention_duration")
            broker.detach_subscription(subscription, resource)
            return protos.DetachSubscriptionResponse()

    def publish(self, raw: bytes, answer: Answer | None = None) -> bytes:
        """Publish all messages or none: everything is checked before the first message gets an id."""
        limits.check_payload(len(raw))
        limits.check_at_most("request_size", len(raw), limits.MAX_PUBLISH_BYTES)
        request = protos.PublishRequest.FromString(raw)
        messages = request.messages
        limits.check_at_least("message_count", len(messages), 1)
        limits.check_at_most("message_count", len(messages), limits.MAX_PUBLISH_MESSAGES)
        with self._engine.open() as (broker, _):
            topic = find_topic(broker, request.topic)
            encoding, revisions = self._schema_rules(topic)
        runner = self._engine.transforms.runner(topic.name, topic.resource)
        if runner is not None:
            return self._publish_transformed(request, topic, runner, answer)
        bodies = wire_format.bodies_of_data_alone(raw) or _bodies(request)
        if encoding is not None:
            schema = topic.resource.schema_settings.schema
            bodies = _validated(bodies, messages, schema, encoding, revisions, range(len(messages)))
        return wire_format.publish_response(self._published(request, bodies, answer))

    def _published(self, request: Any, bodies: list[bytes], answer: Answer | None) -> range:
        with self._engine.open() as (broker, now):
            topic = find_topic(broker, request.topic)
            if answer is not None:
                self._engine.unanswered.add(answer, topic.name)
            return broker.publish(topic, bodies, request.messages[0].ordering_key, now)

    def _publish_transformed(self, request: Any, topic: Topic, runner: Runner, answer: Answer | None) -> bytes:
        """Publish the results of the topic's transforms, all or none. The topic's schema applies to the results.

        A dropped message has an id like the others, from a separate range.
        """
        _bodies(request)  # a message that is refused without transforms is also refused with them
        messages = [
            Transformable(
                message.data, message.attributes, {"ordering_key": message.ordering_key} if message.ordering_key else {}
            )
            for message in request.messages
        ]
        transformed = protos.PublishRequest(topic=request.topic)
        outcomes = runner.run(messages)
        for index, (outcome, message) in enumerate(zip(outcomes, request.messages, strict=True)):
            if isinstance(outcome, TransformError):
                raise invalid(f"The message transform {outcome} (topic={request.topic}, message={index}).")
            if outcome is not None:
                key = message.ordering_key
                transformed.messages.add(data=outcome.data, attributes=dict(outcome.attributes), ordering_key=key)
        kept = [index for index, outcome in enumerate(outcomes) if outcome is not None]
        ids = iter(self._publish_made(transformed, topic, kept, answer) if transformed.messages else ())
        dropped = (str(next(self._dropped_ids)) if outcome is None else str(next(ids)) for outcome in outcomes)
        response: bytes = protos.PublishResponse(message_ids=dropped).SerializeToString()
        return response

    def _publish_made(self, request: Any, topic: Topic, indexes: Sequence[int], answer: Answer | None) -> range:
        bodies = _bodies(request)
        with self._engine.open():
            encoding, revisions = self._schema_rules(topic)
        if encoding is not None:
            schema = topic.resource.schema_settings.schema
            bodies = _validated(bodies, request.messages, schema, encoding, revisions, indexes)
        return self._published(request, bodies, answer)

    def _check_schema(self, topic: Any) -> None:
        settings = topic.schema_settings
        if not topic.HasField("schema_settings"):
            return
        schema = self._schemas.get(limits.check_name(settings.schema, "schemas"))
        if schema is None:
            raise not_found(settings.schema)
        if settings.encoding not in ENCODINGS_BY_NUMBER:
            raise invalid_argument("schema_settings.encoding")
        for revision_id in (settings.first_revision_id, settings.last_revision_id):
            if revision_id and schema.find(revision_id) is None:
                raise not_found(f"{settings.schema}@{revision_id}")

    def _schema_rules(self, topic: Topic) -> tuple[Encoding | None, Sequence[Revision]]:
        """Return None and () for a topic without a schema."""
        resource = topic.resource
        if not resource.HasField("schema_settings"):
            return None, ()
        settings = resource.schema_settings
        schema = self._schemas.get(settings.schema)
        if schema is None:
            raise RpcError("NOT_FOUND", "Schema associated with topic deleted.")
        return ENCODINGS_BY_NUMBER[settings.encoding], tuple(
            schema.allowed(settings.first_revision_id, settings.last_revision_id)
        )


def find_topic(broker: Broker, name: str) -> Topic:
    topic = broker.topics.get(name)
    if topic is None:
        raise not_found(limits.check_name(name, "topics"))
    return topic


def _bodies(request: Any) -> list[bytes]:
    """Raise RpcError if a message may not be published."""
    request.DiscardUnknownFields()  # `wire_format` reads the stored bytes, and knows no other fields
    messages = request.messages
    bodies = []
    key = messages[0].ordering_key
    if len(key) * 4 > limits.MAX_ORDERING_KEY_BYTES:
        limits.check_at_most("ordering_key_size", len(key.encode()), limits.MAX_ORDERING_KEY_BYTES)
    for message in messages:
        bodies.append(message.SerializeToString())
        attributes = message.attributes
        if attributes:
            limits.check_attributes(attributes)
        elif not message.data:
            raise invalid(
                "One or more messages in the publish request is empty. Each message must contain either non-empty "
                "data, or at least one attribute."
            )
        if message.ordering_key != key:
            raise invalid(
                "In a single publish request, all messages must have no ordering key or they must all have the same "
                "ordering key."
            )
    return bodies


def _validated(
    bodies: list[bytes],
    messages: Sequence[Any],
    schema: str,
    encoding: Encoding,
    revisions: Sequence[Revision],
    indexes: Sequence[int],
) -> list[bytes]:
    """Return the bodies with attributes for the schema and the newest revision that each message fits.

    indexes: those of the messages in the request, used in the error.
    """
    data = [message.data for message in messages]
    if revisions and revisions[0].definition.first_invalid(data, encoding) is None:
        fits = [revisions[0].id] * len(data)
    else:
        numbered = zip(indexes, data, strict=True)
        fits = [_first_that_fits(message, encoding, schema, revisions, index) for index, message in numbered]
    tags = {
        revision_id: wire_format.attribute_fields(
            {
                "googclient_schemaname": schema,
                "googclient_schemaencoding": encoding,
                "googclient_schemarevisionid": revision_id,
            }
        )
        for revision_id in set(fits)
    }
    return [body + tags[revision_id] for body, revision_id in zip(bodies, fits, strict=True)]


def _first_that_fits(data: bytes, encoding: Encoding, schema: str, revisions: Sequence[Revision], index: int) -> str:
    """Return the id of the newest revision that the message fits. Without one, RpcError has the last one's reason."""
    if not revisions:
        raise invalid(f"No revision of `{schema}` is between the first and the last that the topic allows.")
    for revision in revisions:
        try:
            revision.definition.validate(data, encoding)
            return revision.id
        except InvalidMessage as error:
            problem = str(error)
    info = f"Could not validate message with any schema revision for schema: {schema}, last checked revision: "
    raise limits.failed_validation(
        revision.definition.type,
        encoding,
        f"Message {index} of the request does not match revision {revision.id} of `{schema}`: {problem}",
        revisionInfo=f"{info}revision_id={revision.id} failed with status: {problem}",
        messageIndex=str(index),
    )
