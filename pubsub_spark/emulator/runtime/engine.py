"""The one lock, the clock, and the waking of consumers.

Everything that touches the broker goes through `open`, which holds the lock, lets the time that has passed take effect,
and on the way out notifies the consumers that the state found something for. One thread sleeps until something on the
broker's agenda is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.transforms import Transforms
from pubsub_spark.emulator.runtime.unanswered import Barrier, Unanswered
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Consumer
from pubsub_spark.emulator.state.events import Event
from pubsub_spark.emulator.state.state import State
from pubsub_spark.emulator.state.subscription import Subscription

_log = logging.getLogger("pubsub_spark.emulator")

_NEVER = float("inf")
_MAX_SLEEP_SECONDS = 3600.0  # threading refuses waits beyond a few centuries, and an agenda may be that empty


Listener = Callable[[Sequence[Event]], None]


class Journal(Protocol):
    """The storage that keeps the changes of the state beyond the end of the emulator."""

    async def written(self) -> None:
        """Wait until every change so far is kept. Raise RpcError if that fails."""

    def flush(self) -> None:
        """Wait for the same on a thread that is not the event loop's."""


class Session(NamedTuple):
    broker: Broker
    now: float


class Wakeup:
    """It is made on the event loop of its waiter. Any thread may notify it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._woken = asyncio.Event()

    def notify_all(self) -> None:
        """Wake the waiter, or let its next wait end at once."""
        if threading.get_ident() == self._thread:
            self._woken.set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no waiter
                self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, seconds: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()


class Engine:
    def __init__(self, state: State, clock: Clock) -> None:
        self.state = state
        self.broker = state.broker
        self.clock = clock
        self.transforms = Transforms()
        self.unanswered = Unanswered()
        self.journal: Journal | None = None
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        self._alarm = threading.Condition(self._lock)
        self._alarm_at = _NEVER
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._listeners: list[Listener] = []
        self._closed = False
        self._thread = threading.Thread(target=self._keep_time, name="pubsub-emulator-clock", daemon=True)
        self._thread.start()

    @contextmanager
    def open(self) -> Iterator[Session]:
        with self._lock:
            now = self._catch_up()
            try:
                yield Session(self.broker, now)
            finally:
                self._notify()

    def add_listener(self, listener: Listener) -> None:
        """Pass `listener` the events of every locked section from now on, in order, before the lock is released.

        It must be quick. It may call `open`, and then receives the events of its own changes next. The request fails
        with any exception that it raises. A request is answered after all listeners have received its events.
        """
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = [other for other in self._listeners if other != listener]

    def barrier(self, subscription: Subscription) -> Barrier | None:
        """Return the barrier of the Publishes whose messages may be in a batch taken in this locked section."""
        return self.unanswered.barrier(self.broker.origin_of(subscription.name).name)

    def consumer(
        self,
        ack_deadline: float = 0,
        max_messages: int = 0,
        max_size: int = 0,
        wakeup: Wakeup | None = None,
        name: str = "",
    ) -> Consumer:
        """Return a consumer that waits for `wakeup`, or without one in `wait`. `name` is for people."""
        condition = wakeup or threading.Condition(self._lock)
        consumer = Consumer(ack_deadline, max_messages, max_size, condition, name)
        with self._lock:
            self._consumers.add(consumer)
        return consumer

    def now(self) -> float:
        return self.clock.now()

    def wake(self, consumer: Consumer) -> None:
        with self._lock:
            consumer.condition.notify_all()

    def wait(self, consumer: Consumer, seconds: float | None = None) -> None:
        """Release the lock, inside `open`, until the consumer is notified or the seconds are over."""
        self._notify()
        consumer.condition.wait(seconds)
        self._catch_up()

    async def sleep(self, seconds: float) -> bool:
        """Wait `seconds` on the emulator's clock, which `advance` shortens. Return False if all were cancelled."""
        wakeup = Wakeup()
        sleeper = self.consumer(wakeup=wakeup)
        ends = self.now() + seconds
        while not sleeper.closed and (remaining := ends - self.now()) > 0:
            await wakeup.wait(remaining)
        return not sleeper.closed

    def cancel_all(self) -> None:
        """Close every consumer, so that it takes nothing from now on."""
        with self._lock:
            for consumer in list(self._consumers):
                consumer.closed = True
                consumer.condition.notify_all()

    def advance(self, seconds: float) -> None:
        """Move time. Everything that falls due on the way has happened at its own time when this returns."""
        with self._lock:
            if not 0 <= seconds < _NEVER:
                raise ValueError(f"Time can only move on, got {seconds} seconds.")
            end = self.clock.now() + seconds
            while self.broker.due < end:
                self.clock.advance_to(self.broker.due)
                self._catch_up()
            self.clock.advance_to(end)
            self._catch_up()
            self._notify()
            self._alarm.notify()  # the next due time is nearer now than when the sleep was measured
            for consumer in list(self._consumers):
                consumer.condition.notify_all()  # its wait may be over

    async def written(self) -> None:
        """Wait until every change so far is kept, if there is a journal."""
        if self.journal is not None:
            await self.journal.written()

    def restart_clock(self) -> None:
        """The state must be empty."""
        with self._lock:
            self.clock.restart()
            self._alarm.notify()  # the due times have changed

    def fail(self, error: BaseException) -> None:
        """End the emulator because of an exception on a background thread. Any thread may call this.

        The first one is kept in `failure`, and `on_failure` is called.
        """
        _log.critical("The emulator failed and ends.", exc_info=error)
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
        self.on_failure()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._alarm.notify()
        self._thread.join()

    def _catch_up(self) -> float:
        now = self.clock.now()
        if self.broker.due <= now:
            self.broker.tick(now)
        return now

    def _notify(self) -> None:
        while self.broker.events:
            events = self.broker.events.copy()
            self.broker.events.clear()
            for listener in self._listeners:
                listener(events)
        ready_consumers = self.broker.ready_consumers
        for consumer in ready_consumers:
            if consumer.condition is not None:
                consumer.condition.notify_all()
        ready_consumers.clear()
        if self.broker.due < self._alarm_at:
            self._alarm.notify()

    def _keep_time(self) -> None:
        try:
            with self._lock:
                while not self._closed:
                    now = self._catch_up()
                    self._notify()
                    self._alarm_at = self.broker.due
                    self._alarm.wait(min(max(self._alarm_at - now, 0.0), _MAX_SLEEP_SECONDS))
        except Exception as error:
            self.fail(error)
