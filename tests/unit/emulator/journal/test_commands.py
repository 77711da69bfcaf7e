"""Commands: recorded calls, and commands that a replay refuses. That a replay has the same state is a law of
tests/properties/test_emulator_state.py.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.journal.commands import CHANGES, Command, Recorder, Replay, ReplayError
from pubsub_spark.emulator.resources import resource_validation
from pubsub_spark.emulator.resources.resource_format import RESOURCE_FORMAT
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Consumer
from pubsub_spark.emulator.state.state import State
from pubsub_spark.schema.schema_types import parse

TOPIC, SUB, SCHEMA = "projects/p/topics/topic", "projects/p/subscriptions/sub", "projects/p/schemas/schema"
BODY = b"\x0a\x01a"
DAY = 86_400.0
# Methods that read the broker without changing it, or fill one that was loaded.
READS = {
    "backlog", "due", "leased_numbers", "oldest_unacked", "origin_of", "outstanding", "scheduled", "snapshot_expiry",
    "topic_of", "wait", "add_subscription", "resume",
}  # fmt: skip
WITH_THEIR_OWN_COMMAND = {"take", "clear"}


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def commands(state: State) -> list[Command]:
    """Return the commands recorded for a state with a topic and its subscription."""
    found: list[Command] = []
    Recorder(state, RESOURCE_FORMAT, found.append)
    topic = state.broker.create_topic(TOPIC, protos.Topic(name=TOPIC), 0)
    kept = resource_validation.subscription(protos.Subscription(name=SUB, topic=TOPIC))
    state.broker.create_subscription(SUB, topic, resource_validation.settings(kept), 0.0, kept)
    return found


def replayed(commands: list[Command]) -> State:
    replay = Replay(State(), RESOURCE_FORMAT)
    for command in commands:
        replay.apply(command)
    return replay.state


def test_every_method_of_the_broker_is_a_change_or_a_read():
    """A new method of the broker is recorded, or named here as one that changes nothing."""
    methods = {name for name, _ in inspect.getmembers(Broker) if not name.startswith("_")}

    assert methods == {*CHANGES} | READS | WITH_THEIR_OWN_COMMAND


def test_a_replay_has_schemas_policies_and_resources(state: State, commands: list[Command]):
    """Revisions keep their random ids, and deleted resources are gone."""
    schema = state.schemas.create(SCHEMA, parse("AVRO", '"int"'), now=1)
    state.schemas.commit(schema, parse("AVRO", '"int"'), now=2)
    state.policies.set(SUB, b"policy", b"")

    again = replayed(commands)

    assert state.dump(RESOURCE_FORMAT) == again.dump(RESOURCE_FORMAT)
    state.schemas.delete(SCHEMA)
    assert None is replayed(commands).schemas.get(SCHEMA)
    state.clear()
    assert {} == replayed(commands).broker.topics


def test_a_take_that_finds_nothing_is_no_command(state: State, commands: list[Command]):
    """An idle stream writes nothing."""
    before = len(commands)

    state.broker.take(state.broker.subscriptions[SUB], Consumer(), 1.0)

    assert before == len(commands)


def test_a_call_on_a_deleted_subscription_is_no_command(state: State, commands: list[Command]):
    """A stream of a deleted subscription changes nothing of its successor."""
    subscription = state.broker.subscriptions[SUB]
    state.broker.delete_subscription(subscription)
    before = len(commands)

    state.broker.leave(subscription, Consumer(), 1.0)
    state.broker.ack(subscription, [4096], 1.0)

    assert before == len(commands)


def test_arguments_by_keyword_are_written_as_others(state: State, commands: list[Command]):
    """Any argument may be passed by name, including resources and topics."""
    topic = state.broker.create_topic(
        name="projects/p/topics/other", resource=protos.Topic(name="projects/p/topics/other"), retention=60
    )
    state.broker.publish(topic=topic, bodies=[BODY], key="", now=1.0)
    state.broker.modify(state.broker.subscriptions[SUB], [4096], 0, now=1.0, is_use=False)

    assert state.dump(RESOURCE_FORMAT) == replayed(commands).dump(RESOURCE_FORMAT)


def test_what_a_tick_does_is_one_command(state: State, commands: list[Command]):
    """Dead letters that a tick forwards are published by the replayed tick instead of a command of their own."""
    broker = state.broker
    dead = broker.create_topic("projects/p/topics/dead", protos.Topic(name="projects/p/topics/dead"), 600.0)
    kept = protos.Subscription(name=SUB, topic=TOPIC, ack_deadline_seconds=10)
    kept.dead_letter_policy.dead_letter_topic = dead.name
    kept.dead_letter_policy.max_delivery_attempts = 5
    kept = resource_validation.subscription(kept)
    subscription = broker.subscriptions[SUB]
    broker.configure(subscription, resource_validation.settings(kept), kept, 0.0)
    broker.publish(broker.topics[TOPIC], [BODY], "", 1.0)
    for attempt in range(5):
        broker.take(subscription, Consumer(), 2.0 + 20 * attempt)
        broker.tick(15.0 + 20 * attempt)

    assert ["take", "tick"] * 5 == [command.name for command in commands[-10:]]
    assert 1 == len(replayed(commands).broker.topics[dead.name].log)


def test_a_connected_subscription_outlives_its_time_in_the_replay(state: State, commands: list[Command]):
    """A stream that is open for longer than the subscription's ttl keeps it, and the restart counts as a use."""
    broker = state.broker
    subscription = broker.subscriptions[SUB]
    kept = protos.Subscription(name=SUB, topic=TOPIC)
    kept.expiration_policy.ttl.FromSeconds(int(DAY))
    broker.configure(subscription, resource_validation.settings(kept), kept, 0.0)
    broker.join(subscription, Consumer())
    broker.tick(3 * DAY)

    again = replayed([*commands, Command("restart", (5 * DAY,), {}, None)]).broker

    assert SUB in again.subscriptions
    assert {} == again.subscriptions[SUB].consumers.connected
    assert 6 * DAY == again.due


