"""Pulled dead letters: each counts once, however often Pub/Sub redelivers it during a long run."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

from google.pubsub_v1 import types

from pubsub_spark.cli.dead_letters import Pulled, split_requests

SUB = "projects/p/subscriptions/dead"


class _Admin:
    """A service that delivers these lists of messages (ack id, message id), one list per pull."""

    def __init__(self, *deliveries: list[tuple[str, str]]) -> None:
        self._deliveries = list(deliveries)
        self.acked: list[str] = []
        self.leases: list[tuple[str, int]] = []

    def pull(self, subscription: str, most: int, wait: float) -> list[types.ReceivedMessage]:
        delivered = self._deliveries.pop(0) if self._deliveries else []
        return [types.ReceivedMessage(ack_id=ack, message={"message_id": id_, "data": b"x"}) for ack, id_ in delivered]

    def acknowledge(self, subscription: str, ack_ids: list[str]) -> None:
        self.acked += ack_ids

    def lease(self, subscription: str, ack_ids: list[str], seconds: int) -> None:
        self.leases += ((each, seconds) for each in ack_ids)

    def nack(self, subscription: str, ack_ids: list[str]) -> None:
        self.lease(subscription, ack_ids, 0)


def letters(pulled: Pulled) -> Any:
    return pulled.letters(lambda _: True, 0.01, 10, SimpleQueue())


def test_a_redelivery_is_no_second_dead_letter():
    """The last ack id of a held message counts. A message that was already redriven is acknowledged again."""
    admin: Any = _Admin([("a1", "a"), ("b1", "b")], [("a2", "a"), ("b2", "b")])
    pulled = Pulled(admin, SUB)
    run = letters(pulled)
    a, _ = next(run)
    pulled.acknowledge([a])
    rest = [*run]
    pulled.give_back()

    assert [] == rest
    assert ["a1", "a2"] == admin.acked
    assert [("a1", 600), ("b1", 600), ("b2", 600), ("b2", 0)] == admin.leases


def test_requests_are_within_the_limits_of_pubsub():
    """A request has at most 1000 messages and 9 MB of payload."""
    sizes = [5_000_000, 5_000_000, *[1] * 1500]
    admin: Any = _Admin([(f"ack{n}", f"m{n}") for n in range(len(sizes))])
    [made] = letters(Pulled(admin, SUB))
    for letter, size in zip(made, sizes, strict=True):
        letter.received.message.data = b"x" * size

    assert [1, 1000, 501] == [len(request) for request in split_requests(made)]
