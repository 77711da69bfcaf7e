"""Push delivery: one thread for each push subscription takes messages, a few more POST them to its endpoint.

`push_request` has the rules. A request may last as long as the ack deadline.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.javascript import TransformError
from pubsub_spark.emulator.runtime.transforms import transformable
from pubsub_spark.emulator.runtime.unanswered import Barrier
from pubsub_spark.emulator.sinks import push_request
from pubsub_spark.emulator.sinks.push_request import Endpoint, PushMessage, Window
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Lease
from pubsub_spark.emulator.state.events import Cleared, Created, Deleted, Event, Updated, collection
from pubsub_spark.emulator.state.subscription import Subscription

if TYPE_CHECKING:
    from pubsub_spark.emulator.sinks.oidc import Signer

_log = logging.getLogger("pubsub_spark.emulator")

MAX_THREADS = 64  # for one subscription, however wide its window
_FOLLOWED = frozenset({Created, Updated, Deleted, Cleared})
_TOKEN_SECONDS = 1800.0  # the use of a token, which is valid for an hour
_MAX_WAIT_SECONDS = 60.0  # the longest time until an expired subscription is noticed


def endpoint_of(config: Any) -> Endpoint | None:
    """Return None if the PushConfig is empty, which means pull."""
    if not config.push_endpoint:
        return None
    return Endpoint(
        config.push_endpoint,
        wrapped=not config.HasField("no_wrapper"),
        version=config.attributes.get("x-goog-version", "v1"),
        write_metadata=config.no_wrapper.write_metadata,
        service_account=config.oidc_token.service_account_email,
        audience=config.oidc_token.audience,
    )


def one_signer() -> Callable[[], Signer]:
    """The signer is made on the first call, because its key takes time."""
    lock = threading.Lock()

    @cache
    def signer() -> Signer:
        from pubsub_spark.emulator.sinks.oidc import Signer

        return Signer()

    def locked() -> Signer:
        with lock:  # `cache` alone makes one for each thread that asks meanwhile
            return signer()

    return locked


class PushWorkers:
    def __init__(self, engine: Engine, signer: Callable[[], Signer]) -> None:
        self._engine = engine
        self._signer = signer
        # A worker is kept by its thread, which ends when the subscription is deleted or expires.
        self._push_workers: weakref.WeakValueDictionary[str, Pusher] = weakref.WeakValueDictionary()

    def configure(self, subscription: str, endpoint: Endpoint | None) -> None:
        """None stops the pushes."""
        with self._engine.open() as (broker, _):
            present = self._push_workers.get(subscription)
            target = broker.subscriptions.get(subscription)
            if present is not None:
                if present.endpoint == endpoint and present.subscription is target:
                    return
                present.stop()
                del self._push_workers[subscription]
            if endpoint is not None and target is not None:
                self._push_workers[subscription] = Pusher(self._engine, target, endpoint, self._signer)

    def follow(self, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) not in _FOLLOWED:
                continue
            if isinstance(event, Cleared):
                self.close()
            elif isinstance(event, Deleted):
                self.configure(event.name, None)
            elif isinstance(event, Created | Updated) and collection(event.name) == "subscriptions":
                resource = event.resource
                self.configure(event.name, None if resource.detached else endpoint_of(resource.push_config))

    def close(self) -> None:
        """Do not wait for requests in progress."""
        with self._engine.open():
            for pusher in self._push_workers.values():
                pusher.stop()
            self._push_workers.clear()


class Pusher:
    """The delivery of one subscription, until stopped or until the subscription is deleted."""

    def __init__(
        self, engine: Engine, subscription: Subscription, endpoint: Endpoint, signer: Callable[[], Signer]
    ) -> None:
        from pubsub_spark.emulator.sinks import poster

        self.subscription = subscription
        self.endpoint = endpoint
        self._engine = engine
        self._signer = signer
        self._consumer = engine.consumer(name=f"push to {endpoint.url}")
        self._window = Window()
        self._barrier: Barrier | None = None  # of the last messages, which are sent behind it
        self._poster = poster.Poster(endpoint.url, MAX_THREADS)
        self._token_lock = threading.Lock()  # not the engine's: a key takes a while to generate
        self._token = ""
        self._token_until = 0.0
        self._stopped = False
        self._start(self._run)

    def stop(self) -> None:
        self._stopped = True
        self._consumer.closed = True
        self.wake()

    def wake(self) -> None:
        self._engine.wake(self._consumer)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        """An exception on the thread ends the emulator."""

        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:
                self._engine.fail(error)

        threading.Thread(target=run, name=f"push {self.subscription.name}", daemon=True).start()

    def _run(self) -> None:
        # One thread each, no pool: Python waits for a pool's threads before it exits, and an endpoint may be slow.
        while (batch := self._next()) is not None:
            if self._barrier is not None:
                self._barrier.wait()
            for lease, seconds in batch:
                self._start(self._deliver, lease, seconds)
        self._poster.close()

    def _next(self) -> Sequence[tuple[Lease, float]] | None:
        """Return leased messages, each with its time, or None at the end."""
        with self._engine.open() as (broker, _):
            while not self._stopped and broker.subscriptions.get(self.subscription.name) is self.subscription:
                now = self._engine.clock.now()
                room = min(self._window.room(now), MAX_THREADS - self._window.outstanding)
                taken = self._take(broker, room, now)
                if taken:
                    self._barrier = self._engine.barrier(self.subscription)
                    for _ in taken:
                        self._window.started()
                    seconds = self.subscription.settings.ack_deadline
                    return [(lease, seconds) for lease in taken]
                if room > 0:
                    broker.wait(self.subscription, self._consumer)
                pause = self._window.resumes_at - now
                self._engine.wait(self._consumer, min(pause, _MAX_WAIT_SECONDS) if pause > 0 else _MAX_WAIT_SECONDS)
        return None

    def _take(self, broker: Broker, room: int, now: float) -> list[Lease]:
        """Take deliveries one by one if order counts, so that a key has only one request in progress."""
        if not self.subscription.settings.ordering:
            return list(broker.take(self.subscription, self._consumer, now, room)) if room > 0 else []
        taken: list[Lease] = []
        while len(taken) < room and (one := broker.take(self.subscription, self._consumer, now, 1)):
            taken += one
        return taken

    def _deliver(self, lease: Lease, timeout: float) -> None:
        acknowledged = False
        try:
            delivery = self._transformed(lease)
            if delivery is None:
                acknowledged = True
                return
            headers, body = push_request.request(self.endpoint, self.subscription.name, delivery)
            if self.endpoint.service_account:
                headers["Authorization"] = f"Bearer {self._bearer()}"
            acknowledged = self._poster.post(headers, body, timeout) in push_request.ACKNOWLEDGES
        except TransformError as problem:
            _log.info("A message of %s failed in the message transform %s.", self.subscription.name, problem)
        finally:
            self._record_answer(lease.number, acknowledged)

    def _transformed(self, lease: Lease) -> PushMessage | None:
        """Return None if the transforms drop the message. Raise TransformError if one fails."""
        delivery = PushMessage.of(lease.message, lease.attempt)
        runner = self._engine.transforms.runner(self.subscription.name, self.subscription.resource)
        if runner is None:
            return delivery
        [outcome] = runner.run([transformable(lease.message)])
        if isinstance(outcome, TransformError):
            raise outcome
        return None if outcome is None else replace(delivery, data=outcome.data, attributes=outcome.attributes)

    def _record_answer(self, number: int, acknowledged: bool) -> None:
        with self._engine.open() as (broker, now):
            if acknowledged:
                self._window.succeeded()
                broker.ack(self.subscription, [number], now)
            else:
                self._window.failed(now, pauses=not self.subscription.settings.max_backoff)
                broker.modify(self.subscription, [number], 0, now, is_use=False)
            self.wake()

    def _bearer(self) -> str:
        """Return a token that is not too old, because a new one for each message would cost a signature.

        Its times are the machine's: a receiver does not know the emulator's clock.
        """
        now = time.time()
        with self._token_lock:
            if now >= self._token_until:
                self._token = self._signer().token(self.endpoint.service_account, self.endpoint.token_audience, now)
                self._token_until = now + _TOKEN_SECONDS
            return self._token
