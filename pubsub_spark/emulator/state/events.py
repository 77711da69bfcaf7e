"""Events: the changes of the state, for listeners: workers that push, export and ingest, metrics, the page.

There is one event for each request or batch instead of one for each message, and it refers to existing objects of the
state. Resources are never changed in place: the one in an event stays as it was when the event happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from pubsub_spark.emulator.state.delivery import Batch
from pubsub_spark.emulator.state.message import Publication


def collection(name: str) -> str:
    return name.split("/")[2]


class Created(NamedTuple):
    """A topic, subscription, snapshot or schema exists from now on. `name` is its full name."""

    name: str
    resource: Any


class Updated(NamedTuple):
    """A resource was replaced by another: changed, detached, or its topic or schema deleted."""

    name: str
    resource: Any


class Deleted(NamedTuple):
    """A resource is gone: deleted, or expired."""

    name: str


class Cleared(NamedTuple):
    """Every resource and message is gone."""


class PolicySet(NamedTuple):
    name: str
    policy: Any


class Published(NamedTuple):
    """Messages were published to a topic by one request, or forwarded to it as dead letters."""

    topic: str
    publication: Publication


class Delivered(NamedTuple):
    """A batch was leased. `to` is the consumer's name."""

    subscription: str
    batch: Batch
    to: str = ""


class Acked(NamedTuple):
    """`numbers` are those in the ack ids of the leases."""

    subscription: str
    numbers: Sequence[int]


class Modified(NamedTuple):
    """The deadlines of leases were set to `seconds` from now. 0 is a nack."""

    subscription: str
    numbers: Sequence[int]
    seconds: float


class Released(NamedTuple):
    """Leases that could not be sent were taken back."""

    subscription: str
    numbers: Sequence[int]


class Expired(NamedTuple):
    """The deadlines of leases passed by `at`."""

    subscription: str
    numbers: Sequence[int]
    at: float


class DeadLettered(NamedTuple):
    """Messages that failed too often were forwarded to the dead-letter topic at the time `at`."""

    subscription: str
    topic: str
    message_numbers: Sequence[int]
    at: float


class Sought(NamedTuple):
    """A Seek moved a subscription to a time or a snapshot, and left it this backlog."""

    subscription: str
    backlog: int


Event: TypeAlias = (
    "Created | Updated | Deleted | Cleared | PolicySet | Published | Delivered | Acked | Modified | Released | Expired"
    " | DeadLettered | Sought"
)
