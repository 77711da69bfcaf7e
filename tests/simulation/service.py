"""Pub/Sub: the emulator's pure `Broker` on virtual time, behind a network that delays and loses.

A request is on its way for a moment, takes effect, and its answer is on its way for another. Its sender may be dead by
then. Actions of the service are recorded at the moment of their effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.pubsub_v1 import types
from google.rpc import code_pb2, error_details_pb2, status_pb2

from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Consumer
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.subscription import Subscription
from pubsub_spark.read.pull.lease import TRANSIT_SECONDS
from tests.simulation.faults import Faults
from tests.simulation.hub import Hub
from tests.simulation.record import Message, Record
from tests.simulation.schemas import Schema

TOPIC, DEAD_LETTERS = "projects/shop/topics/orders", "projects/shop/topics/dead-orders"
SUBSCRIPTION, DEAD_SUBSCRIPTION = "projects/shop/subscriptions/orders", "projects/shop/subscriptions/dead-orders"
_LATENCIES = (0.001, 0.004, 0.02)  # seconds
_MAX_SILENT_SECONDS = 40.0  # that a response of a stream is on its way: after more, keepalive has ended the connection
_BRIEF_SECONDS = 0.3  # of streams that bring no messages
_SLOW_SECONDS = 0.5  # until a response arrives: the shortest silence that counts, of `once` and after a pull
_PROPERTIES = b"\x22\x00"  # StreamingPullResponse.subscription_properties, both false
_PULL_REQUEST = types.StreamingPullRequest.pb()
_MESSAGE = types.PubsubMessage.pb()
_ACK_REQUEST, _MODIFY_REQUEST = types.AcknowledgeRequest.pb(), types.ModifyAckDeadlineRequest.pb()

Code = grpc.StatusCode


class SimRpcError(grpc.RpcError):
    """A status that is not OK, as gRPC's call objects carry it. failed: ack ids with the reason of each."""

    def __init__(self, code: grpc.StatusCode, details: str, failed: dict[str, str] | None = None) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details, self._failed = code, details, failed

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Sequence[tuple[str, bytes]]:
        if not self._failed:
            return ()
        status = status_pb2.Status(code=code_pb2.Code.Value(self._code.name), message=self._details)
        status.details.add().Pack(
            error_details_pb2.ErrorInfo(reason="EXACTLY_ONCE_ACKID_FAILURE", metadata=self._failed)
        )
        return (("grpc-status-details-bin", status.SerializeToString()),)


class Receiver(Protocol):
    """The client's half of a stream. name: of its process."""

    name: str

    def receive(self, response: bytes | None, error: SimRpcError | None = None) -> None:
        """Take a response. None is the headers, an error the end, and b"" the end with OK."""


@dataclass(eq=False)
class _WholeResponses(Consumer):
    """A consumer of a service that cuts no response: it waits until there is room for a whole one, and more."""

    response: int = 1  # messages

    @property
    def has_room(self) -> bool:
        return super().has_room and (not self.messages or self.messages + self.response < self.max_messages)


