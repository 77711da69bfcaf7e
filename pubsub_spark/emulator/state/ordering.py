"""Per-key queues: messages that share an ordering key, one outstanding batch per queue.

The rules are those of a subscription with `enable_message_ordering`:

- A queue hands out the next batch only when nothing of the last one is outstanding, so a key is with one consumer at a
  time.
- When a message fails (nack, or its deadline passed), it and everything handed out behind it are redelivered in order.
  That includes acknowledged messages: an ack behind a gap is only kept once the gap is closed.
- With a retry policy the whole queue backs off. Other queues flow.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from enum import Enum

from pubsub_spark.emulator.state.delivery import BatchBuilder, Delivery, message_of
from pubsub_spark.emulator.state.message import Message


class QueueState(Enum):
    EMPTY = "nothing waits, nothing is outstanding"
    READY = "something waits, nothing is outstanding"
    BUSY = "a batch is outstanding"
    BACKING_OFF = "something waits for its backoff to pass"


class KeyQueue:
    __slots__ = ("opens", "outstanding", "state", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Message | Delivery] = deque()
        self.outstanding: deque[Delivery] = deque()  # in order. Acked ones only follow an unacked one
        self.opens = 0.0
        self.state = QueueState.EMPTY


class KeyQueues:
    def __init__(self) -> None:
        self._queues: dict[str, KeyQueue] = {}
        self._ready: deque[str] = deque()
        self._backing_off: list[tuple[float, str]] = []  # heap

    @property
    def ready(self) -> bool:
        return bool(self._ready)

    @property
    def any(self) -> bool:
        return bool(self._queues)

    @property
    def due(self) -> float:
        """The end of the next backoff, or infinity."""
        return self._backing_off[0][0] if self._backing_off else float("inf")

    def add(self, message: Message) -> None:
        queue = self._queues.get(message.key)
        if queue is None:
            queue = self._queues[message.key] = KeyQueue()
        queue.waiting.append(message)
        if queue.state is QueueState.EMPTY:
            self._move(message.key, queue, QueueState.READY)

    def take(self, batch: BatchBuilder, horizon: float) -> None:
        """Move messages into `batch` while it has room. Each gets its Delivery."""
        while self._ready and batch.has_room:
            key = self._ready.popleft()
            queue = self._queues[key]
            while queue.waiting and batch.has_room:
                entry = queue.waiting.popleft()
                delivery = entry if isinstance(entry, Delivery) else Delivery(*entry)
                if delivery.acked or delivery.published <= horizon:
                    continue
                if not batch.add(delivery):
                    queue.waiting.appendleft(entry)
                    break
                queue.outstanding.append(delivery)
            self._update_state(key, queue)

    def retire(self, delivery: Delivery) -> list[Delivery]:
        """Mark `delivery` as acked. Return those that are acked for good: everything up to the first gap."""
        key = delivery.key
        queue = self._queues[key]
        delivery.acked = True
        done = []
        while queue.outstanding and queue.outstanding[0].acked:
            done.append(queue.outstanding.popleft())
        if done and not queue.outstanding:
            self._update_state(key, queue)
        return done

    def rewind(self, delivery: Delivery, opens: float) -> list[Delivery]:
        """Withdraw a failed delivery and those behind it, to wait until `opens`. Return them.

        The list is empty if an earlier message of the key failed at the same moment and withdrew this one.
        """
        key = delivery.key
        queue = self._queues[key]
        outstanding = list(queue.outstanding)
        if delivery not in outstanding:
            return []
        withdrawn = outstanding[outstanding.index(delivery) :]
        for _ in withdrawn:
            queue.outstanding.pop()
        queue.waiting.extendleft(reversed(withdrawn))
        queue.opens = max(queue.opens, opens)
        self._update_state(key, queue)
        return withdrawn

    def open(self, now: float) -> int:
        """Make the queues ready whose backoff has passed. Return their number."""
        opened = 0
        while self._backing_off and self._backing_off[0][0] <= now:
            _, key = heapq.heappop(self._backing_off)
            self._move(key, self._queues[key], QueueState.READY)
            opened += 1
        return opened

    def entries(self) -> Iterator[Message | Delivery]:
        """Acked messages behind a gap are included."""
        for queue in self._queues.values():
            yield from queue.outstanding
            yield from queue.waiting

    def prune(self, horizon: float) -> None:
        for key, queue in list(self._queues.items()):
            queue.waiting = deque(entry for entry in queue.waiting if message_of(entry).published > horizon)
            if not queue.waiting and queue.state in (QueueState.READY, QueueState.BACKING_OFF):
                del self._queues[key]
        self._ready = deque(key for key in self._ready if key in self._queues)
        self._backing_off = [(opens, key) for opens, key in self._backing_off if key in self._queues]
        heapq.heapify(self._backing_off)

    def _update_state(self, key: str, queue: KeyQueue) -> None:
        if queue.outstanding:
            queue.state = QueueState.BUSY
        elif not queue.waiting:
            del self._queues[key]
        elif queue.opens:
            self._move(key, queue, QueueState.BACKING_OFF)
        else:
            self._move(key, queue, QueueState.READY)

    def _move(self, key: str, queue: KeyQueue, state: QueueState) -> None:
        queue.state = state
        if state is QueueState.BACKING_OFF:
            heapq.heappush(self._backing_off, (queue.opens, key))
        else:
            self._ready.append(key)
        queue.opens = 0.0
