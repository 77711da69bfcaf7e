"""When a trigger plans a batch: the rules of `processingTime`, `availableNow` and `once`. Pure.

    processingTime   plan `linger` seconds after the first buffered message, or sooner if no more come. The first
                     trigger of a restart waits for messages, so that `processAllAvailable` does not find a stream just
                     opened
    availableNow     plan as long as there are messages from before the query started. End once `idleTimeout` has passed
                     on a healthy connection since the last message on any stream
    once             as availableNow, but the only batch waits until no more messages come

`Triggers` never waits itself: it says how long the caller waits before it asks again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Action(Enum):
    """The next action of a trigger."""

    PLAN = "plan"  # a batch
    END = "end"  # without a batch
    WAIT = "wait"  # for messages
    PROBE = "probe"  # whether the service is there: END if it is and still nothing came


class Step(NamedTuple):
    """An action. seconds: the longest wait."""

    action: Action
    seconds: float = 0.0


class StreamView(NamedTuple):
    """The content of the driver stream. Times are on the lease clock, `oldest_published` is seconds since the epoch.

    idle_seconds: of a healthy connection, since the last message on any stream. room_seconds: since acks made room in
    this stream.
    """

    messages: int
    oldest_arrival: float | None
    oldest_published: float | None
    is_full: bool
    idle_seconds: float
    room_seconds: float


@dataclass
class Triggers:
    """The triggers of a query. may_be_asked_once: Spark 4.0 and 4.1 do not say that the first batch is the only one.

    drained_from: the end of the backlog to read, a publish time in seconds since the epoch (`availableNow`), or None if
    the query has no end.
    """

    idle_timeout: float
    may_be_asked_once: bool = False
    drained_from: float | None = None
    asked: int = 0
    linger: float = 0.03  # so that messages which follow the first one are in its batch,
    linger_pause: float = 0.005  # unless none has come for this time
    # Without a message: the only batch is complete, and messages that tasks have returned would have come.
    silence: float = 0.5
    poll: float = 0.5  # between two looks at whether the stream is connected, and whether the query is stopping
    _is_restart: bool = False  # whether this is the first trigger of one
    _settled_at: float = 0.0
    _room_timeout: float = 0.0
    _count: int = 0
    _changed: float = 0.0

    def begin(self, now: float, was_pulled: bool = False, has_committed: bool = False) -> None:
        """Begin a trigger.

        was_pulled: whether tasks have pulled messages of the last batch. has_committed: whether the checkpoint has a
        committed batch.
        """
        self.asked += 1
        self._is_restart = has_committed and self.asked == 1
        self._count = 0
        self._settled_at = now + self.silence if was_pulled else now
        # Tasks had room while the driver stream had none.
        self._room_timeout = min(self.silence, self.idle_timeout) if was_pulled else self.idle_timeout

    @property
    def is_only(self) -> bool:
        """Whether the batch of this trigger may be the only one of the run."""
        return self.may_be_asked_once and self.asked == 1

    @property
    def waits(self) -> bool:
        """Whether this trigger waits for a message."""
        return self.is_only or self.drained_from is not None

    def next(self, view: StreamView, now: float) -> Step:
        """Return the next action and the longest wait."""
        if not view.messages:
            return self._wait_for_first(view, now)
        if view.messages > self._count:
            self._count, self._changed = view.messages, now
        pause = self.silence if self.is_only else self.linger_pause
        end = math.inf if self.is_only else (view.oldest_arrival or now) + self.linger
        left = min(self._changed + pause, end) - now
        if left > 0 and not view.is_full:
            return Step(Action.WAIT, left)
        # Later messages stay buffered until the query ends: a nack at each trigger would use up their attempts.
        if view.oldest_published is None or view.oldest_published <= (self.drained_from or math.inf):
            return Step(Action.PLAN)
        left = self._room_timeout - view.room_seconds  # until earlier ones have come
        return Step(Action.WAIT, min(left, self.poll)) if left > 0 else Step(Action.END)

    def _wait_for_first(self, view: StreamView, now: float) -> Step:
        if not self.waits:
            is_over = not self._is_restart or now >= self._settled_at + self.idle_timeout
            left = 0.0 if is_over else self.silence - view.idle_seconds
            return Step(Action.WAIT, left) if left > 0 else Step(Action.END)
        lacking = self.idle_timeout - view.idle_seconds, self._room_timeout - view.room_seconds
        left = max(*lacking, self._settled_at - now)
        return Step(Action.WAIT, min(left, self.poll)) if left > 0 else Step(Action.PROBE)
