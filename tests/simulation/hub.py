"""Machines, processes and threads of a history. The scheduler, and virtual time.

A thread is a greenlet that runs until it waits (`Hub.wait`). The hub then chooses the next one that can run. Time moves
to the next event only when no thread can run, or now and then when the chooser says so: then threads are slow.

    Machine    a monotonic clock that stands still while the machine sleeps, and a wall clock that may be wrong
    Process    threads that are killed and suspended together
    Thread     a greenlet

A killed process never runs again, and none of its `finally` blocks has an effect: its greenlets are kept until the end
of the history, if they are unwound while everything that they could reach raises `ProcessGone`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.chooser import Chooser

EPOCH = 1_800_000_000.0  # the wall clock at the beginning of a history, in seconds
_SLOW_SECONDS = 5.0  # the longest delay of a slow thread
_PREEMPTED_SECONDS = 1e-4, 0.5
_TICK = 1e-6  # seconds that a look at the clock takes, so that no loop is endless in no time


class ProcessGone(GreenletExit):
    """Whatever a killed process asks for."""


class StuckError(Exception):
    """A stuck history: nothing will ever happen, or it has exceeded its number of steps."""


class Machine:
    """A computer with its clocks. base: its monotonic time at the beginning. skew: how wrong its wall clock is."""

    def __init__(self, name: str, base: float = 1000.0, skew: float = 0.0) -> None:
        self.name, self.base, self.skew = name, base, skew
        self.slept = 0.0
        self.is_asleep = False
        self.processes: dict[Process, None] = {}  # in order, so that a seed is one history

    def sleep(self, hub: Hub, seconds: float, is_paused: bool = False) -> None:
        """Run none of the processes for so long. The monotonic clock stands still.

        is_paused: by a hypervisor, so that the boot time clock stands still as well.
        """
        if self.is_asleep:
            return
        self.is_asleep = True
        before = hub.now

        def wake_up() -> None:
            self.is_asleep = False
            slept = hub.now - before
            if is_paused:
                self.base -= slept
            else:
                self.slept += slept
            for process in list(self.processes):
                for thread in process.threads:
                    if thread.waiting and thread.until < math.inf:
                        hub.wake_at(thread, thread.until + slept)
                process.resume()

        hub.after(seconds, wake_up)
        for process in self.processes:
            process.suspensions += 1
        hub.leave_if_dead()  # after the loop: the calling thread may be of one of them, and stops here


class Thread:
    """A simulated thread. `join` and `is_alive` are those of `threading.Thread`."""

    __slots__ = (
        "_ends",
        "_hub",
        "_target",
        "done",
        "failure",
        "greenlet",
        "name",
        "process",
        "ticket",
        "until",
        "waiting",
        "woken",
    )

    def __init__(self, hub: Hub, process: Process, target: Callable[[], object], name: str) -> None:
        self._hub, self.process, self.name, self._target = hub, process, name, target
        self.greenlet = hub.idle.pop() if hub.idle else greenlet(hub.work, hub.greenlet)
        self.done = self.waiting = self.woken = False
        self.failure: BaseException | None = None
        self.until = math.inf
        self.ticket = 0
        self._ends: list[Thread] = []

    def run(self) -> None:
        """Run to the end, in the thread's greenlet."""
        try:
            self._target()
        except GreenletExit:
            pass
        except Exception as error:
            self.failure = error
        self.done = True
        self.process.threads.pop(self, None)
        for each in self._ends:
            self._hub.wake(each)
        if self.failure is not None and self.process.on_failure is not None:
            self.process.on_failure(self.failure)

    def is_alive(self) -> bool:
        return not self.done

    def join(self, timeout: float | None = None) -> None:
        end = math.inf if timeout is None else self._hub.now + timeout
        while not self.done and self._hub.now < end:
            self._ends.append(self._hub.running())
            self._hub.wait(end)


