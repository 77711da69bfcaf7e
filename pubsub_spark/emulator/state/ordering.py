"""Messages that share an ordering key: one lane a key, one outstanding batch a lane.

Pure. The rules, those of a subscription with `enable_message_ordering`:

- a lane hands out the next batch only when nothing of the last one is outstanding, so a key is with one consumer at a
  time;
- when a message fails (nack, or its deadline passed), it and everything handed out behind it come again in order, also
  what had been acknowledged: an ack behind a gap is only kept once the gap is closed;
- a retry policy keeps the whole lane shut, other lanes flow.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from enum import Enum

from pubsub_spark.emulator.state.delivery import Basket, Delivery, message_of
from pubsub_spark.emulator.state.message import Message


class _Is(Enum):
    EMPTY = "nothing waits, nothing is outstanding"
    READY = "something waits, nothing is outstanding"
    BUSY = "a batch is outstanding"
    SHUT = "something waits for its backoff to pass"


class _Lane:
    __slots__ = ("opens", "outstanding", "state", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Message | Delivery] = deque()
        self.outstanding: deque[Delivery] = deque()  # in order; acked ones only behind one that is not
        self.opens = 0.0
        self.state = _Is.EMPTY


class Lanes:
    """The keyed messages of one subscription."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[str] = deque()
        self._shut: list[tuple[float, str]] = []  # heap

    @property
    def ready(self) -> bool:
        return bool(self._ready)

    @property
    def any(self) -> bool:
        return bool(self._lanes)

    @property
    def due(self) -> float:
        """When the next shut lane opens; infinity when none is shut."""
        return self._shut[0][0] if self._shut else float("inf")

    def add(self, message: Message) -> None:
        """A newly published message joins the end of its lane."""
        lane = self._lanes.get(message.key)
        if lane is None:
            lane = self._lanes[message.key] = _Lane()
        lane.waiting.append(message)
        if lane.state is _Is.EMPTY:
            self._move(message.key, lane, _Is.READY)

    def take(self, basket: Basket, horizon: float) -> None:
        """Move messages into `basket` while it has room; each gets its Delivery at once, as what is outstanding."""
        while self._ready and basket.has_room:
            key = self._ready.popleft()
            lane = self._lanes[key]
            while lane.waiting and basket.has_room:
                entry = lane.waiting.popleft()
                delivery = entry if isinstance(entry, Delivery) else Delivery(entry)
                if delivery.acked or delivery.message.published <= horizon:
                    continue
                if not basket.add(delivery):
                    lane.waiting.appendleft(entry)
                    break
                lane.outstanding.append(delivery)
            self._settle(key, lane)

    def retire(self, delivery: Delivery) -> list[Delivery]:
        """`delivery` is done with; returns what is done with for good, which is everything up to the first gap."""
        key = delivery.message.key
        lane = self._lanes[key]
        delivery.acked = True
        done = []
        while lane.outstanding and lane.outstanding[0].acked:
            done.append(lane.outstanding.popleft())
        if done and not lane.outstanding:
            self._settle(key, lane)
        return done

    def rewind(self, delivery: Delivery, opens: float) -> list[Delivery]:
        """`delivery` failed: it and what went out behind it wait again, until `opens`; returns those withdrawn.

        None are when it waits already, withdrawn by one before it that failed at the same moment.
        """
        key = delivery.message.key
        lane = self._lanes[key]
        outstanding = list(lane.outstanding)
        if delivery not in outstanding:
            return []
        withdrawn = outstanding[outstanding.index(delivery) :]
        for _ in withdrawn:
            lane.outstanding.pop()
        lane.waiting.extendleft(reversed(withdrawn))
        lane.opens = max(lane.opens, opens)
        self._settle(key, lane)
        return withdrawn

    def open(self, now: float) -> None:
        """Open the lanes whose backoff has passed."""
        while self._shut and self._shut[0][0] <= now:
            _, key = heapq.heappop(self._shut)
            self._move(key, self._lanes[key], _Is.READY)

    def entries(self) -> Iterator[Message | Delivery]:
        """Everything waiting or outstanding, acked ones behind a gap included."""
        for lane in self._lanes.values():
            yield from lane.outstanding
            yield from lane.waiting

    def prune(self, horizon: float) -> None:
        """Forget what has waited beyond its retention."""
        for key, lane in list(self._lanes.items()):
            lane.waiting = deque(entry for entry in lane.waiting if message_of(entry).published > horizon)
            if not lane.waiting and lane.state in (_Is.READY, _Is.SHUT):
                del self._lanes[key]
        self._ready = deque(key for key in self._ready if key in self._lanes)
        self._shut = [(opens, key) for opens, key in self._shut if key in self._lanes]
        heapq.heapify(self._shut)

    def _settle(self, key: str, lane: _Lane) -> None:
        if lane.outstanding:
            lane.state = _Is.BUSY
        elif not lane.waiting:
            del self._lanes[key]
        elif lane.opens:
            self._move(key, lane, _Is.SHUT)
        else:
            self._move(key, lane, _Is.READY)

    def _move(self, key: str, lane: _Lane, state: _Is) -> None:
        lane.state = state
        if state is _Is.SHUT:
            heapq.heappush(self._shut, (lane.opens, key))
        else:
            self._ready.append(key)
        lane.opens = 0.0
