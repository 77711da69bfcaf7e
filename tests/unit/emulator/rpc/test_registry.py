"""The services together: faults that a test injects, time that it moves, and the reset."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.runtime.faults import Fault
from tests.unit.emulator.conftest import DAY, data, refused, seconds


def test_fault_meets_as_many_calls_as_were_ordered(handlers):
    """Two calls at the same moment do not both get the only fault."""

    class Slow(str):
        """A code whose comparison lets another thread run."""

        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            time.sleep(0.02)
            return str.__eq__(self, other)

    handlers.faults.add(Fault(Slow("Publish"), "UNAVAILABLE"))
    with ThreadPoolExecutor(2) as calls:
        met = list(calls.map(handlers.faults.match, ["Publish", "Publish"]))

    assert 1 == sum(fault is not None for fault in met)


def test_time_moves_past_what_falls_due_on_the_way(handlers):
    """The lease ends after 10 s and the backoff 10 s later, although the clock moves by 21 s at once."""
    handlers.topic()
    handlers.subscription(retry_policy={"minimum_backoff": seconds(10), "maximum_backoff": seconds(10)})
    handlers.publish("x")
    handlers.pull()
    handlers.engine.advance(21)
    assert ["x"] == data(handlers.pull())


def test_time_does_not_go_back(handlers):
    """A negative advance is an error instead of a rewind."""
    with pytest.raises(ValueError, match="Time can only move on"):
        handlers.engine.advance(-1)


def test_reset_forgets_everything(pair):
    """A reset deletes everything, and the next message id is still a new one."""
    [before] = pair.publish("x")
    schema = protos.Schema(type_=1, definition='syntax = "proto3"; message M { int32 a = 1; }')
    pair.schemas.create_schema(protos.CreateSchemaRequest(parent="projects/p", schema_id="schema", schema=schema))
    pair.reset()
    assert "NOT_FOUND" == refused(pair.pull)[0]
    assert [] == list(pair.schemas.list_schemas(protos.ListSchemasRequest(parent="projects/p")).schemas)
    pair.topic()
    [after] = pair.publish("x")
    assert int(before) < int(after)


def test_reset_takes_back_the_time_that_was_moved(pair):
    """After a reset the time is today's, although the last test advanced the clock by a month."""
    today = pair.engine.now()
    pair.engine.advance(31 * DAY)

    pair.reset()

    assert today == pytest.approx(pair.engine.now(), abs=60)


@pytest.mark.parametrize(
    "call",
    [
        lambda handlers: handlers.subscription("projects/p/subscriptions/ab"),
        lambda handlers: handlers.subscription(topic="projects/p/topics/ab"),
        lambda handlers: handlers.pull("projects/p/subscriptions/ab"),
        lambda handlers: handlers.snapshots.get_snapshot(protos.GetSnapshotRequest(snapshot="projects/p/snapshots/ab")),
        lambda handlers: handlers.schemas.get_schema(protos.GetSchemaRequest(name="projects/p/schemas/ab")),
        lambda handlers: handlers.publisher.list_topics(protos.ListTopicsRequest(project="projects/")),
    ],
    ids=["subscription", "its topic", "pulled", "snapshot", "schema", "project"],
)
def test_every_service_names_the_rule_of_names(pair, call):
    """An invalid name is refused with the rule by every service."""
    code, message = refused(lambda: call(pair))

    assert "INVALID_ARGUMENT" == code
    assert "An id has 3 to 255 characters, letters, digits and -_.~+%, begins with a letter" in message
