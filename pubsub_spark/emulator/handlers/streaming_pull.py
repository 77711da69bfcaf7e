"""One StreamingPull: requests take effect on arrival, responses are sent in turn, within the limits of flow control.

Messages are taken only when the last response was accepted, and only as many as fit in the client's limits. At the end
of a stream, a response that the transport did not accept is returned to the queue at once. An accepted one is
redelivered when its lease expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError, invalid
from pubsub_spark.emulator.handlers.subscriber import AT_ONCE, Subscriber, check_still_pullable, find_pullable
from pubsub_spark.emulator.resources import limits
from pubsub_spark.emulator.runtime.engine import Engine, Session, Wakeup
from pubsub_spark.emulator.runtime.transforms import Runner
from pubsub_spark.emulator.runtime.unanswered import Barrier
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.delivery import Batch, Consumer
from pubsub_spark.emulator.state.subscription import MOST_MESSAGES, Subscription

_log = logging.getLogger("pubsub_spark.emulator")

_RESPONSE_BYTES = 1_000_000  # enough to fill a pipe, small enough that many streams share the work
_Numbers = Sequence[int]  # of leases, as ack ids carry them
_Outcome = tuple[_Numbers, set[int]]  # the leases of a request, and the failed ones among them
_PROPERTIES = b"\x22"  # StreamingPullResponse.subscription_properties = 4


class StreamCall(Protocol):
    """The transport's part of a stream."""

    async def receive(self) -> bytes | None:
        """Return None if the client has half-closed the stream."""

    async def begin(self) -> None:
        """Notify the client that the stream is open, though there may be nothing to send yet."""

    async def room(self) -> None:
        """Wait until the connection has room for a response."""

    async def send(self, response: bytes) -> None:
        """Wait until a response is accepted. Raise StreamOverError if the stream ends meanwhile."""


class StreamOverError(asyncio.CancelledError):
    """The end of a stream while a response was sent. `accepted`: whether the transport had accepted that response."""

    def __init__(self, *, accepted: bool) -> None:
        super().__init__()
        self.accepted = accepted


class Untransformed(NamedTuple):
    """A response whose messages are to be transformed. It must be sent if its other `fields` have confirmations."""

    batch: Batch
    runner: Runner
    fields: bytes
    must_be_sent: bool


