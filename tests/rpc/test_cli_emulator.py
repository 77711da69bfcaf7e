"""The emulator's verbs as commands: a test in a shell moves the clock, injects faults, looks inside, resets."""

from __future__ import annotations

import time

from pubsub_spark.emulator import Emulator
from tests.rpc.conftest import SUB, TOPIC, Client, Run, refused, said


def test_clock_is_moved(run: Run, emulator: Emulator):
    """`advance` takes seconds or a duration: leases end."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC, ack_deadline_seconds=60)
    emulator.publish(TOPIC, "a")
    client = Client(emulator.endpoint)
    with client.channel:
        client.pull()
        assert "advanced the clock by 61 s\n" == run("emulator", "advance", "61").stdout
        assert 1 == len(client.pull())
        run("emulator", "advance", "1d")
        [record] = emulator.messages(SUB)
    assert (2, 2) == (record.deliveries, record.failures)


def test_calls_fail_as_ordered(run: Run, emulator: Emulator):
    """`fail Publish UNAVAILABLE --times 3` lets three calls fail, with the message of `--message`."""
    emulator.create_topic(TOPIC)
    done = run("emulator", "fail", "Publish", "UNAVAILABLE", "--times", "3", "--message", "on strike")
    assert "the next 3 calls of Publish will fail with UNAVAILABLE\n" == done.stdout

    client = Client(emulator.endpoint)
    with client.channel:
        for _ in range(3):
            with refused("UNAVAILABLE", "on strike"):
                client.publish({"data": b"a"})
        client.publish({"data": b"a"})


def test_calls_are_late(run: Run, emulator: Emulator):
    """Without a status `--delay` only delays, on the emulator's clock."""
    emulator.create_topic(TOPIC)
    run("emulator", "fail", "Publish", "--delay", "300ms")
    client = Client(emulator.endpoint)
    with client.channel:
        begun = time.monotonic()
        client.publish({"data": b"a"})
    assert time.monotonic() - begun >= 0.3


def test_faults_that_cannot_be(run: Run):
    """A fault of nothing is a wrong call. The emulator's refusals are shown."""
    assert "Name a status, such as UNAVAILABLE, or `--delay`.\n" == run("emulator", "fail", "Pull", code=2).stderr
    assert run("emulator", "fail", "Publsh", "ABORTED", code=1).stderr.startswith("`Publsh` is not an RPC.")
    assert "ALREADY_EXISTS" in run("emulator", "fail", "Publish", "LATE", code=1).stderr


def test_calls_are_listed(run: Run, emulator: Emulator):
    """`calls` lists the latest calls with their status and resource, without `--record`."""
    client = Client(emulator.endpoint)
    with client.channel:
        client.ask("Publisher/CreateTopic", name=TOPIC)
        with refused("ALREADY_EXISTS"):
            client.ask("Publisher/CreateTopic", name=TOPIC)

    created, again = said(run, "emulator", "calls")
    assert ("CreateTopic", "OK", TOPIC) == (created["rpc"], created["status"], created["resource"])
    assert "ALREADY_EXISTS" == again["status"]
    _, *rows = run("emulator", "calls", "--limit", "1").stdout.splitlines()
    assert [["CreateTopic", "ALREADY_EXISTS"]] == [row.split()[1:3] for row in rows]


def test_messages_are_shown(run: Run, emulator: Emulator):
    """`messages` shows state, deliveries and payload. The id of a subscription is one of the project."""
    emulator.create_topic("projects/my-project/topics/news")
    emulator.create_subscription("projects/my-project/subscriptions/all", "projects/my-project/topics/news")
    assert "No unacknowledged message. `emulator run --record` also" in run("emulator", "messages", "all").stderr
    emulator.publish("projects/my-project/topics/news", "hello\x1b[1m", "x" * 100)
    client = Client(emulator.endpoint)
    with client.channel:
        client.pull("projects/my-project/subscriptions/all", 1)

    heading, first, second = run("emulator", "messages", "all").stdout.splitlines()
    assert heading.startswith("message id")
    assert "leased until " in first
    assert first.endswith("1           0         hello\\x1b[1m")
    assert second.endswith(f"waiting                    0           0         {'x' * 60}...")
    assert [1, 0] == [each["deliveries"] for each in said(run, "emulator", "messages", "all")]


def test_reset_empties(run: Run, emulator: Emulator):
    """`reset` deletes every resource."""
    emulator.create_topic(TOPIC)
    assert f"deleted everything at {emulator.endpoint}\n" == run("emulator", "reset").stdout
    emulator.create_topic(TOPIC)


def test_no_emulator_is_one_sentence(run: Run, environment: dict[str, str]):
    """Without an emulator the error has the command to start one."""
    environment["PUBSUB_EMULATOR_HOST"] = "127.0.0.1:1"
    assert (
        "No emulator answers at `127.0.0.1:1`: Connection refused. Start one with `pubsub-spark emulator "
        "start`, or name its address with `--endpoint`.\n"
    ) == run("emulator", "reset", code=1).stderr


def test_url_is_no_address(run: Run, environment: dict[str, str]):
    """An address with `http://` is refused by a sentence that names the variable."""
    environment["PUBSUB_EMULATOR_HOST"] = "http://127.0.0.1:8085"
    for words in (["emulator", "reset"], ["emulator", "stop"]):
        assert "PUBSUB_EMULATOR_HOST must be `host:port` without `http://`" in run(*words, code=2).stderr
