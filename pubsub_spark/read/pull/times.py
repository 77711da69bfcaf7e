"""The time limits of streams and pulls, as an argument with defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...backend.status import delays


@dataclass(frozen=True)
class PullTimes:
    """Time limits in seconds."""

    heartbeat: float = 30.0  # between two empty requests; the service ends a stream without any for twice as long
    max_silence: float = 120.0  # without a response, before the stream is opened again
    probe_pause: float = 1.0  # between two probes of a service that does not answer
    probe_timeout: float = 5.0
    room_pause: float = 0.1  # between two checks whether there is room for messages again
    chunk_gap: float = 0.01  # between two responses that are returned together
    drain: float = 0.1  # without a response, after which a half-closed stream has no more
    idle_after_messages: float = 0.5  # without a response, after which a pull that has brought messages ends
    caught_up: float = 0.1  # of new messages only, because some may arrive in the middle of a backlog
    reopen_pauses: Callable[[], Iterator[float]] = delays  # before a stream is opened again, until it has responded


DEFAULT_TIMES = PullTimes()
