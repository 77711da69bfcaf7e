"""The state of an emulator: messages (broker), schemas and policies, with one list of events, and its dump.

`dump` returns plain data (dicts, lists, tuples, texts, bytes, numbers) with everything that a restart needs, except
chaos, and the acked messages that are kept only for inspection. `load` returns a state that continues like the dumped
one, except that no consumer is connected: the messages that consumers held stay leased until their deadline.
"""

from __future__ import annotations

from typing import Any

from pubsub_spark.emulator.state import dump
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.dump import ResourceFormat
from pubsub_spark.emulator.state.events import Created, Event
from pubsub_spark.emulator.state.policies import Policies
from pubsub_spark.emulator.state.schema_store import Schemas


class State:
    """The state of an emulator. A resource's policy is deleted with the resource. started: seconds since the epoch."""

    def __init__(self, *, remembered: int = 10_000, started: float = 0) -> None:
        self.events: list[Event] = []  # the changes since they were last read
        self.policies = Policies(self.events)
        self.schemas = Schemas(self.events, self.policies.discard)
        self.broker = Broker(self.events, self.policies.discard, remembered=remembered, started=started)

    def clear(self) -> None:
        self.schemas.clear()
        self.policies.by_name.clear()
        self.broker.clear()

    def announce(self) -> None:
        """Append a Created for every resource, which announces a loaded state to new listeners."""
        for records in (self.broker.topics, self.broker.subscriptions, self.broker.snapshots):
            self.events.extend(Created(name, record.resource) for name, record in records.items())
        self.events.extend(Created(name, self.schemas.get(name)) for name in self.schemas)

    def dump(self, resources: ResourceFormat) -> dict[str, Any]:
        return {
            "broker": dump.dump_broker(self.broker, resources),
            "schemas": dump.dump_schemas(self.schemas),
            "policies": {"by_name": {name: tuple(policy) for name, policy in self.policies.by_name.items()}}
            | {"changes": self.policies.changes},
        }

    @classmethod
    def load(cls, dumped: dict[str, Any], resources: ResourceFormat, *, remembered: int = 10_000) -> State:
        state = cls(remembered=remembered)
        dump.load_policies(state.policies, dumped["policies"])
        dump.load_schemas(state.schemas, dumped["schemas"])
        dump.load_broker(state.broker, dumped["broker"], resources)
        return state