class Stream:
    """The service's half of a StreamingPull."""

    def __init__(self, service: Service, receiver: Receiver) -> None:
        self._service, self.receiver = service, receiver
        self._subscription: Subscription | None = None
        self._consumer: Consumer | None = None
        self._half_closed = self.ended = False
        self.silent = False
        self._arrives = 0.0  # when the last response arrives: none overtakes another

    @property
    def has_room(self) -> bool:
        """Whether flow control lets more messages come."""
        return self._consumer is None or self._consumer.has_room

    def request(self, raw: bytes) -> None:
        """Apply a request. The first opens the stream."""
        service = self._service
        if self.ended or self.silent or self._subscription is not None or service.is_silent:
            return
        if service.is_down:
            self.end(SimRpcError(Code.UNAVAILABLE, "the service is down"))
            return
        request = _PULL_REQUEST.FromString(raw)
        self._subscription = service.broker.subscriptions.get(request.subscription)
        if self._subscription is None:
            self.end(SimRpcError(Code.NOT_FOUND, f"Resource not found (resource={request.subscription})."))
            return
        limits = request.max_outstanding_messages, request.max_outstanding_bytes
        self._consumer = Consumer(request.stream_ack_deadline_seconds, *limits, self)
        if service.response is not None:
            self._consumer = _WholeResponses(
                request.stream_ack_deadline_seconds, *limits, self, response=service.response
            )
        service.broker.join(self._subscription, self._consumer)
        service.streams.append(self)
        self._send(None)
        if service.brief is None:
            self.pump()
            return
        has_response, error = service.brief
        if has_response:
            self._send(_PROPERTIES)
        service.hub.after(_BRIEF_SECONDS, lambda: self.end(error))

    def send_nothing(self, pause: float) -> None:
        """Send a response without messages after each pause."""
        if not self.ended:
            self._send(_PROPERTIES)
            self._service.hub.after(pause, lambda: self.send_nothing(pause))

    def half_close(self) -> None:
        """Send nothing more. The stream ends with OK."""
        self._half_closed = True
        if not self.silent and not self._service.is_silent:
            self.end(None)

    def pump(self) -> None:
        """Send the available messages."""
        service, subscription, consumer = self._service, self._subscription, self._consumer
        if subscription is None or consumer is None or self.ended or self._half_closed:
            return
        if service.broker.subscriptions.get(subscription.name) is not subscription:
            self.end(SimRpcError(Code.NOT_FOUND, f"Resource not found (resource={subscription.name})."))
            return
        if service.is_silent:
            service.broker.wait(subscription, consumer)
            return
        if service.faults.hits("stream silent"):
            self.silent = True
        if service.faults.hits("stream ended"):
            self.end(SimRpcError(Code.UNAVAILABLE, "the stream has ended"))
            return
        most = service.response or service.chooser.pick((1, 5, 1000))
        service.broker.tick(service.now)  # a lease that ends now makes room
        batch = service.broker.take(subscription, consumer, service.now, most if consumer.has_room else 0)
        if not batch:
            service.broker.wait(subscription, consumer)
            return
        leases = list(batch)
        for lease in leases:
            service.leased[lease.number] = lease.message.id
        ids = [lease.message.id for lease in leases]
        service.record.deliver(ids, self.receiver.name, service.hub.now + consumer.ack_deadline)
        ack_ids = wire_format.ack_ids_of(subscription.name)
        self._send(ack_ids.received(batch.numbers, batch.frames, batch.attempts) + _PROPERTIES)
        if self.silent or self._arrives - service.hub.now >= _SLOW_SECONDS:
            service.record.note("response slow", ids)
        if self._arrives - service.hub.now > TRANSIT_SECONDS:
            service.record.note("response late", ids)
        if not service.settings.exactly_once and service.faults.hits("lease cut"):
            service.record.note("lease cut", ids)
            service.hub.after(0.5, lambda: service.cut(subscription, list(batch.numbers)))
        service.hub.after(0.001, self._send_more)

    def _send_more(self) -> None:
        self.pump()
        self._service.changed()  # leases that end now make room for other streams

    def end(self, error: SimRpcError | None) -> None:
        """End the stream for both sides."""
        if not self.ended:
            self.leave()
            self._send(b"", error)

    def leave(self) -> None:
        """Forget the client, which is gone. Its messages stay leased."""
        self.ended = True
        if self._subscription is not None and self._consumer is not None:
            self._service.broker.leave(self._subscription, self._consumer, self._service.now)
            self._service.streams.remove(self)
            self._service.changed()

    def _send(self, response: bytes | None, error: SimRpcError | None = None) -> None:
        hub = self._service.hub
        self._arrives = max(self._arrives, hub.now + self._service.latency(_MAX_SILENT_SECONDS))
        if not self.silent and not self._service.is_silent:
            hub.after(self._arrives - hub.now, lambda: self.receiver.receive(response, error))