class Process:
    """Threads that share a fate.

    operations: how often they have asked for something outside, or were sent something. at: what happens to the process
    at such an operation, by its number. on_operation: called at each. on_failure: called with the exception of a
    thread.
    """

    def __init__(self, hub: Hub, name: str, machine: Machine) -> None:
        self.hub, self.name, self.machine = hub, name, machine
        self.threads: dict[Thread, None] = {}
        self.dead = False
        self.operations = 0
        self.at: dict[int, Callable[[], None]] = {}
        self.on_operation: Callable[[], None] | None = None
        self.on_kill: list[Callable[[], None]] = []
        self.on_failure: Callable[[BaseException], None] | None = None
        self.parked: list[Thread] = []  # threads that could run
        self.suspensions = int(machine.is_asleep)  # why no thread runs, a count
        machine.processes[self] = None
        hub.processes.append(self)  # it outlives its death: garbage would run `finally` blocks

    def start(self, target: Callable[[], object], name: str) -> Thread:
        """Start a thread."""
        if self.dead or self.hub.is_over:
            raise ProcessGone
        thread = Thread(self.hub, self, target, name)
        self.threads[thread] = None
        self.hub.ready.append(thread)
        return thread

    def kill(self) -> None:
        """End the process at once, as `kill -9` does."""
        if not self.dead:
            self.dead = True
            self.machine.processes.pop(self, None)
            for each in self.on_kill:
                each()
            self.hub.leave_if_dead()

    def operation(self) -> None:
        """Record that the process has just asked for something outside. It may not live to see the answer."""
        self.operations += 1
        happens = self.at.get(self.operations)
        if happens is not None:
            happens()
        elif self.on_operation is not None:
            self.on_operation()

    def suspend(self, seconds: float | None = None) -> None:
        """Run none of the threads for so long, or until `resume`."""
        self.suspensions += 1
        if seconds is not None:
            self.hub.after(seconds, self.resume)
        self.hub.leave_if_dead()

    def resume(self) -> None:
        """Go on after a suspension."""
        self.suspensions -= 1
        if not self.suspensions:
            parked, self.parked = self.parked, []
            self.hub.ready += parked


