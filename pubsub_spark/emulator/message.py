"""One published message, shared by every subscription of its topic.

Its bytes are made once, at Publish, and joined into each delivery. What only filters, inspection and push need (data,
attributes) is read out of the bytes when somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from pubsub_spark.emulator import frames


class Message(NamedTuple):
    """`number` is the message id and grows in the order of publishing; `published` is seconds since the epoch."""

    number: int
    published: float
    key: str
    frame: bytes

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def body(self) -> bytes:
        """The serialized PubsubMessage."""
        return frames.message_body(self.frame)

    @property
    def attributes(self) -> Mapping[str, str]:
        return _attributes(self.frame)

    @property
    def data(self) -> bytes:
        return frames.data(self.body)


@lru_cache(maxsize=2048)
def _attributes(frame: bytes) -> Mapping[str, str]:
    """Read once for all the filters of a topic's subscriptions, who ask one after the other."""
    return MappingProxyType(frames.attributes(frames.message_body(frame)))
