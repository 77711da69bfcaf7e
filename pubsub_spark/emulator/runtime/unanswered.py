"""The Publish calls whose messages are in the state, but whose responses are not written yet.

A client may compare a message with the id that its own Publish returned, so it must receive that response first. A
delivery takes a `Barrier` in the locked section that takes its messages, and is sent when the responses that were
pending then are written. It does not wait for later calls, so a busy topic delays nothing.

A client that does not read can keep a response pending. After MAX_SECONDS it is treated as written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from concurrent.futures import Future
from threading import Lock

MAX_SECONDS = 1.0


class Answer:
    """The response of one Publish. `topic` is set while its messages are in the state and it is not written."""

    __slots__ = ("barriers", "topic")

    def __init__(self) -> None:
        self.topic = ""
        self.barriers: list[Barrier] = []


class Barrier:
    def __init__(self, unanswered: Unanswered, pending: Iterable[Answer]) -> None:
        self.pending = set(pending)
        self.opened: Future[None] = Future()
        self.opened.set_running_or_notify_cancel()  # a cancelled delivery leaves it to `written`
        self._unanswered = unanswered

    async def passed(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(self.opened), MAX_SECONDS)
        self._give_up()

    def wait(self) -> None:
        """Wait on a thread until it opens. The thread must not hold the engine's lock."""
        with contextlib.suppress(TimeoutError):
            self.opened.result(MAX_SECONDS)
        self._give_up()

    def _give_up(self) -> None:
        for answer in list(self.pending):
            self._unanswered.written(answer)


class Unanswered:
    """Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pending: dict[str, set[Answer]] = {}

    def add(self, answer: Answer, topic: str) -> None:
        with self._lock:
            answer.topic = topic
            self._pending.setdefault(topic, set()).add(answer)

    def written(self, answer: Answer) -> None:
        """Also called if the client has left. Does nothing if the response was not pending."""
        with self._lock:
            pending = self._pending.get(answer.topic)
            if pending is None or answer not in pending:
                return
            pending.discard(answer)
            if not pending:
                del self._pending[answer.topic]
            barriers, answer.barriers = answer.barriers, []
            for barrier in barriers:
                barrier.pending.discard(answer)
                if not barrier.pending:
                    barrier.opened.set_result(None)

    def barrier(self, topic: str) -> Barrier | None:
        with self._lock:
            if topic not in self._pending:
                return None
            barrier = Barrier(self, self._pending[topic])
            for answer in barrier.pending:
                answer.barriers.append(barrier)
            return barrier
