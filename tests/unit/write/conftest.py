"""A fake Pub/Sub for the writer: a backend and a connection in one, which answers on threads of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import grpc
import pytest
from google.pubsub_v1.types import PublishRequest, PublishResponse

from pubsub_spark.backend import status


class Refused(grpc.RpcError):
    """A call that failed with a status."""

    def __init__(self, code: grpc.StatusCode, details: str = "as the test wished") -> None:
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class FakePubSub:
    """Accepts publish requests and returns message ids. `answer` may be replaced to refuse or to lose some."""

    address = "fake:1"
    connect_timeout = 20.0

    def __init__(self, calls: ThreadPoolExecutor) -> None:
        self.requests: list[Any] = []
        """The requests that were confirmed, parsed, in the order of their confirmation."""
        self.sizes: list[int] = []
        self.answer: Callable[[Any], int] = lambda request: len(request.messages)
        self.most_in_flight = 0
        self.most_in_flight_of_a_key = 0
        self.calls = calls
        self._lock = threading.Lock()
        self._in_flight: Counter[str] = Counter()
        self._ids = 0

    def connect(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def publish(self, topic: str, request: bytes, timeout: float) -> Future[bytes]:
        assert timeout > 0
        parsed = PublishRequest.pb().FromString(request)
        assert topic == parsed.topic
        with self._lock:
            key = parsed.messages[0].ordering_key
            self._in_flight[key] += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight.total())
            self.most_in_flight_of_a_key = max(self.most_in_flight_of_a_key, self._in_flight[key] if key else 0)
        return self.calls.submit(self._answer, parsed, len(request))

    def _answer(self, request: Any, size: int) -> bytes:
        try:
            count = self.answer(request)
        finally:
            with self._lock:
                self._in_flight[request.messages[0].ordering_key] -= 1
        with self._lock:
            self.requests.append(request)
            self.sizes.append(size)
            first = self._ids
            self._ids += count
        ids = [str(first + i) for i in range(count)]
        answer: bytes = PublishResponse.pb()(message_ids=ids).SerializeToString()
        return answer

    @property
    def data(self) -> list[bytes]:
        """The payloads of all messages, in the order of their confirmation."""
        return [message.data for request in self.requests for message in request.messages]

    def data_of_key(self, key: str) -> list[bytes]:
        """Return the payloads that were sent with an ordering key, in the order of their confirmation."""
        return [m.data for request in self.requests for m in request.messages if m.ordering_key == key]


@pytest.fixture
def pubsub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePubSub]:
    """Yield a fake Pub/Sub of the test's own, with no delays before retries."""
    monkeypatch.setattr(status, "delays", lambda: iter(lambda: 0.0, None))
    with ThreadPoolExecutor(4) as calls:
        yield FakePubSub(calls)


@pytest.fixture
def refused() -> type[Refused]:
    """Return the error of a call, to be raised from `pubsub.answer`."""
    return Refused
