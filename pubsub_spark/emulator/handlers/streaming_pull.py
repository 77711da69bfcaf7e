"""One StreamingPull: requests take effect as they come, a thread sends responses, flow control stands between.

The rules of StreamingPullRequest: what the first request must say, what later ones may not; acks and deadlines in any
of them. Messages are taken only when the last response has been written, and only as many as the client's limits leave
room for. A client that is gone takes nothing more: its end is noticed under the same lock that hands out messages, and
a response that could not be written is handed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError, invalid
from pubsub_spark.emulator.handlers.subscriber import Subscriber, check_still_pullable, find_pullable
from pubsub_spark.emulator.resources import limits
from pubsub_spark.emulator.runtime.engine import Engine, Session
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.subscription import Subscription

RESPONSE_BYTES = 1_000_000  # enough to fill a pipe, small enough that many streams share the work
_PROPERTIES = b"\x22"  # StreamingPullResponse.subscription_properties = 4


class Call(Protocol):
    """What a stream needs of the RPC that carries it."""

    def time_remaining(self) -> float | None: ...

    def add_callback(self, callback: Callable[[], None]) -> bool: ...

    def begin(self) -> None: ...

    def send(self, message: bytes) -> bool: ...

    def finish(self, error: RpcError | None = None) -> None: ...

    def attempt(self, work: Callable[[], None]) -> None: ...


class Stream:
    """The state of one stream; `aside` gives it the thread that sends, and it is among `streams` while it is open."""

    def __init__(
        self,
        engine: Engine,
        subscriber: Subscriber,
        call: Call,
        aside: Callable[[Callable[[], None]], Any],
        streams: set[Stream],
    ) -> None:
        self._engine = engine
        self._subscriber = subscriber
        self._call = call
        self._aside = aside
        self._streams = streams
        self._begun = False  # once the first request was good
        self._consumer = engine.consumer()  # nobody yet; the first request puts the real one there
        self._subscription: Subscription
        self._error: RpcError | None = None
        self._confirmations: list[Any] = []
        self._unsent = range(0)  # numbers of the last response, until it has been written

    def receive(self, raw: bytes) -> None:
        """One request."""
        if not self._begun:
            self._open(_parsed(raw))
            return
        try:
            acks = wire_format.ack_ids_of(self._subscription.name).numbers_in(raw)
            if acks is not None:
                with self._engine.open() as session:
                    self._settle(session, acks, (), ())
                return
            request = _parsed(raw)
            _check_later(request)
            self._apply(request)
        except RpcError as error:
            self.refuse(error)

    def receive_end(self) -> None:
        """A half-closed stream goes on, as in the service; one that never said what it wants is over."""
        if not self._begun:
            self._call.finish()

    def _open(self, request: Any) -> None:
        _check_first(request)
        with self._engine.open() as (broker, _):
            subscription = find_pullable(broker, request.subscription)
            self._subscription = subscription
            self._consumer = self._engine.consumer(
                request.stream_ack_deadline_seconds, request.max_outstanding_messages, request.max_outstanding_bytes
            )
            broker.join(subscription, self._consumer)
            self._streams.add(self)
            self._begun = True
        try:
            self._apply(request)
            if not self._call.add_callback(lambda: self._engine.cancel(self._consumer)):
                self._engine.cancel(self._consumer)
            self._aside(lambda: self._call.attempt(self._respond))
        except RpcError:
            self._close()
            raise

    def _respond(self) -> None:
        """The sending thread."""
        try:
            self._call.begin()  # the stream is open, though there may be nothing to say yet
            while (response := self._next()) is not None and self._call.send(response):
                self._unsent = range(0)
        finally:
            self._close()
        self._call.finish()

    def _next(self) -> bytes | None:
        """Wait for something to say; None when the client is gone."""
        consumer, subscription = self._consumer, self._subscription
        with self._engine.open() as (broker, _):
            while True:
                if self._error is not None:
                    raise self._error
                if consumer.closed:
                    return None
                rest = self._call.time_remaining()
                if rest is not None and rest <= 0:
                    raise RpcError("DEADLINE_EXCEEDED", "The deadline of the stream has passed.")
                check_still_pullable(broker, subscription)
                now = self._engine.now()
                batch = broker.take(subscription, consumer, now, size=RESPONSE_BYTES)
                if batch or self._confirmations:
                    break
                broker.wait(subscription, consumer)
                self._engine.wait(consumer, rest)
            self._unsent = batch.numbers
            confirmations, self._confirmations = self._confirmations, []
            received = self._subscriber.received(subscription, batch)
            return received + _properties(subscription) + b"".join(each.SerializeToString() for each in confirmations)

    def _apply(self, request: Any) -> None:
        """Acks and deadlines of one request, and its new deadline for the stream."""
        _check_deadlines(request)
        subscriber, subscription = self._subscriber, self._subscription
        with self._engine.open() as session:
            acks = subscriber.numbers(subscription, request.ack_ids)
            modacks = subscriber.numbers(subscription, request.modify_deadline_ack_ids)
            if request.stream_ack_deadline_seconds:
                self._consumer.ack_deadline = request.stream_ack_deadline_seconds
            self._settle(session, acks, modacks, request.modify_deadline_seconds)

    def _settle(
        self, session: Session, acks: Sequence[int], modacks: Sequence[int], modack_seconds: Sequence[int]
    ) -> None:
        """Inside `open`: what one request acknowledges and extends."""
        (broker, now), subscription = session, self._subscription
        if (acks or modacks) and (outcome := self._subscriber.injected(subscription)):
            self._confirm(acks, acks, modacks, modacks, temporary=outcome.startswith("TRANSIENT"))
            return
        failed_acks = broker.ack(subscription, acks, now) if acks else []
        failed_modacks: list[int] = []
        for seconds, run in groupby(zip(modack_seconds, modacks, strict=True), itemgetter(0)):
            failed_modacks += broker.modify(subscription, [number for _, number in run], seconds, now)
        if subscription.settings.exactly_once and (acks or modacks):
            self._confirm(acks, failed_acks, modacks, failed_modacks)

    def _confirm(
        self,
        acks: Sequence[int],
        failed_acks: Sequence[int],
        modacks: Sequence[int],
        failed_modacks: Sequence[int],
        *,
        temporary: bool = False,
    ) -> None:
        text = wire_format.ack_ids_of(self._subscription.name).text
        response = protos.StreamingPullResponse()
        for confirmation, numbers, failed in (
            (response.acknowledge_confirmation, acks, set(failed_acks)),
            (response.modify_ack_deadline_confirmation, modacks, set(failed_modacks)),
        ):
            confirmation.ack_ids.extend(text(number) for number in numbers if number not in failed)
            refused = confirmation.temporary_failed_ack_ids if temporary else confirmation.invalid_ack_ids
            refused.extend(text(number) for number in numbers if number in failed)
        self._confirmations.append(response)
        self._engine.wake(self._consumer)

    def refuse(self, error: RpcError) -> None:
        """End the stream, which is open, with an error."""
        self._error = error
        self._engine.wake(self._consumer)

    def _close(self) -> None:
        with self._engine.open() as (broker, now):
            broker.release(self._subscription, self._unsent, now)
            broker.leave(self._subscription, self._consumer, now)
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
    """What is said once, in the first request, may not be said again."""
    for name in ("subscription", "max_outstanding_messages", "max_outstanding_bytes", "protocol_version"):
        if getattr(request, name, None):  # older client libraries lack protocol_version
            raise invalid(f"The {name} can only be set in the first request of a stream.")


def _properties(subscription: Subscription) -> bytes:
    """`subscription_properties`, in every response, also when both are false."""
    settings = subscription.settings
    inner = (b"\x08\x01" if settings.exactly_once else b"") + (b"\x10\x01" if settings.ordering else b"")
    return _PROPERTIES + bytes((len(inner),)) + inner
