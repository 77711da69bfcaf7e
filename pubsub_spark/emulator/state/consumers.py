"""The consumers of a subscription: which are connected, which wait, and which is notified next."""

from __future__ import annotations

from collections import OrderedDict

from pubsub_spark.emulator.state.delivery import Consumer


class Consumers:
    """Those to be notified are appended to `ready`."""

    def __init__(self, ready: list[Consumer]) -> None:
        self.ready = ready
        self.connected: dict[Consumer, None] = {}
        self.waiting: OrderedDict[Consumer, None] = OrderedDict()  # have room, and are to be notified

    def join(self, consumer: Consumer) -> None:
        self.connected[consumer] = None

    def leave(self, consumer: Consumer) -> None:
        self.connected.pop(consumer, None)
        self.waiting.pop(consumer, None)
        consumer.closed = True

    def wait(self, consumer: Consumer) -> None:
        """Notify `consumer` when it has room and there is something to take."""
        if consumer.has_room:
            self.waiting[consumer] = None
        else:
            consumer.blocked = True

    def free(self, consumer: Consumer, messages: int, size: int) -> None:
        consumer.messages -= messages
        consumer.size -= size
        if consumer.blocked and consumer.has_room:
            consumer.blocked = False
            self.waiting[consumer] = None

    def notify_all(self) -> None:
        self.ready.extend(self.connected)

    def notify_one(self) -> None:
        """The next one is notified when this one has taken messages, so one message wakes one consumer."""
        while self.waiting:
            consumer, _ = self.waiting.popitem(last=False)
            if not consumer.closed:
                self.ready.append(consumer)
                return
