"""The health of a StreamingPull: whether it is connected, the beginning of an outage, and the last error.

Pure: `now` is always an argument, in seconds of `Runtime.monotonic`.

A stream is connected when the service has answered on it: with its headers, a response, or the answer to a probe. One
that the service ends at once is not the end of an outage: that takes a response, or `steady` seconds of connection.
An outage is never idle time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_CREDENTIAL_FAILURES = 8  # in a row, about 20 s: a metadata server may be restarting


@dataclass
class StreamHealth:
    """The health of one StreamingPull, over all streams that it has opened."""

    warn_after: float = 10.0  # seconds without a connection
    headers: float = 0.1  # seconds of connection, after which the headers were not those of a refused one
    reopening: float = 2.0  # seconds without a connection, which is usual: the service ends each stream now and then
    steady: float = 1.0  # seconds of connection, after which an outage is over though no message has come
    connected: bool = False
    reopened: int = 0
    last_response: float | None = None
    has_responded: bool = False  # on the stream that is open now: one to another call may come earlier
    last_error: str = ""
    failing_since: float | None = None  # when the outage began. Set until `_is_steady`
    last_answer: float = 0.0  # of any kind
    credential_failures: int = 0  # in a row
    _connected_at: float = 0.0
    _has_connected: bool = False
    _idle_since: float | None = None  # the last response, or the first connection after an outage or a rest
    _outages: float = 0.0  # seconds of the logged outages that are over
    _lost_at: float | None = None  # the beginning of the current outage, if it was logged

    def was_connected(self, now: float) -> bool:
        """Return whether any stream was ever connected. gRPC also delivers headers of refused connections."""
        return self._has_connected or (self.connected and now - self._connected_at >= self.headers)

    def opening(self, now: float) -> None:
        self._end_outage_if_steady(now)
        self.connected = self.has_responded = False
        if self.failing_since is None:
            self.failing_since = now

    def answered(self, now: float, is_served: bool = False) -> None:
        """Record that the service has answered on the stream or to another call. is_served: by a response."""
        if not self.connected:
            self._connected_at = now
            self.connected = True
            if self._idle_since is None:
                self._idle_since = now
        self.last_answer = now
        if is_served:
            self.has_responded = True

    def responded(self, now: float) -> None:
        """Record a response with messages."""
        self.answered(now, is_served=True)
        self._has_connected = True
        self.last_response = self._idle_since = now
        self.failing_since = None
        self.credential_failures = 0

    def failed(self, now: float, error: str, is_credential_failure: bool = False, is_probe: bool = False) -> None:
        """Record that the stream has ended, or that a probe was not answered. Refusals of probes are not counted."""
        self._has_connected = self.was_connected(now)
        before = 0 if self._is_steady(now) else self.credential_failures
        self._end_outage_if_steady(now)
        self.connected, self._idle_since = False, None
        if self.failing_since is None:
            self.failing_since = now
        self.last_error = error
        self.credential_failures = before + (not is_probe) if is_credential_failure else 0

    def rested(self) -> None:
        """Record that no stream is wanted now, because there is no room for its messages. That is no outage."""
        self.connected, self._idle_since = False, None
        self.failing_since = None

    def idle_seconds(self, now: float) -> float:
        """Return the seconds since the last response, or the first connection after an outage. 0 if not connected.

        A silent stream that is opened again does not restart them, once it is steady. Otherwise an idle time longer
        than `max_silence` would never be over.
        """
        since = self._idle_since  # once: the thread of the stream may set it to None meanwhile
        if not self.connected or since is None:
            return 0.0
        return max(0.0, now - (since if self._is_steady(now) else max(since, self._connected_at)))

    def failing_seconds(self, now: float) -> float:
        """Return the seconds since the outage began. 0 without one."""
        since = self.failing_since
        return 0.0 if since is None or self._is_steady(now) else max(0.0, now - since)

    def is_connected(self, now: float) -> bool:
        """Return whether there is no outage. One as short as it takes to open a stream again does not count."""
        return self.failing_seconds(now) < self.reopening

    def has_failed_credentials(self) -> bool:
        """Return whether they have failed too often to try again."""
        return self.credential_failures >= MAX_CREDENTIAL_FAILURES

    def changed(self, now: float) -> tuple[Literal["lost", "recovered"], float] | None:
        """Return once the beginning or the end of an outage, to be logged, with the seconds that it has lasted."""
        failing = self.failing_seconds(now)
        if self._lost_at is None and failing >= self.warn_after:
            self._lost_at = now - failing
            return "lost", failing
        if self._lost_at is not None and not failing and self.connected:
            lasted, self._lost_at = now - self._lost_at, None
            self._outages += lasted
            return "recovered", lasted
        return None

    def outage_seconds(self, now: float) -> float:
        """Return the seconds of all outages that were logged."""
        return self._outages + (0.0 if self._lost_at is None else now - self._lost_at)

    def _is_steady(self, now: float) -> bool:
        return self.connected and now - self._connected_at >= self.steady

    def _end_outage_if_steady(self, now: float) -> None:
        if self._is_steady(now):
            self.failing_since = None