class Hub:
    """The scheduler of one history. now: virtual seconds since its beginning."""

    def __init__(
        self, chooser: Chooser, slow_threads: float = 0.0, is_fair: bool = False, preempted: float = 0.0
    ) -> None:
        self.chooser = chooser
        self.slow_threads = slow_threads  # the probability that time passes while a thread could run
        self.preempted = preempted  # the probability that others run after the release of a lock
        self.is_fair = is_fair  # whether threads run as soon as they can
        self.now = 0.0
        self.steps = 0
        self.step_limit = 400_000
        self.is_stopped = False  # whether no step follows
        self.is_over = False
        self.greenlet = getcurrent()
        self.idle: list[greenlet] = []  # of threads that have ended: to make one costs more than many switches
        self.ready: list[Thread] = []
        self.processes: list[Process] = []
        self._current: Thread | None = None
        self._events: list[tuple[float, int, Callable[[], object] | None, Thread | None, int]] = []
        self._ties = count()

    @property
    def epoch(self) -> float:
        """The true time, in seconds since the epoch of Unix."""
        return EPOCH + self.now

    def tick(self) -> float:
        """Return the time, a moment after the last look at it."""
        self.now += _TICK
        return self.now

    def running(self) -> Thread:
        """Return the thread that runs."""
        assert self._current is not None, "only a simulated thread waits"
        return self._current

    def after(self, seconds: float, happens: Callable[[], object]) -> None:
        """Schedule an event, independent of any process."""
        heapq.heappush(self._events, (self.now + seconds, next(self._ties), happens, None, 0))

    def wait(self, until: float = math.inf) -> bool:
        """Wait until another thread wakes this one. Returns False if the time came first."""
        if self.is_over:
            raise ProcessGone
        thread = self.running()
        thread.waiting, thread.woken = True, False
        self.wake_at(thread, until)
        self._continue_as(thread)
        if self.is_over:
            raise ProcessGone
        return thread.woken

    def preempt(self) -> None:
        """Let others run for a moment, now and then."""
        if self.preempted and not self.is_over and self.chooser.chance(self.preempted):
            self.wait(self.now + self.chooser.seconds(*_PREEMPTED_SECONDS))

    def _continue_as(self, thread: Thread) -> None:
        """Let the history continue until this thread runs again, which waits."""
        self._current = None
        try:
            following = self._next()
        except BaseException as error:
            self.greenlet.throw(error)
            raise
        self._current = following
        if following is None:
            self.greenlet.switch()
        elif following is not thread:
            following.greenlet.switch()

    def wake_at(self, thread: Thread, until: float) -> None:
        """Set when the wait of a thread ends at the latest."""
        thread.until = until
        thread.ticket += 1
        if until < math.inf:
            heapq.heappush(self._events, (until, next(self._ties), None, thread, thread.ticket))

    def wake(self, thread: Thread, woken: bool = True) -> None:
        """Let a waiting thread run again."""
        if not thread.waiting:
            return
        thread.waiting, thread.woken = False, woken
        thread.ticket += 1
        if thread.process.suspensions:
            thread.process.parked.append(thread)
        else:
            self.ready.append(thread)

    def leave_if_dead(self) -> None:
        """Let another thread run if this one was just killed or suspended by its own action, outside of a wait."""
        thread = self._current
        if thread is None or getcurrent() is not thread.greenlet or thread.waiting:
            return
        if thread.process.dead or thread.process.suspensions:
            if thread.process.suspensions and not thread.process.dead:
                thread.process.parked.append(thread)
            self.greenlet.switch()

    def run(self) -> None:
        """Let the history continue until `is_stopped`. Raises StuckError if it cannot."""
        while (thread := self._next()) is not None:
            self._current = thread
            thread.greenlet.switch()
            self._current = None

    def work(self) -> None:
        """Run one thread after another, in a greenlet of their own."""
        while True:
            self.running().run()
            self.idle.append(getcurrent())
            self.greenlet.switch()

    def _next(self) -> Thread | None:
        """Let events happen until a thread can run. Return it, or None if the history is stopped.

        Called by the thread that waits, so that the hub's greenlet takes no part in a change of threads.
        """
        ready, events = self.ready, self._events
        while not self.is_stopped:
            self.steps += 1
            if self.steps > self.step_limit:
                raise StuckError(f"{self.step_limit:,} steps were not enough, at {self.now:.3f} s")
            if ready and not (self.slow_threads and self._is_slow()):
                thread = ready.pop(0 if self.is_fair or len(ready) == 1 else self.chooser.below(len(ready)))
                process = thread.process
                if process.suspensions and not (process.dead or thread.done):
                    process.parked.append(thread)
                elif not (process.dead or thread.done):
                    return thread
                continue
            if not events:
                raise StuckError(f"nothing can happen any more, at {self.now:.3f} s")
            at_time, _, happens, waiter, ticket = heapq.heappop(events)
            if waiter is None or (waiter.ticket == ticket and waiter.waiting and not waiter.process.dead):
                if at_time > self.now:
                    self.now = at_time
                if waiter is not None:
                    self.wake(waiter, woken=False)
                elif happens is not None:
                    happens()
        return None

    def _is_slow(self) -> bool:
        """Return whether the next event happens before the next thread runs, though one could."""
        if not self._events or self._events[0][0] > self.now + _SLOW_SECONDS:
            return False
        return self.chooser.chance(self.slow_threads)

    def end(self) -> None:
        """End the history: unwind every greenlet, whose calls have no effect any more."""
        self.is_over = True
        for process in self.processes:
            process.dead = True
            for thread in list(process.threads):
                self._current = thread
                while not thread.greenlet.dead:
                    thread.greenlet.throw(ProcessGone)
        for each in self.idle:
            each.throw(ProcessGone)
        self._events.clear()
        self.ready.clear()
