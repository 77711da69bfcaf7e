"""The `Runtime` of a simulated process: `threading`, `queue` and `time` on the hub's greenlets.

A thread that takes a free lock continues: threads change if they wait. With the fault "thread preempted" they also
change after the release of a lock. Threads share only values behind locks, so other points show nothing more.
"""

from __future__ import annotations

import math
import queue
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from pubsub_spark.read.runtime import Runtime
from tests.simulation.hub import Hub, Process, Thread


def _end(hub: Hub, timeout: float | None) -> float:
    return math.inf if timeout is None else hub.now + max(0.0, timeout)


class _Waiters:
    """The threads that wait for one thing."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.threads: deque[Thread] = deque()

    def wait(self, until: float) -> bool:
        """Wait to be woken. Returns False if it is `until` first."""
        thread = self._hub.running()
        self.threads.append(thread)
        if self._hub.wait(until):
            return True
        if thread in self.threads:
            self.threads.remove(thread)
        return False

    def wake(self, count: float = math.inf) -> None:
        """Wake `count` of them."""
        while self.threads and count > 0:
            self._hub.wake(self.threads.popleft())
            count -= 1


class SimLock:
    """`threading.Lock`, or `RLock`."""

    def __init__(self, hub: Hub, is_reentrant: bool = False) -> None:
        self._hub, self._is_reentrant = hub, is_reentrant
        self._owner: Thread | None = None
        self.depth = 0
        self._waiters = _Waiters(hub)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._hub.is_over:
            return True
        thread = self._hub.running()
        if not self.depth:
            self._owner, self.depth = thread, 1
            return True
        if self._is_reentrant and self._owner is thread:
            self.depth += 1
            return True
        end = _end(self._hub, None if timeout < 0 else timeout)
        while self.depth:
            if not blocking or self._hub.now >= end:
                return False
            self._waiters.wait(end)
        self._owner, self.depth = thread, 1
        return True

    def release(self, *_: object) -> None:
        self.free()
        if self._hub.preempted and not self.depth:
            self._hub.preempt()

    __enter__, __exit__ = acquire, release

    def free(self) -> None:
        """Release the lock, and continue."""
        if self._hub.is_over:
            return
        assert self.depth, "a lock is released that nobody holds"
        self.depth -= 1
        if not self.depth:
            self._owner = None
            if self._waiters.threads:
                self._waiters.wake(1)

    def locked(self) -> bool:
        return self.depth > 0


class SimCondition:
    """`threading.Condition`."""

    def __init__(self, hub: Hub, lock: SimLock | None = None) -> None:
        self._hub = hub
        self._lock = lock or SimLock(hub, is_reentrant=True)
        self._waiters = _Waiters(hub)
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        depth, self._lock.depth = self._lock.depth, 1
        self._lock.free()
        try:
            return self._waiters.wait(_end(self._hub, timeout))
        finally:
            self._lock.acquire()
            self._lock.depth = depth

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = _end(self._hub, timeout)
        while not (result := predicate()) and self._hub.now < end:
            self.wait(None if end == math.inf else end - self._hub.now)
        return result

    def notify(self, n: int = 1) -> None:
        self._waiters.wake(n)

    def notify_all(self) -> None:
        self._waiters.wake()


class SimEvent:
    """`threading.Event`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._set = False
        self._waiters = _Waiters(hub)

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        end = _end(self._hub, timeout)
        while not self._set and self._hub.now < end:
            self._waiters.wait(end)
        return self._set


class SimQueue:
    """`queue.Queue`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._items: deque[Any] = deque()
        self._waiters = _Waiters(hub)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake(1)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        end = _end(self._hub, timeout) if block else 0.0
        while not self._items:
            if self._hub.now >= end:
                raise queue.Empty
            self._waiters.wait(end)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class SimRuntime(Runtime):
    """The clocks, waits and threads of one simulated process."""

    def __init__(self, process: Process) -> None:
        self.process, self._hub = process, process.hub

    def monotonic(self) -> float:
        machine = self.process.machine
        return machine.base + self._hub.tick() - machine.slept

    def boottime(self) -> float:
        return self.process.machine.base + self._hub.tick()

    def wall(self) -> float:
        self._hub.tick()
        return self._hub.epoch + self.process.machine.skew

    def sleep(self, seconds: float) -> None:
        self._hub.wait(self._hub.now + max(0.0, seconds))

    def start(self, target: Callable[[], None], name: str) -> Any:
        return self.process.start(target, name)

    def lock(self) -> Any:
        return SimLock(self._hub)

    def condition(self, lock: Any = None) -> Any:
        return SimCondition(self._hub, lock)

    def event(self) -> Any:
        return SimEvent(self._hub)

    def queue(self) -> Any:
        return SimQueue(self._hub)

    def __reduce__(self) -> Any:
        raise TypeError("a runtime belongs to its process")
