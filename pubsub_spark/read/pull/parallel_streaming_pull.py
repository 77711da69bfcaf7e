"""Several StreamingPulls of one task, taken from as one.

The service sends at most 10 MB/s on a stream, so that a task which could take more needs several. Each has a share of
the flow control limits; their responses are handed over in the order of arrival, and those of one stream in its own. On
a subscription with message ordering the service sends a key to one stream at a time, so that its order is kept.

Limit: https://cloud.google.com/pubsub/quotas#resource_limits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...backend import Connection
from ..runtime import SYSTEM, Runtime
from .health import StreamHealth
from .streaming_pull import ResponseQueue, StreamingPull, StreamSettings
from .times import DEFAULT_TIMES, PullTimes

_NEARLY = 0.95  # of a share: messages of a stream are counted by their bytes


class ParallelStreamingPull:
    """`count` StreamingPulls with equal shares of the limits of `settings`; ended with `close`.

    taken: the messages and bytes that were taken of all of them so far, for the limits of a stream that is opened
    again: its own part of the messages is known from its part of the bytes.
    """

    def __init__(
        self,
        connection: Connection,
        settings: StreamSettings,
        count: int,
        taken: Callable[[], tuple[int, int]],
        times: PullTimes = DEFAULT_TIMES,
        runtime: Runtime = SYSTEM,
    ) -> None:
        count = min(count, settings.max_messages)
        self._taken = taken
        self._responses = ResponseQueue(count, times, runtime)
        self._streams: list[StreamingPull] = []
        self._shares = [_share(settings, index, count) for index in range(count)]
        for index, share in enumerate(self._shares):
            first = partial(self._first_request, index)
            self._streams.append(
                StreamingPull(connection, share, first, responses=self._responses, times=times, runtime=runtime)
            )

    def take(self, timeout: float, chunk_bytes: int = 0) -> list[bytes]:
        """Return the responses that have arrived; see `StreamingPull.take`.

        Raises the first error that ended a stream, once all responses were taken.
        """
        taken = self._responses.take(timeout, chunk_bytes)
        failure = next((stream.failure for stream in self._streams if stream.failure is not None), None)
        if failure is not None and not taken and self._responses.is_empty:
            raise failure
        return taken

    def has_full_stream(self) -> bool:
        """Return whether one of the streams has used up its share of the messages or bytes, as far as that is known."""
        taken = [self._taken_of(index) for index in range(len(self._shares))]
        return any(
            messages >= _NEARLY * share.max_messages or volume >= _NEARLY * share.max_bytes
            for share, (messages, volume) in zip(self._shares, taken, strict=True)
        )

    @property
    def health(self) -> StreamHealth:
        """The health of a stream that is connected, if there is one."""
        return min((stream.health for stream in self._streams), key=lambda health: not health.connected)

    @property
    def reopened(self) -> int:
        """The number of streams opened after the first of each."""
        return sum(stream.health.reopened for stream in self._streams)

    def reaches_service(self) -> bool:
        """Return whether the service answers a call at all, whatever becomes of the streams."""
        return self._streams[0].reaches_service()

    def half_close(self) -> None:
        """Tell the service to send no more; messages that it has sent still arrive."""
        for stream in self._streams:
            stream.half_close()

    def close(self) -> list[bytes]:
        """End the streams and their threads; return the responses that had arrived and were not taken."""
        for stream in self._streams:
            stream.cancel()
        return [response for stream in self._streams for response in stream.close()]

    def _first_request(self, index: int) -> bytes:
        return self._shares[index].request(*self._taken_of(index))

    def _taken_of(self, index: int) -> tuple[int, int]:
        """Return the messages and bytes that were taken of one stream."""
        volume = self._streams[index].received_bytes if index < len(self._streams) else 0
        messages, total = self._taken()
        return (round(messages * volume / total) if total else 0), volume


def _share(settings: StreamSettings, index: int, count: int) -> StreamSettings:
    return replace(
        settings,
        client_id=f"{settings.client_id}-{index}" if count > 1 else settings.client_id,
        max_messages=settings.max_messages // count + (index < settings.max_messages % count),
        max_bytes=max(1, settings.max_bytes // count),
    )