class Stream:
    """The state of one stream, which is among `streams` while it is open."""

    _subscription: Subscription
    consumer: Consumer

    def __init__(
        self, engine: Engine, subscriber: Subscriber, call: StreamCall, streams: set[Stream], peer: str = ""
    ) -> None:
        self._engine = engine
        self._subscriber = subscriber
        self._call = call
        self._streams = streams
        self._peer = peer
        self._wakeup = Wakeup()
        self._error: RpcError | None = None
        self._half_closed = False
        self._confirmations: list[Any] = []
        self._confirming = False  # whether the last response has confirmations
        self._barrier: Barrier | None = None  # of the last response, which is sent behind it
        self._unsent = range(0)  # numbers of the last response, until it was accepted
        self.first_request = b""
        self.messages = 0  # delivered so far, or about to be delivered

    @property
    def subscription_name(self) -> str:
        return self._subscription.name

    async def run(self) -> None:
        first = await self._call.receive()
        if first is None:
            return
        self.first_request = first
        request = _parsed(first)
        self._open(request)
        reading: asyncio.Task[None] | None = None
        try:
            self._apply(request)
            reading = asyncio.create_task(self._read())
            await self._call.begin()
            while True:
                await self._call.room()
                response = self._next()
                if isinstance(response, Untransformed):
                    response = await self._transformed(response)
                    if not response:
                        continue
                if response is not None:
                    if self._confirming:
                        await self._engine.written()
                    if self._barrier is not None:
                        await self._barrier.passed()
                    await self._call.send(response)
                    self._unsent = range(0)
                elif self._half_closed:
                    return
                else:
                    await self._wakeup.wait()
        except StreamOverError as over:
            if over.accepted:
                self._unsent = range(0)
            raise
        finally:
            if reading is not None:
                reading.cancel()
            self._close()

    async def _read(self) -> None:
        """At the end of the requests, the stream ends with OK, after the responses in progress."""
        try:
            while (raw := await self._call.receive()) is not None:
                self._receive(raw)
            self._half_closed = True
            self._wakeup.notify_all()
        except RpcError as error:
            self.refuse(error)
        except Exception:
            _log.exception("A request on a stream of %s failed", self._subscription.name)
            self.refuse(RpcError("INTERNAL", "The emulator failed. Its log has the cause."))

    def _receive(self, raw: bytes) -> None:
        acks = wire_format.ack_ids_of(self._subscription.name).numbers_in(raw)
        if acks is not None:
            with self._engine.open() as session:
                self._apply_acks(session, acks, (), ())
            return
        request = _parsed(raw)
        _check_later(request)
        self._apply(request)

    def _open(self, request: Any) -> None:
        _check_first(request)
        with self._engine.open() as (broker, _):
            self._subscription = find_pullable(broker, request.subscription)
            self.consumer = self._engine.consumer(
                request.stream_ack_deadline_seconds,
                request.max_outstanding_messages,
                request.max_outstanding_bytes,
                self._wakeup,
                f"StreamingPull of {self._peer}",
            )
            broker.join(self._subscription, self.consumer)
            self._streams.add(self)

    async def _transformed(self, response: Untransformed) -> bytes:
        """Return no bytes if the transforms dropped everything and nothing else is left."""
        batch, runner, fields, must_be_sent = response
        received = await self._subscriber.transformed(self._subscription, batch, runner)
        if not received:
            self._unsent = range(0)
        return received + fields if received or must_be_sent else b""

    def _next(self) -> bytes | Untransformed | None:
        consumer, subscription = self.consumer, self._subscription
        with self._engine.open() as (broker, now):
            if self._error is not None:
                raise self._error
            check_still_pullable(broker, subscription)
            size = 0 if self._half_closed else _RESPONSE_BYTES
            runner = self._subscriber.runner(subscription)
            most = MOST_MESSAGES if runner is None else AT_ONCE
            batch = broker.take(subscription, consumer, now, most, size)
            if not batch and not self._confirmations:
                if not self._half_closed:
                    broker.wait(subscription, consumer)
                return None
            self._unsent = batch.numbers
            self._barrier = self._engine.barrier(subscription) if batch else None
            self.messages += len(batch)
            confirmations, self._confirmations = self._confirmations, []
            self._confirming = bool(confirmations)
            fields = _properties(subscription) + b"".join(response.SerializeToString() for response in confirmations)
            if runner is not None and batch:
                return Untransformed(batch, runner, fields, bool(confirmations))
            return self._subscriber.received(subscription, batch) + fields

    def _apply(self, request: Any) -> None:
        _check_deadlines(request)
        subscriber, subscription = self._subscriber, self._subscription
        with self._engine.open() as session:
            acks = subscriber.numbers(subscription, request.ack_ids)
            modacks = subscriber.numbers(subscription, request.modify_deadline_ack_ids)
            if request.stream_ack_deadline_seconds:
                self.consumer.ack_deadline = request.stream_ack_deadline_seconds
            self._apply_acks(session, acks, modacks, request.modify_deadline_seconds)

    def _apply_acks(self, session: Session, acks: _Numbers, modacks: _Numbers, modack_seconds: Sequence[int]) -> None:
        (broker, now), subscription = session, self._subscription
        if (acks or modacks) and (outcome := self._subscriber.injected(subscription)):
            self._confirm((acks, set(acks)), (modacks, set(modacks)), outcome.startswith("TRANSIENT"))
            return
        failed_acks = broker.ack(subscription, acks, now) if acks else []
        failed_modacks: list[int] = []
        for seconds, run in groupby(zip(modack_seconds, modacks, strict=True), itemgetter(0)):
            failed_modacks += broker.modify(subscription, [number for _, number in run], seconds, now)
        if subscription.settings.exactly_once and (acks or modacks):
            self._confirm((acks, set(failed_acks)), (modacks, set(failed_modacks)))

    def _confirm(self, acks: _Outcome, modacks: _Outcome, temporary: bool = False) -> None:
        text = wire_format.ack_ids_of(self._subscription.name).text
        response = protos.StreamingPullResponse()
        for confirmation, (numbers, failed) in (
            (response.acknowledge_confirmation, acks),
            (response.modify_ack_deadline_confirmation, modacks),
        ):
            confirmation.ack_ids.extend(text(number) for number in numbers if number not in failed)
            refused = confirmation.temporary_failed_ack_ids if temporary else confirmation.invalid_ack_ids
            refused.extend(text(number) for number in numbers if number in failed)
        self._confirmations.append(response)
        self._wakeup.notify_all()

    def refuse(self, error: RpcError) -> None:
        """End the open stream with an error. Any thread may call it."""
        self._error = error
        self._wakeup.notify_all()

    def _close(self) -> None:
        with self._engine.open() as (broker, now):
            broker.release(self._subscription, self._unsent, now)
            broker.leave(self._subscription, self.consumer, now)
            self._streams.discard(self)


def _parsed(raw: bytes) -> Any:
    try:
        return protos.StreamingPullRequest.FromString(raw)
    except DecodeError:
        raise invalid("The request could not be parsed.") from None


def _check_first(request: Any) -> None:
    if not request.subscription:
        raise invalid("The first message of a stream must set subscription.")
    limits.check_name(request.subscription, "subscriptions")
    limits.check_ack_deadline(request.stream_ack_deadline_seconds, 10)


def _check_deadlines(request: Any) -> None:
    if len(request.modify_deadline_seconds) != len(request.modify_deadline_ack_ids):
        raise invalid(
            "The lengths of modify_deadline_seconds and modify_deadline_ack_ids must be the same: got "
            f"{len(request.modify_deadline_seconds)} and {len(request.modify_deadline_ack_ids)}."
        )
    for seconds in set(request.modify_deadline_seconds):
        limits.check_ack_deadline(seconds, 0)
    if request.stream_ack_deadline_seconds:
        limits.check_ack_deadline(request.stream_ack_deadline_seconds, 10)


def _check_later(request: Any) -> None:
    for name in ("subscription", "max_outstanding_messages", "max_outstanding_bytes", "protocol_version"):
        if getattr(request, name, None):  # older client libraries lack protocol_version
            raise invalid(f"The {name} can only be set in the first request of a stream.")


def _properties(subscription: Subscription) -> bytes:
    settings = subscription.settings
    inner = (b"\x08\x01" if settings.exactly_once else b"") + (b"\x10\x01" if settings.ordering else b"")
    return _PROPERTIES + bytes((len(inner),)) + inner
