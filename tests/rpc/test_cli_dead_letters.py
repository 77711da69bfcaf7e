"""`pubsub-spark dead-letters` as a process against the emulator: messages counted, shown, published again and kept."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pubsub_spark.backend import EmulatorBackend
from pubsub_spark.codec.envelope import MESSAGES
from pubsub_spark.emulator import Emulator
from pubsub_spark.read import dead_letters
from tests.rpc.conftest import COMMAND, OTHER, SUB, TOPIC, Client, Run, said, shown_on, wait_until

GRAVE, DEAD = "projects/p/topics/grave", "projects/p/subscriptions/dead"
SOON = ("--idle-timeout", "0.2s")
Bury = Callable[..., None]


@pytest.fixture
def bury(client: Client, emulator: Emulator) -> Bury:
    """Publish messages to TOPIC and nack them until its dead-letter policy has moved them. OTHER gets redriven ones."""
    emulator.create_topic(GRAVE)
    emulator.create_subscription(DEAD, GRAVE)
    emulator.create_topic(TOPIC)
    policy = {"dead_letter_topic": GRAVE, "max_delivery_attempts": 5}
    emulator.create_subscription(SUB, TOPIC, dead_letter_policy=policy)

    def bury(*messages: Any) -> None:
        if messages:
            emulator.publish(TOPIC, *messages)
        for _ in range(5 if messages else 0):
            client.modack(0, *(received.ack_id for received in client.pull()))
        assert len(messages) == emulator.backlog(DEAD)
        emulator.create_subscription(OTHER, TOPIC)

    return bury


def letter_of_connector(emulator: Emulator, **columns: Any) -> None:
    """Publish to GRAVE the dead letter that the connector publishes for a message of SUB that it cannot decode."""
    message = {"message_id": "m1", "publish_time": 0, "ordering_key": "", "delivery_attempt": 0, "attributes": []}
    message |= columns
    arrays = [pa.array([message[field.name]], field.type) for field in MESSAGES]
    batch = pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)
    dead_letters.publish(GRAVE, SUB, batch, ["no Avro"], EmulatorBackend(emulator.endpoint))


def redriven(emulator: Emulator) -> list[tuple[bytes, dict[str, str], str]]:
    return [(each.data, each.attributes, each.ordering_key) for each in emulator.messages(OTHER)]


def test_redrive_of_letters_of_a_policy(run: Run, emulator: Emulator, bury: Bury):
    """Messages are published to the topic of their subscription with their own attributes and ordering keys."""
    messages = [({"k": "v"}, "one"), ({}, "two"), ({"l": "w"}, "one")]
    bury(*({"data": b"a", "attributes": each, "ordering_key": key} for each, key in messages))

    ended = run("dead-letters", "redrive", DEAD, *SOON)

    assert f"redrove 3 messages to {TOPIC}\n" == ended.stdout
    assert "" == ended.stderr
    assert sorted((b"a", sorted(each.items()), key) for each, key in messages) == sorted(
        (data, sorted(each.items()), key) for data, each, key in redriven(emulator)
    )
    assert 0 == emulator.backlog(DEAD)


def test_redrive_of_letters_of_the_connector(run: Run, emulator: Emulator, bury: Bury):
    """The ordering key is from its attribute. `--to` names another topic. A cut message stays, with the reason."""
    bury()
    letter_of_connector(emulator, data=b"a", attributes=[("k", "v")], ordering_key="key")
    letter_of_connector(emulator, data=b"b" * 9_000_001)

    ended = run("dead-letters", "redrive", DEAD, "--to", TOPIC, *SOON, code=1)

    assert [(b"a", {"k": "v"}, "key")] == redriven(emulator)
    assert f"left 1 in {DEAD}: not complete in the dead letter (data)\n" == ended.stderr
    assert 1 == emulator.backlog(DEAD)


def test_what_cannot_be_redriven_stays(run: Run, emulator: Emulator, bury: Bury):
    """A message that is no dead letter, and one whose subscription is gone, are left, and all are nacked."""
    bury({"data": b"a"})
    emulator.publish(GRAVE, b"stray")
    run("subscriptions", "delete", SUB)

    left = json.loads(run("dead-letters", "redrive", DEAD, "--json", *SOON, code=1).stdout)["left"]

    assert {1} == {*left.values()}
    gone, stray = sorted(left, reverse=True)
    assert gone.startswith(f"without a topic: Subscription `{SUB}` does not exist")
    assert gone.endswith("Pass `--to TOPIC`")
    assert stray == "no dead letter: its attributes name no reason"
    assert [None, None] == [record.ack_deadline for record in emulator.messages(DEAD)]
    assert ([], 2) == (redriven(emulator), emulator.backlog(DEAD))


def test_where_limit_and_dry_run(run: Run, emulator: Emulator, bury: Bury):
    """`--where` chooses by attributes, `--limit` by number, and `--dry-run` publishes and acknowledges nothing."""
    bury(*({"data": b"%d" % n, "attributes": {"odd": str(n % 2)}} for n in range(6)))
    odd = ("--where", 'attributes.odd = "1"')

    dry = run("dead-letters", "redrive", DEAD, *odd, "--dry-run", *SOON).stdout
    nothing = redriven(emulator)
    some = said(run, "dead-letters", "redrive", DEAD, *odd, "--limit", "2", *SOON)

    assert f"would redrive 3 messages to {TOPIC}\n" == dry
    assert [] == nothing
    assert {"redriven": {TOPIC: 2}, "left": {}, "uncertain": 0, "dryRun": False} == some
    assert [{"odd": "1"}] * 2 == [attributes for _, attributes, _ in redriven(emulator)]
    assert 4 == emulator.backlog(DEAD)
    assert "is not valid at position" in run("dead-letters", "ls", DEAD, "--where", "odd", code=2).stderr


def test_limit_counts_what_is_redriven(run: Run, emulator: Emulator, bury: Bury):
    """Dead letters that stay take no room of `--limit`."""
    bury(b"a")
    emulator.publish(GRAVE, b"stray", b"stray")
    letter_of_connector(emulator, data=b"b")

    ended = run("dead-letters", "redrive", DEAD, "--to", TOPIC, "--limit", "2", "--json", *SOON, code=1)

    assert {TOPIC: 2} == json.loads(ended.stdout)["redriven"]


def test_ls_and_show(run: Run, emulator: Emulator, bury: Bury):
    """Dead letters are counted by reason and source, and shown as their publishers made them. All are nacked."""
    bury({"data": b"a", "attributes": {"k": "v"}}, {"data": b"b", "ordering_key": "o"})
    letter_of_connector(emulator, data=b"c", ordering_key="p")

    counted = said(run, "dead-letters", "ls", DEAD, *SOON)
    table = run("dead-letters", "ls", DEAD, "--limit", "1", *SOON)
    shown = said(run, "dead-letters", "show", DEAD, *SOON)
    text = run("dead-letters", "show", DEAD, "--where", "attributes:pubsub_spark_error", *SOON).stdout
    emulator.publish(GRAVE, {"data": b"d", "attributes": {"pubsub_spark_error": "\x1b[2J"}})
    harmless = [run("dead-letters", each, DEAD, *SOON).stdout for each in ("ls", "show")]

    assert [("not acknowledged in 5 deliveries", SUB, 2), ("no Avro", SUB, 1)] == [
        (each["reason"], each["subscription"], each["messages"]) for each in counted
    ]
    assert ["messages", "1"] == [line.split()[0] for line in table.stdout.splitlines()]
    assert "`--limit` 1 is reached: there may be more.\n" == table.stderr
    keys = ("data", "attributes", "orderingKey", "reason")
    assert [
        ("a", {"k": "v"}, None, "not acknowledged in 5 deliveries"),
        ("b", None, "o", "not acknowledged in 5 deliveries"),
        ("c", None, "p", "no Avro"),
    ] == sorted((tuple(each.get(key) for key in keys) for each in shown), key=lambda each: str(each[0]))
    assert text.startswith(f"no Avro  {SUB}\n")
    assert [("\\x1b[2J" in each, "\x1b" in each) for each in harmless] == [(True, False)] * 2
    assert 4 == emulator.backlog(DEAD)


@pytest.mark.parametrize("rpc", ["Publish", "Acknowledge"])
def test_a_dead_letter_is_acknowledged_after_its_message_is_published(
    run: Run, emulator: Emulator, bury: Bury, rpc: str
):
    """A redrive that may not publish, or not acknowledge, ends with the sentence for it and loses no message."""
    bury(b"a")
    emulator.fail(rpc, "PERMISSION_DENIED")

    ended = run("dead-letters", "redrive", DEAD, *SOON, code=1)

    assert "1 more may be published: the next run publishes them again" in ended.stderr
    assert "Permission to " in ended.stderr
    assert (1 if rpc == "Acknowledge" else 0) == len(redriven(emulator))
    assert 1 == emulator.backlog(DEAD)


def test_a_message_that_the_topic_refuses_does_not_hold_back_others(run: Run, emulator: Emulator, bury: Bury):
    """The topic has a schema by now: of a request that is refused each message is published alone, and one stays."""
    emulator.create_schema("projects/p/schemas/number", "AVRO", '"int"')
    emulator.create_topic("projects/p/topics/typed", schema="projects/p/schemas/number")
    bury(b"\x02", b"no", b"\x04")

    ended = run("dead-letters", "redrive", DEAD, "--to", "projects/p/topics/typed", *SOON, code=1)

    assert "redrove 2 messages to projects/p/topics/typed\n" == ended.stdout
    assert f"left 1 in {DEAD}: refused: Pub/Sub refuses to publish to Topic" in ended.stderr
    assert [b"no"] == [record.data for record in emulator.messages(DEAD) if not record.acked]


def test_a_message_that_dies_again_stays(run: Run, emulator: Emulator, bury: Bury):
    """A dead letter that was published after the start of the run is left: a redrive would never end otherwise."""
    emulator.advance(3600)  # all that follows is after the start, by the emulator's clock
    bury(b"a")

    ended = run("dead-letters", "redrive", DEAD, *SOON, code=1)

    assert f"left 1 in {DEAD}: dead since this run began\n" == ended.stderr
    assert ([], 1) == (redriven(emulator), emulator.backlog(DEAD))


def test_interrupted_redrive_loses_nothing(emulator: Emulator, environment: dict[str, str], bury: Bury):
    """Ctrl-C ends a slow redrive with its counts: published messages are acknowledged, the others are nacked."""
    bury(*(b"%d" % n for n in range(20)))
    command = [*COMMAND, "dead-letters", "redrive", DEAD, "--rate", "1", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        wait_until(lambda: bool(redriven(emulator)), 60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    done = len(redriven(emulator))
    assert 1 == process.returncode
    assert 0 < done < 20
    assert {TOPIC: done} == json.loads(out)["redriven"]
    assert 20 - done == emulator.backlog(DEAD)
    assert "Interrupted. The other dead letters stay" in err


def test_redrive_shows_its_progress(emulator: Emulator, environment: dict[str, str], bury: Bury):
    """On a terminal standard error shows a progress bar. The counts are the only output."""
    bury(*(b"%d" % n for n in range(3)))
    terminal, there = pty.openpty()
    command = [*COMMAND, "dead-letters", "redrive", DEAD, *SOON]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=there, env=environment) as process:
        os.close(there)
        shown = shown_on(terminal)  # meanwhile: an unread bar fills the terminal
        out, _ = process.communicate(timeout=60)

    assert f"redrove 3 messages to {TOPIC}\n".encode() == out
    assert "redriving" in shown
