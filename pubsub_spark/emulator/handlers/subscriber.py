"""Subscriber: subscriptions, and delivery of their messages by single requests. Streams are in `streaming_pull`."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Protocol

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import already_exists, failed_precondition, invalid_argument, not_found
from pubsub_spark.emulator.handlers.publisher import find_topic
from pubsub_spark.emulator.resources import field_masks, integrations, limits, pagination, resource_validation
from pubsub_spark.emulator.runtime import transforms
from pubsub_spark.emulator.runtime.engine import Engine, Wakeup
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.runtime.javascript import Transformable, TransformError
from pubsub_spark.emulator.runtime.transforms import Runner, transformable
from pubsub_spark.emulator.runtime.unanswered import Barrier
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Batch
from pubsub_spark.emulator.state.message import Message
from pubsub_spark.emulator.state.subscription import Subscription

_log = logging.getLogger("pubsub_spark.emulator")

_MUTABLE = frozenset(
    {
        "ack_deadline_seconds",
        "push_config",
        "bigquery_config",
        "cloud_storage_config",
        "bigtable_config",
        "labels",
        "retain_acked_messages",
        "message_retention_duration",
        "expiration_policy",
        "dead_letter_policy",
        "retry_policy",
        "enable_exactly_once_delivery",
        "message_transforms",
    }
)
AT_ONCE = 100  # messages that are transformed together: the first waits for the last
_FAILED_PAUSE_SECONDS = 0.1
PULL_WAIT_SECONDS = 10.0  # an empty Pull answers well before clients time out after 60 s
_PULL_MARGIN_SECONDS = 0.25  # and, with a shorter deadline, this long before it


class Context(Protocol):
    @property
    def deadline(self) -> float | None: ...

    @property
    def peer(self) -> str: ...


class Subscriber:
    def __init__(self, engine: Engine, faults: Faults, exports: Collection[str] = ()) -> None:
        self._engine = engine
        self._exports = exports
        self._faults = faults

    def create_subscription(self, request: Any) -> Any:
        project = limits.check_name(request.topic, "topics").partition("/topics/")[0]
        name = request.name or f"{project}/subscriptions/s-{secrets.token_hex(8)}"
        limits.check_name(name, "subscriptions")
        transforms.check(request.message_transforms)
        kept = resource_validation.subscription(request, self._exports)
        kept.name = name
        kept.detached = False
        with self._engine.open() as (broker, now):
            if name in broker.subscriptions:
                raise already_exists(name)
            topic = find_topic(broker, request.topic)
            _check_dead_letter(broker, kept)
            resource_validation.show_topic_retention(kept, topic.resource)
            broker.create_subscription(name, topic, resource_validation.settings(kept), now, kept)
            return kept

    def get_subscription(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            return find(broker, request.subscription).resource

    def update_subscription(self, request: Any) -> Any:
        transforms.check(request.subscription.message_transforms)
        with self._engine.open() as (broker, now):
            subscription = find(broker, request.subscription.name)
            kept = subscription.resource
            changed = field_masks.updated(kept, request.subscription, request.update_mask.paths, _MUTABLE)
            _configure(broker, subscription, changed, now, self._exports)
            return subscription.resource

    def modify_push_config(self, request: Any) -> Any:
        with self._engine.open() as (broker, now):
            subscription = find(broker, request.subscription)
            changed = deepcopy(subscription.resource)
            changed.push_config.CopyFrom(request.push_config)
            _configure(broker, subscription, changed, now, self._exports)
            return protos.Empty()

    def list_subscriptions(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            resources, token = pagination.of_project(broker.subscriptions, request)
            return protos.ListSubscriptionsResponse(subscriptions=resources, next_page_token=token)

    def delete_subscription(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            broker.delete_subscription(find(broker, request.subscription))
            self._engine.transforms.discard(request.subscription)
            return protos.Empty()

    async def pull(self, raw: bytes, context: Context) -> bytes:
        """Return the next messages up to the limits. Wait a bounded time for the first one, on the event loop."""
        request = protos.PullRequest.FromString(raw)
        if request.max_messages < 1:
            raise invalid_argument("max_messages")
        most = min(request.max_messages, limits.MAX_PULL_MESSAGES)
        wakeup = Wakeup()
        consumer = self._engine.consumer(wakeup=wakeup, name=f"Pull of {context.peer}")
        with self._engine.open() as (broker, now):
            subscription = find_pullable(broker, request.subscription)
            ends = now if request.return_immediately else now + _wait_seconds(context.deadline, now)
            broker.join(subscription, consumer)
        try:
            while True:
                with self._engine.open() as (broker, now):
                    check_still_pullable(broker, subscription)
                    runner = self.runner(subscription)
                    batch = broker.take(subscription, consumer, now, most if runner is None else min(most, AT_ONCE))
                    barrier = self._engine.barrier(subscription) if batch else None
                    is_over = now >= ends or consumer.closed
                    if not batch and not is_over:
                        broker.wait(subscription, consumer)
                if batch:
                    response = await self._response(subscription, batch, barrier, runner)
                    if response or is_over:
                        return response
                elif is_over:
                    return b""
                else:
                    await wakeup.wait(ends - now)
        finally:
            with self._engine.open() as (broker, now):
                broker.leave(subscription, consumer, now)

    async def _response(
        self, subscription: Subscription, batch: Batch, barrier: Barrier | None, runner: Runner | None
    ) -> bytes:
        """Release the messages if the client leaves before the barrier opens."""
        if barrier is not None:
            try:
                await barrier.passed()
            except BaseException:
                with self._engine.open() as (broker, now):
                    broker.release(subscription, batch.numbers, now)
                raise
        if runner is None:
            return self.received(subscription, batch)
        return await self.transformed(subscription, batch, runner)

    def acknowledge(self, raw: bytes) -> bytes:
        limits.check_payload(len(raw), limits.MAX_ACK_REQUEST_BYTES)
        name, remaining = wire_format.subscription_and_rest(raw)
        numbers: Sequence[int] | None = wire_format.ack_ids_of(name).numbers_in(remaining)
        if numbers is None:
            request = protos.AcknowledgeRequest.FromString(raw)
            limits.check_ack_ids(request.ack_ids)
            name = request.subscription
        with self._engine.open() as (broker, now):
            subscription = find(broker, name)
            if numbers is None:
                numbers = self.numbers(subscription, request.ack_ids)
            self._inject(subscription, numbers)
            failed = broker.ack(subscription, numbers, now)
            self._check_exactly_once(subscription, failed)
        return b""

    def modify_ack_deadline(self, raw: bytes) -> bytes:
        limits.check_payload(len(raw), limits.MAX_ACK_REQUEST_BYTES)
        request = protos.ModifyAckDeadlineRequest.FromString(raw)
        limits.check_ack_ids(request.ack_ids)
        seconds = limits.check_ack_deadline(request.ack_deadline_seconds, 0)
        with self._engine.open() as (broker, now):
            subscription = find(broker, request.subscription)
            numbers = self.numbers(subscription, request.ack_ids)
            self._inject(subscription, numbers)
            failed = broker.modify(subscription, numbers, seconds, now)
            self._check_exactly_once(subscription, failed)
        return b""

    def _inject(self, subscription: Subscription, numbers: Sequence[int]) -> None:
        if outcome := self.injected(subscription):
            text = wire_format.ack_ids_of(subscription.name).text
            raise limits.exactly_once_failure([text(number) for number in numbers], outcome)

    def injected(self, subscription: Subscription) -> str:
        return self._faults.injected() if subscription.settings.exactly_once else ""

    def _check_exactly_once(self, subscription: Subscription, failed: Sequence[int]) -> None:
        if failed and subscription.settings.exactly_once:
            text = wire_format.ack_ids_of(subscription.name).text
            raise limits.exactly_once_failure([text(number) for number in failed])

    def received(self, subscription: Subscription, batch: Batch) -> bytes:
        return wire_format.ack_ids_of(subscription.name).received(batch.numbers, batch.frames, batch.attempts)

    def runner(self, subscription: Subscription) -> Runner | None:
        return self._engine.transforms.runner(subscription.name, subscription.resource)

    async def transformed(self, subscription: Subscription, batch: Batch, runner: Runner) -> bytes:
        """Return the messages of a batch that its transforms have not dropped, as `received_messages` of a response.

        A dropped message is acked, a failed one is nacked. If no message is left and some have failed, the call pauses,
        so that a client that asks again at once does not loop.
        """
        leases = list(batch)
        work = partial(runner.run, [transformable(lease.message) for lease in leases])
        try:
            outcomes = await asyncio.get_running_loop().run_in_executor(runner.executor, work)
        except BaseException:
            with self._engine.open() as (broker, now):
                broker.release(subscription, batch.numbers, now)
            raise
        dropped = [lease.number for lease, outcome in zip(leases, outcomes, strict=True) if outcome is None]
        failed: list[int] = []
        failed_keys: set[str] = set()
        kept: list[bytes] = []
        received = wire_format.ack_ids_of(subscription.name).received
        for lease, outcome in zip(leases, outcomes, strict=True):
            key = lease.message.key if subscription.settings.ordering else ""
            if key and key in failed_keys:
                continue  # withdrawn with the failed one, and redelivered behind it
            if isinstance(outcome, TransformError):
                _log.info("A message of %s failed in the message transform %s.", subscription.name, outcome)
                failed.append(lease.number)
                failed_keys.add(key)
            elif outcome is not None:
                attempts = None if batch.attempts is None else [lease.attempt]
                numbers = range(lease.number, lease.number + 1)
                kept.append(received(numbers, [_frame(lease.message, outcome)], attempts))
        with self._engine.open() as (broker, now):
            broker.ack(subscription, dropped, now)
            broker.modify(subscription, failed, 0, now, is_use=False)
        if failed and not kept:
            await asyncio.sleep(_FAILED_PAUSE_SECONDS)
        return b"".join(kept)

    def numbers(self, subscription: Subscription, ack_ids: Sequence[str]) -> Sequence[int]:
        try:
            return wire_format.ack_ids_of(subscription.name).numbers(ack_ids)
        except ValueError as malformed:
            raise limits.malformed_ack_id(str(malformed)) from None


def _frame(message: Message, result: Transformable) -> bytes:
    """The id, time and key are those of the original message."""
    body = protos.PubsubMessage(data=result.data, attributes=dict(result.attributes), ordering_key=message.key)
    published = wire_format.publish_time_field(message.published)
    [frame] = wire_format.message_frames([body.SerializeToString()], message.number, published)
    return frame


def find(broker: Broker, name: str) -> Subscription:
    subscription = broker.subscriptions.get(name)
    if subscription is None:
        raise not_found(limits.check_name(name, "subscriptions"))
    return subscription


def find_pullable(broker: Broker, name: str) -> Subscription:
    subscription = find(broker, name)
    if subscription.resource.detached:
        raise failed_precondition(f"Subscription `{name}` is detached from its topic.")
    if resource_validation.kind(subscription.resource) != "pull":
        raise failed_precondition("This method is not supported for this subscription type.")
    return subscription


def check_still_pullable(broker: Broker, subscription: Subscription) -> None:
    """Raise RpcError unless, after a wait, the same subscription still exists and can be pulled."""
    if find_pullable(broker, subscription.name) is not subscription:
        raise not_found(subscription.name)


def _configure(broker: Broker, subscription: Subscription, changed: Any, now: float, exports: Collection[str]) -> None:
    resource_validation.keep_push_version(changed.push_config, subscription.resource.push_config)
    kept = resource_validation.subscription(changed, exports)
    integrations.keep_state(kept, subscription.resource)
    if kept.dead_letter_policy != subscription.resource.dead_letter_policy:
        _check_dead_letter(broker, kept)
    topic = broker.topic_of(subscription.name)
    if topic is not None:
        resource_validation.show_topic_retention(kept, topic.resource)
    broker.configure(subscription, resource_validation.settings(kept), kept, now)


def _wait_seconds(deadline: float | None, now: float) -> float:
    remaining = PULL_WAIT_SECONDS if deadline is None else deadline - now - _PULL_MARGIN_SECONDS
    return max(0.0, min(PULL_WAIT_SECONDS, remaining))


def _check_dead_letter(broker: Broker, kept: Any) -> None:
    topic = kept.dead_letter_policy.dead_letter_topic
    if topic and topic not in broker.topics:
        raise not_found(topic)
