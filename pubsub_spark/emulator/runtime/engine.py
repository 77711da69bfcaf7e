"""The one lock, the clock, and the waking of those who wait.

Everything that touches the broker goes through `open`, which holds the lock, lets the time that has passed take effect,
and on the way out wakes whom the state has called. Waiting is a condition per consumer, so one message wakes one
consumer. One thread sleeps until the broker's agenda says that something is due, and until then costs nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Consumer
from pubsub_spark.emulator.state.events import Event

_NEVER = float("inf")
_LONGEST_SLEEP = 3600.0  # threading refuses waits beyond a few centuries, and an agenda may be that empty


Listener = Callable[[Sequence[Event]], None]


class Session(NamedTuple):
    """What a handler works with while it holds the lock."""

    broker: Broker
    now: float


class Engine:
    """Where requests from many threads become one sequence of state changes."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.broker = broker
        self.clock = clock
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
        """The broker, this moment, and nobody else at it."""
        with self._lock:
            now = self._catch_up()
            try:
                yield Session(self.broker, now)
            finally:
                self._notify()

    def add_listener(self, listener: Listener) -> None:
        """Give `listener` the events of every locked section from now on, in order, before the lock is let go of.

        It must be quick, may call `open` (what it changes there it hears of next), and what it raises, the request
        fails with. A request is answered when all listeners have heard of it.
        """
        with self._lock:
            self._listeners.append(listener)

    def consumer(self, ack_deadline: float = 0, max_messages: int = 0, max_size: int = 0) -> Consumer:
        """A consumer that can be woken."""
        consumer = Consumer(ack_deadline, max_messages, max_size, condition=threading.Condition(self._lock))
        with self._lock:
            self._consumers.add(consumer)
        return consumer

    def now(self) -> float:
        """Inside `open`: this moment, after a wait."""
        return self.clock.now()

    def wake(self, consumer: Consumer) -> None:
        """Make whoever waits for this consumer look again."""
        with self._lock:
            consumer.condition.notify_all()

    def cancel(self, consumer: Consumer) -> None:
        """The consumer's client is gone: it takes nothing from this moment on."""
        with self._lock:
            consumer.closed = True
            consumer.condition.notify_all()

    def wait(self, consumer: Consumer, seconds: float | None = None) -> None:
        """Inside `open`: let go of the lock until the consumer's condition rings or the seconds are over."""
        self._notify()
        consumer.condition.wait(seconds)
        self._catch_up()

    def cancel_all(self) -> None:
        """Nobody takes anything any more."""
        with self._lock:
            for consumer in list(self._consumers):
                self.cancel(consumer)

    def advance(self, seconds: float) -> None:
        """Move time; everything that falls due on the way has happened at its own time when this returns."""
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
            self._alarm.notify()  # what is due is nearer now than when the sleep was measured

    def restart_clock(self) -> None:
        """Take back the time that was moved; nothing may be left that happened in it."""
        with self._lock:
            self.clock.restart()
            self._alarm.notify()  # what is due comes at other times now

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
        called = self.broker.called
        for consumer in called:
            if consumer.condition is not None:
                consumer.condition.notify_all()
        called.clear()
        if self.broker.due < self._alarm_at:
            self._alarm.notify()

    def _keep_time(self) -> None:
        with self._lock:
            while not self._closed:
                now = self._catch_up()
                self._notify()
                self._alarm_at = self.broker.due
                self._alarm.wait(min(max(self._alarm_at - now, 0.0), _LONGEST_SLEEP))
