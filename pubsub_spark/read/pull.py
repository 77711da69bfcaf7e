"""StreamingPull, as the door and the tasks use it: a stream that reopens, and a pull that ends.

`Stream` keeps one StreamingPull open and hands over response bytes. Retryable codes reopen it silently, with backoff
and the same `client_id`, so that the service carries its state over; any other code is raised to whoever asks for the
next response. A stream that says nothing may be quiet or dead, and only a new one can tell: after STALL seconds it is
opened again, but not while there is no room for what it brings: the service counts what is outstanding for each
stream, and a batch of an hour would fill the driver's memory, a stream at a time. An empty request every HEARTBEAT
seconds tells the service that we are here, as Google's clients do.

`pull` is one bounded read, for tasks: until its share is full, its period is over, or nothing has come for a while.
Unless it is full it half-closes the stream then and takes what is still under way: a message that the service has sent
and nobody read would be leased for nothing, and count as a failed delivery.

Runs in tasks and on the driver, after the fork. The one thread of a Stream ends with `close`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from ..backend import Connection
from ..backend.status import RETRYABLE, delays, failure
from ..codec.envelope import Received, received
from ..errors import PubSubError

MIN_STREAM_DEADLINE, MAX_STREAM_DEADLINE = 10, 600  # seconds; StreamingPullRequest.stream_ack_deadline_seconds
HEARTBEAT = 30.0  # seconds; the service ends a stream that it has not heard of for twice as long
STALL = 120.0  # seconds without a response
LULL = 0.5  # seconds without a response after which a pull that has brought something is over
_BITE = 8 * 2**20  # bytes of responses that a task decodes at a time: each time costs as much as 300 messages
_BREATH = 0.01  # seconds between two responses of a bite
QUIET = 0.1  # seconds without a response after which a half-closed stream has nothing more under way
_FULL = 0.1  # seconds between two looks at whether there is room again


@dataclass(frozen=True)
class Flow:
    """The first request of a stream: flow control, the lease of what it delivers in seconds, who is calling."""

    subscription: str
    client_id: str
    deadline: int
    max_messages: int
    max_bytes: int

    def request(self, taken_messages: int = 0, taken_bytes: int = 0) -> bytes:
        """The opening StreamingPullRequest, its limits less what an earlier stream of the same pull brought."""
        from google.pubsub_v1.types import StreamingPullRequest

        message = StreamingPullRequest.pb()(
            subscription=self.subscription,
            client_id=self.client_id,
            stream_ack_deadline_seconds=min(max(self.deadline, MIN_STREAM_DEADLINE), MAX_STREAM_DEADLINE),
            max_outstanding_messages=max(1, self.max_messages - taken_messages),
            max_outstanding_bytes=max(1, self.max_bytes - taken_bytes),
        )
        return bytes(message.SerializeToString())


class Stream:
    """A StreamingPull that is kept open until `close`.

    has_room: whether a stream that has ended is to be opened again now.
    """

    def __init__(
        self,
        connection: Connection,
        flow: Flow,
        opening: Callable[[], bytes] | None = None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._connection = connection
        self._flow = flow
        self._opening = opening or flow.request
        self._has_room = has_room
        self._responses: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None: there are no more
        self._failure: Exception | None = None
        self.ended = False  # whether nothing more can come
        self._closing = threading.Event()
        self._half_closed = False
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = None
        self._heard = 0.0  # time.monotonic() of the last response
        self._stalled = False
        self.reopened = 0
        self._thread = threading.Thread(target=self._run, name=f"pull {flow.client_id}", daemon=True)
        self._thread.start()

    def take(self, timeout: float, bite: int = 0) -> list[bytes]:
        """The responses that have come, none when there were none in `timeout` seconds or the stream is over.

        bite: bytes that are waited for within `timeout` while one response follows the other.

        Raises what ended the stream, ResourceError or ServiceError, to everybody who asks after the last response.
        """
        taken: list[bytes] = []
        volume, end = 0, time.monotonic() + timeout
        with suppress(queue.Empty):
            while not self.ended:
                rest = end - time.monotonic() if volume < bite or not taken else 0
                wait = min(_BREATH, rest) if taken else rest
                answer = self._responses.get(timeout=wait) if wait > 0 else self._responses.get_nowait()
                if answer is None:
                    self.ended = True
                else:
                    taken.append(answer)
                    volume += len(answer)
        if self._failure is not None and not taken and self.ended:
            raise self._failure
        return taken

    def half_close(self) -> None:
        """Ask for no more; what is under way still comes."""
        self._half_closed = True
        self._requests.put(None)

    def close(self) -> list[bytes]:
        """End the stream and its thread; the responses that had arrived and were not asked for."""
        self._closing.set()
        self._requests.put(None)
        if self._call is not None:
            self._call.cancel()
        self._thread.join()
        self._failure = None
        return self.take(0)

    def _run(self) -> None:
        pauses = delays()
        try:
            while not self._closing.is_set():
                if self._receive():
                    pauses = delays()
                pause = 0.0 if self._half_closed else next(pauses)
                while not (self._closing.wait(pause) or self._half_closed or self._is_wanted()):
                    pause = _FULL
                if self._closing.is_set() or self._half_closed:
                    break
                self.reopened += 1
        except Exception as error:
            self._failure = error
        finally:
            self._responses.put(None)

    def _is_wanted(self) -> bool:
        """Whether what has come was taken in, and there is room for more."""
        return self._responses.empty() and self._has_room()

    def _receive(self) -> bool:
        """Open the stream and pass on its responses until it ends; whether any came."""
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._requests = requests
        requests.put(self._opening())
        if self._half_closed:  # in this moment, and the last stream was told
            requests.put(None)
        came = self._stalled = False
        self._heard = time.monotonic()
        self._call = self._connection.streaming_pull(self._flow.subscription, self._until_none(requests))
        if self._closing.is_set():
            self._call.cancel()
        try:
            for response in self._call:
                came = True
                self._heard = time.monotonic()
                self._responses.put(response)
        except grpc.RpcError as error:
            code = error.code()
            if code not in RETRYABLE and not self._closing.is_set() and not self._stalled:
                raise failure(
                    code,
                    error.details() or "",
                    "pull from",
                    "Subscription",
                    self._flow.subscription,
                    self._connection.address,
                ) from None
        finally:
            requests.put(None)
        return came

    def _until_none(self, requests: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
        """What gRPC sends: the requests, heartbeats between them. Ends the call when nothing has come for too long."""
        while True:
            try:
                request = requests.get(timeout=HEARTBEAT)
            except queue.Empty:
                request = b""
                if time.monotonic() - self._heard >= STALL:
                    self._stalled = True
                    self._call.cancel()
            if request is None:
                return
            yield request


@dataclass(frozen=True)
class Pulled:
    """How much a pull brought, in messages, and why it ended: `full`, `period` or `idle`.

    failure: what ended it for good after messages had come. A task stages those, and the door meets the same.
    """

    messages: int
    ended: str
    reopened: int
    failure: PubSubError | None = None


def pull(connection: Connection, flow: Flow, period: float, idle: float, take: Callable[[Received], object]) -> Pulled:
    """Pull until the flow's limits are reached, `period` seconds are over, or nothing came for `idle` seconds.

    Once something came, LULL is long enough: what has come should not wait for more.

    take: is given what has arrived, in its order.
    """
    count = volume = 0

    def opening() -> bytes:
        return flow.request(count, volume)

    def hand_over(responses: list[bytes]) -> None:
        nonlocal count, volume
        got = received(responses)
        count += got.messages.num_rows
        volume += sum(map(len, responses))
        take(got)

    stream = Stream(connection, flow, opening)
    ended: str | None = None
    failed: PubSubError | None = None
    rest: list[bytes] = []
    try:
        end = time.monotonic() + period
        stop = end + period  # a service that keeps a half-closed stream open is cut off here
        wait = min(idle, period)
        while ended != "full":
            responses = stream.take(wait, _BITE)
            now = time.monotonic()
            if responses:
                hand_over(responses)
            if count >= flow.max_messages or volume >= flow.max_bytes:
                ended = "full"
            elif ended is not None and (not responses or now >= stop):
                break
            elif ended is None and (now >= end or not responses):
                ended = "period" if now >= end else "idle"
                stream.half_close()
            pause = min(idle, LULL) if count else idle
            wait = min(pause, max(0.001, end - now)) if ended is None else QUIET
    except PubSubError as error:
        if not count:  # otherwise the caller has something to stage or to give back first
            raise
        failed = error
    finally:
        rest = stream.close()
    if rest:
        hand_over(rest)
    return Pulled(count, ended or "idle", stream.reopened, failed)
