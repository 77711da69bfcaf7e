"""The engine: the events that listeners get. No server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.state.events import Created, Deleted, Event
from pubsub_spark.emulator.state.state import State

ONE, TWO = "projects/p/topics/one", "projects/p/topics/two"


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(State(), Clock())
    yield engine
    engine.close()


def test_listeners_hear_of_a_locked_section_when_it_is_over(engine):
    """A listener gets all events of a locked section at once and in order, before the next section. It gets none from
    before it was added.
    """
    heard: list[Sequence[Event]] = []
    with engine.open() as (broker, _):
        broker.create_topic(ONE)
    engine.add_listener(heard.append)

    with engine.open() as (broker, _):
        broker.delete_topic(broker.create_topic(TWO))
        assert [] == heard

    assert [[Created(TWO, None), Deleted(TWO)]] == heard


def test_listener_may_change_what_it_hears_of(engine):
    """A listener may change the state when it gets an event, and also gets the events of that change."""
    heard: list[Event] = []

    def listen(events: Sequence[Event]) -> None:
        heard.extend(events)
        if heard == [Created(ONE, None)]:
            with engine.open() as (broker, _):
                broker.create_topic(TWO)

    engine.add_listener(listen)
    with engine.open() as (broker, _):
        broker.create_topic(ONE)

    assert [Created(ONE, None), Created(TWO, None)] == heard
