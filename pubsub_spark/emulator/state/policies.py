"""IAM policies by the full name of their resource: opaque bytes, and an etag that changes with every change."""

from __future__ import annotations

from typing import NamedTuple

from pubsub_spark.emulator.state.events import Event, PolicySet

UNTOUCHED = b"\x00\x20\x01"  # the service's first etag. REST shows it as `ACAB`


class ConcurrentChangeError(Exception):
    """The policy was changed since the caller read it."""


class Policy(NamedTuple):
    """`document` is the serialized message without its etag."""

    document: bytes
    etag: bytes


class Policies:
    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self.by_name: dict[str, Policy] = {}
        self.changes = 0  # in total. The etags are made of it

    def get(self, name: str) -> Policy:
        """Return an empty policy if none was set."""
        return self.by_name.get(name, Policy(b"", UNTOUCHED))

    def set(self, name: str, document: bytes, etag: bytes) -> Policy:
        """Store a policy. Raise ConcurrentChangeError if `etag` is set and differs from the present one."""
        if etag and etag != self.get(name).etag:
            raise ConcurrentChangeError
        self.changes += 1
        policy = self.by_name[name] = Policy(document, b"\x07" + self.changes.to_bytes(7))
        self._events.append(PolicySet(name, policy))
        return policy

    def discard(self, name: str) -> None:
        self.by_name.pop(name, None)