def test_ids_of_the_run_before_are_not_used_again(state: State, commands: list[Command]):
    """A message or a lease that was not written before the end does not share its id with a later one."""
    broker = state.broker
    written = len(commands)
    [lost] = broker.publish(broker.topics[TOPIC], [BODY], "", 1.0)
    [leased] = broker.take(broker.subscriptions[SUB], Consumer(), 1.0).numbers

    again = replayed([*commands[:written], Command("restart", (2.0,), {}, None)]).broker
    [message] = again.publish(again.topics[TOPIC], [BODY], "", 2.0)
    [number] = again.take(again.subscriptions[SUB], Consumer(), 2.0).numbers

    assert message > lost
    assert number > leased
    assert [leased] == again.ack(again.subscriptions[SUB], [leased], 2.0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("create_topic", (f"{TOPIC}-2", b"\xff", 0)), ("restart", (float("inf"),)), ("join", (5, None))],
)
def test_arguments_that_no_call_has_are_refused(commands: list[Command], name: str, arguments: tuple[Any, ...]):
    """Invalid resource bytes, times and names end the replay with an error that names the command."""
    with pytest.raises(ReplayError, match=f"`{name}` cannot be carried out"):
        replayed([*commands, Command(name, arguments, {}, None)])


def test_a_replay_that_gives_other_messages_is_refused(state: State, commands: list[Command]):
    """A take that leases another message than it did ends the replay, because an ack of it would lose that message."""
    broker = state.broker
    broker.publish(broker.topics[TOPIC], [BODY], "", 1.0)
    broker.publish(broker.topics[TOPIC], [BODY], "", 1.0)
    broker.take(broker.subscriptions[SUB], Consumer(), 1.0, 1)
    without_the_first = [*commands[:2], *commands[3:]]

    with pytest.raises(ReplayError, match=r"`publish` returns .* instead of"):
        replayed(without_the_first)


@pytest.mark.parametrize(
    ("firsts", "is_same"),
    [([0], True), ([0, 2], True), ([0, 1, 2, 3], True), ([2], False), ([0, 4], False), ([2, 0], False)],
)
def test_a_take_may_find_the_same_messages_in_other_parts(
    state: State, commands: list[Command], firsts: list[int], is_same: bool
):
    """Version 0.1 recorded other parts of the same messages after a seek. Other messages end the replay."""
    broker, subscription = state.broker, state.broker.subscriptions[SUB]
    ids = [*broker.publish(broker.topics[TOPIC], [BODY, BODY], "", 1.0)]
    ids += broker.publish(broker.topics[TOPIC], [BODY, BODY], "", 1.0)
    broker.take(subscription, Consumer(), 1.0)
    broker.seek_to_time(subscription, 0.0, 1.0)
    broker.take(subscription, Consumer(), 1.0)
    start, size, _ = commands[-1].result
    recorded = start, size, [ids[0] + first for first in firsts]
    older = [*commands[:-1], commands[-1]._replace(result=recorded)]

    if is_same:
        assert state.dump(RESOURCE_FORMAT) == replayed(older).dump(RESOURCE_FORMAT)
    else:
        with pytest.raises(ReplayError, match=r"`take` returns .* instead of"):
            replayed(older)
