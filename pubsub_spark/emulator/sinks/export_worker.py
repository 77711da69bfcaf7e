"""Export delivery: one thread for each export subscription leases messages, writes them, and then acknowledges them.

A `Destination` decides the content of writes, `export_batch` their time. Delivery is at least once: a message is
acknowledged only after it is written. A message that cannot be written is nacked. If the destination cannot be written,
everything stays in the backlog and is tried again. The state is in the subscription's configuration.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.sinks.destination import Destination, DestinationError, Destinations, State, TopicSchema
from pubsub_spark.emulator.sinks.export_batch import OpenBatch
from pubsub_spark.emulator.sinks.problem_log import ProblemLog
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Consumer
from pubsub_spark.emulator.state.events import Cleared, Created, Deleted, Event, Updated, collection
from pubsub_spark.emulator.state.subscription import Subscription
from pubsub_spark.schema.schema_types import ENCODINGS_BY_NUMBER

_FOLLOWED = frozenset({Created, Updated, Deleted, Cleared})
_LEASE_MARGIN_SECONDS = 600.0  # for the write, beyond the batch's open time
_RETRY_SECONDS = 10.0  # after a batch without a written message
_MAX_WAIT_SECONDS = 60.0  # the longest time until an expired subscription is noticed
_FLUSH_SECONDS = 10.0  # for the open batch when the emulator stops
_ACTIVE, _RESOURCE_ERROR = 1, 2  # of Subscription.State


class ExportWorkers:
    def __init__(self, engine: Engine, destinations: Destinations) -> None:
        self._engine = engine
        self._destinations = destinations
        self._workers: dict[str, ExportWorker] = {}
        self._ended: list[ExportWorker] = []  # they may still write

    def follow(self, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) not in _FOLLOWED:
                continue
            if isinstance(event, Cleared):
                for name in list(self._workers):
                    self._end(name)
            elif isinstance(event, Deleted):
                self._end(event.name)
            elif isinstance(event, Created | Updated) and collection(event.name) == "subscriptions":
                if isinstance(event, Created):
                    self._release(event.name, event.resource)
                self._configure(event.name, event.resource)

    def _release(self, name: str, resource: Any) -> None:
        """Release the messages that a killed emulator had leased to its worker."""
        subscription = self._engine.broker.subscriptions.get(name)
        if subscription is not None and any(resource.HasField(export) for export in self._destinations):
            broker = self._engine.broker
            broker.release(subscription, broker.leased_numbers(subscription), self._engine.clock.now())

    def _configure(self, name: str, resource: Any) -> None:
        field = next((export for export in self._destinations if resource.HasField(export)), None)
        subscription = self._engine.broker.subscriptions.get(name)
        if field is None or resource.detached or subscription is None:
            self._end(name)
            return
        config = _stateless(getattr(resource, field))
        present = self._workers.get(name)
        if present is not None and present.config == config and present.subscription is subscription:
            return
        self._end(name)
        self._workers[name] = ExportWorker(self._engine, subscription, field, config, self._destinations[field](config))

    def _end(self, name: str) -> None:
        if (worker := self._workers.pop(name, None)) is not None:
            worker.stop()
            self._ended = [ended for ended in (*self._ended, worker) if ended.is_alive]

    def close(self) -> None:
        """Wait a bounded time until leased messages are written."""
        with self._engine.open():
            for name in list(self._workers):
                self._end(name)
        for worker in self._ended:
            worker.join(_FLUSH_SECONDS)


class ExportWorker:
    """The export of one subscription, until stopped or until the subscription is deleted."""

    def __init__(
        self, engine: Engine, subscription: Subscription, field: str, config: Any, destination: Destination
    ) -> None:
        self.subscription = subscription
        self.config = config
        self._engine = engine
        self._field = field
        self._destination = destination
        self._consumer: Consumer = engine.consumer(
            ack_deadline=destination.limits.seconds + _LEASE_MARGIN_SECONDS, name="export"
        )
        self._problem = ProblemLog(subscription.name, "exporting")
        self._resumes_at = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"export {subscription.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leased messages are still written."""
        self._stopped = True
        self._engine.wake(self._consumer)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._check()
            while (batch := self._next()) is not None:
                self._write(batch)
        except Exception as error:
            self._engine.fail(error)

    def _check(self) -> None:
        try:
            self._destination.check()
            state: State = "ACTIVE"
        except DestinationError as problem:
            state = self._failed(problem)
        except Exception:
            return  # the first write reports it
        with self._engine.open() as (broker, _):
            self._show(broker, state)

    def _next(self) -> OpenBatch | None:
        """Return None at the end."""
        batch = OpenBatch(self._destination.limits)
        subscription, consumer = self.subscription, self._consumer
        with self._engine.open() as (broker, _):
            while broker.subscriptions.get(subscription.name) is subscription:
                now = self._engine.clock.now()
                if self._stopped or consumer.closed:
                    return batch if batch.leases else None
                if batch.is_due(now):
                    return batch
                if now >= self._resumes_at:
                    if taken := broker.take(subscription, consumer, now, *batch.room):
                        batch.add(taken, now)
                        continue
                    is_behind = broker.backlog(subscription) > len(batch.leases)
                    if batch.leases and is_behind and subscription.settings.ordering:
                        return batch  # a key's next messages come after the acks of these
                    broker.wait(subscription, consumer)
                wakes_at = min(batch.ends, self._resumes_at) if now < self._resumes_at else batch.ends
                self._engine.wait(consumer, min(max(wakes_at - now, 0.0), _MAX_WAIT_SECONDS))
        return None

    def _write(self, batch: OpenBatch) -> None:
        numbers = [lease.number for lease in batch.leases]
        misfits: Sequence[int] = ()
        state: State | None = "ACTIVE"
        schema = self._schema()
        try:
            misfits = self._destination.write(batch, self.subscription.name, schema)
            self._problem.ended()
        except DestinationError as problem:
            state = self._failed(problem)
        except OSError as problem:  # a store that is away for a while, a full disk
            self._problem.occurred(str(problem))
            state = None
        except Exception as problem:  # an unexpected error of a library or of a server's answer
            self._problem.occurred(f"{type(problem).__name__}: {problem}", problem)
            state = None
        with self._engine.open() as (broker, now):
            subscription = self.subscription
            if state != "ACTIVE":
                broker.release(subscription, numbers, now)
            else:
                refused = {numbers[index] for index in misfits}
                broker.ack(subscription, [number for number in numbers if number not in refused], now)
                if refused:
                    broker.modify(subscription, sorted(refused), 0, now, is_use=False)
                    state = "SCHEMA_MISMATCH"
            if state != "ACTIVE" and len(misfits) in (0, len(numbers)):  # nothing was written
                self._resumes_at = now + _RETRY_SECONDS
            if state is not None:
                self._show(broker, state)

    def _failed(self, problem: DestinationError) -> State:
        self._problem.occurred(str(problem))
        return problem.state

    def _schema(self) -> TopicSchema | None:
        with self._engine.open() as (broker, _):
            topic = broker.topic_of(self.subscription.name) if self.subscription.name in broker.subscriptions else None
            settings = topic.resource.schema_settings if topic is not None else None
            schema = self._engine.state.schemas.get(settings.schema) if settings is not None else None
        if schema is None or settings is None:
            return None
        allowed = [*schema.allowed(settings.first_revision_id, settings.last_revision_id)] or [schema.latest]
        revisions = {revision.id: revision.definition for revision in schema.revisions}
        return TopicSchema(revisions, allowed[0].definition, ENCODINGS_BY_NUMBER[settings.encoding])

    def _show(self, broker: Broker, state: State) -> None:
        subscription = self.subscription
        if broker.subscriptions.get(subscription.name) is not subscription or self._stopped:
            return
        resource = deepcopy(subscription.resource)
        config = getattr(resource, self._field)
        config.state = config.DESCRIPTOR.enum_types_by_name["State"].values_by_name[state].number
        resource.state = _ACTIVE if state == "ACTIVE" else _RESOURCE_ERROR
        if resource != subscription.resource:
            broker.replace(subscription, resource)


def _stateless(config: Any) -> Any:
    stateless = deepcopy(config)
    stateless.ClearField("state")
    return stateless
