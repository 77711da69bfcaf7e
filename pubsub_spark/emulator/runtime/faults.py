"""Injected faults: RPCs that fail or are delayed and acks that fail, as a test has ordered."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat

from pubsub_spark.emulator.api.errors import Code

EVERY = "*"


@dataclass
class Fault:
    """A fault of the next `count` calls of an RPC, or of any (`*`). Without a code they are only delayed."""

    rpc: str
    code: Code | None
    count: int = 1
    delay: float = 0
    message: str = ""


class Faults:
    """The pending faults. The first injected applies first. Any thread may call any method."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._ack_outcomes: deque[Iterator[str]] = deque()
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def pending(self) -> list[Fault]:
        with self._lock:
            return [replace(fault) for fault in self._faults]

    def match(self, rpc: str) -> Fault | None:
        """Return the fault of the next call and count it as applied."""
        if not self._faults:
            return None
        with self._lock:
            fault = next((fault for fault in self._faults if fault.rpc in (rpc, EVERY)), None)
            if fault is not None:
                fault.count -= 1
                if fault.count <= 0:
                    self._faults.remove(fault)
            return fault

    def inject(self, count: int, outcome: str) -> None:
        """Let the ack ids of the next `count` requests fail with `outcome`, if delivery is exactly once."""
        with self._lock:
            self._ack_outcomes.append(repeat(outcome, count))

    def injected(self) -> str:
        """Return the outcome of the next request's ack ids, or an empty text."""
        with self._lock:
            while self._ack_outcomes:
                if (outcome := next(self._ack_outcomes[0], "")) != "":
                    return outcome
                self._ack_outcomes.popleft()
            return ""

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()
            self._ack_outcomes.clear()