class Service:
    """The service of one history, with one topic and one subscription, and dead letters if they are asked for.

    response: the messages of each response, or None for a service that cuts responses to fit the flow control.
    """

    def __init__(
        self, hub: Hub, faults: Faults, record: Record, settings: Settings, response: int | None = None
    ) -> None:
        self.hub, self.faults, self.record = hub, faults, record
        self.chooser = hub.chooser
        self.settings, self.response = settings, response
        self._create()
        self.schema = Schema() if "schema changed" in faults.rates else None
        self.streams: list[Stream] = []
        self.leased: dict[int, str] = {}  # message ids by lease
        self.down_until = self.silent_until = self.quota_until = 0.0  # virtual time
        # Streams bring no messages: whether a response without any, and the error of the end, None for OK.
        self.brief: tuple[bool, SimRpcError | None] | None = None
        self.is_transient = False  # whether the service names each id that has no quota
        self._tick_at = math.inf
        self._dead = 0  # messages in the dead-letter subscription

    def _create(self) -> None:
        self.broker = Broker(remembered=0)
        self.topic = self.broker.create_topic(TOPIC)
        self.broker.create_subscription(
            DEAD_SUBSCRIPTION, self.broker.create_topic(DEAD_LETTERS), Settings(ttl=math.inf), self.now
        )
        self.subscription = self.broker.create_subscription(SUBSCRIPTION, self.topic, self.settings, self.now)

    @property
    def now(self) -> float:
        """Seconds since the epoch of Unix."""
        return self.hub.epoch

    @property
    def is_down(self) -> bool:
        return self.hub.now < self.down_until

    @property
    def is_silent(self) -> bool:
        return self.hub.now < self.silent_until

    def latency(self, longest: float = 100.0) -> float:
        """Return how long something is on its way."""
        if self.faults.hits("call slow"):
            return self.chooser.seconds(0.1, longest)
        return self.chooser.pick(_LATENCIES)

    def changed(self) -> None:
        """Wake the streams that have something to send, and come back when a lease expires."""
        self._note_dead()
        broker = self.broker
        while broker.ready_consumers:
            stream = broker.ready_consumers.pop().condition
            if stream is not None:
                stream.pump()
        broker.events.clear()
        due = broker.due
        if due < math.inf and due < self._tick_at:
            self._tick_at = due
            self.hub.after(max(0.0, due - self.now) + 1e-6, self._tick)

    def _tick(self) -> None:
        self._tick_at = math.inf
        self.broker.tick(self.now)
        self.changed()

    def _note_dead(self) -> None:
        """Record the messages that went to the dead-letter topic, which need not be delivered any more."""
        before, self._dead = self._dead, self.broker.subscriptions[DEAD_SUBSCRIPTION].backlog
        if self._dead > before:
            left = {each for part in self.subscription.unacked(self.now) for each in part_ids(part)}
            for message in self.record.messages.values():
                if message.id not in left and not self.record.acked[message.id] and not message.ended:
                    message.ended = "dead letter"
                    self.record.tell("service", "gives up %s, a dead letter", message.id[-4:])

    def publish(self, bodies: Sequence[bytes], key: str) -> None:
        """Publish messages of one key."""
        attributes = self.schema.attributes if self.schema is not None else {}
        encoded = [_body(body, key, attributes) for body in bodies]
        numbers = self.broker.publish(self.topic, encoded, key, self.now)
        for number, body in zip(numbers, bodies, strict=True):
            self.record.publish(Message(str(number), key, body, int(self.now * 1000) / 1000))  # as the broker has it
        self.record.tell(
            "service", "gets %s messages from m%s on%s", len(bodies), numbers.start % 10**4, key and f", key {key}"
        )
        self.changed()

    def acknowledge(self, raw: bytes, by: str) -> SimRpcError | None:
        """Apply an AcknowledgeRequest. Returns the error to answer, if any."""
        request = _ACK_REQUEST.FromString(raw)
        return self._apply(request.subscription, request.ack_ids, by, self._ack)

    def modify(self, raw: bytes, by: str) -> SimRpcError | None:
        """Apply a ModifyAckDeadlineRequest. Returns the error to answer, if any."""
        request = _MODIFY_REQUEST.FromString(raw)
        seconds = request.ack_deadline_seconds

        def apply(subscription: Subscription, numbers: list[int], by: str) -> list[int]:
            if numbers:
                what = f"extends by {seconds} s" if seconds else "returns"
                self.record.tell(by, f"{what} %s messages", len(numbers))
            return self.broker.modify(subscription, numbers, seconds, self.now)

        return self._apply(request.subscription, request.ack_ids, by, apply)

    def _apply(
        self,
        name: str,
        ack_ids: Sequence[str],
        by: str,
        apply: Callable[[Subscription, list[int], str], list[int]],
    ) -> SimRpcError | None:
        subscription = self.broker.subscriptions.get(name)
        if subscription is None:
            return SimRpcError(Code.NOT_FOUND, f"Resource not found (resource={name}).")
        if self.hub.now < self.quota_until and ack_ids:
            transient = dict.fromkeys(ack_ids, "TRANSIENT_FAILURE_OTHER") if self.is_transient else {}
            return SimRpcError(Code.RESOURCE_EXHAUSTED, "quota exceeded", transient)
        ids = wire_format.ack_ids_of(name)
        numbers = list(ids.numbers(ack_ids))
        failed: dict[str, str] = {}
        if self.settings.exactly_once and numbers and self.faults.hits("some ids fail"):
            reason = self.chooser.pick(("TRANSIENT_FAILURE_OTHER", "PERMANENT_FAILURE_OTHER"))
            failed = {ids.text(number): reason for number in numbers[:: self.chooser.pick((1, 2))]}
            numbers = [number for number in numbers if ids.text(number) not in failed]
        refused = apply(subscription, numbers, by)
        self.changed()
        if self.settings.exactly_once:
            failed |= {ids.text(number): "PERMANENT_FAILURE_INVALID_ACK_ID" for number in refused}
        return SimRpcError(Code.INVALID_ARGUMENT, "Some acknowledgement ids were invalid.", failed) if failed else None

    def _ack(self, subscription: Subscription, numbers: list[int], by: str) -> list[int]:
        if not self.settings.exactly_once and numbers and self.faults.hits("ack forgotten"):
            forgotten = [self.leased[number] for number in numbers]
            self.record.note("ack forgotten", forgotten)
            if not all(stream.has_room for stream in self.streams):
                self.record.note("held back")  # the others, until these leases end
            self.record.tell("service", "forgets the acks of %s messages", len(forgotten))
            return []
        if self.settings.ordering and not self.settings.exactly_once and "acks dropped" in self.faults.rates:
            numbers = self._in_order(numbers, by)
        refused = self.broker.ack(subscription, numbers, self.now)
        if accepted := sorted({self.leased[number] for number in set(numbers).difference(refused)}):
            self.record.ack(accepted, by)
        if refused:
            self.record.tell(by, "is refused %s acks", len(refused))
        return refused

    def _in_order(self, numbers: list[int], by: str) -> list[int]:
        """Return the acks that follow those of all earlier messages of their keys. The others are dropped, answered OK:
        https://github.com/googleapis/google-cloud-rust/issues/3970
        """
        record, kept = self.record, list[int]()
        together = {self.leased[number] for number in numbers}
        first: dict[str, int] = {}  # by key: the first message that stays
        for message in record.messages.values():
            if not (message.id in together or record.acked[message.id] or message.ended):
                first.setdefault(message.key, int(message.id))
        for number in numbers:
            message = record.messages[self.leased[number]]
            if not message.key or int(message.id) < first.get(message.key, int(message.id) + 1):
                kept.append(number)
        if dropped := len(numbers) - len(kept):
            record.tell("service", "drops %s acks of %s", dropped, by)
        return kept

    def cut(self, subscription: Subscription, numbers: list[int]) -> None:
        """End leases early."""
        self.broker.modify(subscription, numbers, 0, self.now)
        self.changed()

    def seek(self, to: float) -> None:
        """Seek to a time (virtual seconds)."""
        self.record.note("seek", to)
        self.record.tell("service", "seeks to %s s", round(to, 3))
        at = self.now - self.hub.now + to
        for message in self.record.messages.values():
            if message.at < at:
                message.ended = message.ended or "seek"
        self.broker.seek_to_time(self.subscription, at, self.now)
        self.changed()

    def recreate(self) -> None:
        """Delete the subscription with its messages, and create it again."""
        self.record.note("recreated")
        self.record.tell("service", "deletes the subscription and creates it again")
        for message in self.record.messages.values():
            message.ended = message.ended or "recreated"
        self.broker.delete_subscription(self.subscription)
        self.changed()
        self.subscription = self.broker.create_subscription(SUBSCRIPTION, self.topic, self.settings, self.now)
        self.changed()

    def count_again(self) -> None:
        """Restart as an emulator that keeps nothing, and counts messages and leases from 1 again."""
        self.record.tell("service", "restarts, and counts from 1 again")
        for message in self.record.messages.values():
            message.ended = message.ended or "recreated"
        self.end_streams()
        self._create()

    def resend(self) -> None:
        """Continue after a silence: messages sent meanwhile are lost, and the service has dropped its streams."""
        self.end_streams()
        self.changed()

    def end_streams(self) -> None:
        """End every stream, as an outage does."""
        for stream in list(self.streams):
            stream.end(SimRpcError(Code.UNAVAILABLE, "the service is down"))


def part_ids(part: Any) -> list[str]:
    """Return the message ids of a publication."""
    return [str(part.first + n) for n in range(len(part.frames))]


def _body(data: bytes, key: str, attributes: Mapping[str, str]) -> bytes:
    """Return a serialized PubsubMessage."""
    message = _MESSAGE(data=data, ordering_key=key, attributes=attributes)
    return bytes(message.SerializeToString(deterministic=True))
