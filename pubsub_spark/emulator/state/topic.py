"""Topics and snapshots: the records of published messages, and of the unacked ones at one time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pubsub_spark.emulator.state.message import Publication
from pubsub_spark.emulator.state.subscription import Subscription


@dataclass(eq=False)
class Topic:
    """A topic. `log` holds messages only while the topic or a snapshot retains them.

    ingested: how far its source was read, as a mark by part of the source (an object, a shard).
    """

    name: str
    resource: Any = None
    retention: float = 0
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    log: deque[Publication] = field(default_factory=deque)
    ingested: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Snapshot:
    """The backlog of a subscription at one time, and everything published from message `after` on."""

    name: str
    topic: Topic
    unacked: list[Publication]
    after: int
    expires: float
    resource: Any = None
