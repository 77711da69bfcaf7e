"""Each command on messages and positions, against the emulator: output, JSON, exit code and errors."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store
from tests.rpc.conftest import COMMAND, Run, said, shown_on

RECORD = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}%s]}'
OPTIONAL = ', {"name": "b", "type": ["null", "string"], "default": null}'
TOPIC, SUB = "projects/my-project/topics/flights", "projects/my-project/subscriptions/all"


def test_publish_takes_lines_and_files(run: Run, emulator: Emulator, tmp_path: Path):
    """Lines of standard input, lines of files, whole files and `--message`, with attributes and an ordering key."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    (tmp_path / "lines").write_bytes(b"three\r\n\nfour")
    run("publish", "flights", "--attribute", "k=v,w=x", "--ordering-key", "me", stdin="one\ntwo\n")
    run("publish", "flights", str(tmp_path / "lines"))
    run("publish", "flights", "--whole", str(tmp_path / "lines"))
    ids = said(run, "topics", "publish", "flights", "--message", "six")["messageIds"]

    records = emulator.messages(SUB)
    assert [b"one", b"two", b"three", b"four", b"three\r\n\nfour", b"six"] == [record.data for record in records]
    assert [({"k": "v", "w": "x"}, "me")] * 2 == [(each.attributes, each.ordering_key) for each in records[:2]]
    assert [records[-1].message_id] == ids
    assert "`/nowhere` cannot be read" in run("publish", "flights", "/nowhere", code=1).stderr


def test_publish_of_much_shows_its_progress(emulator: Emulator, environment: dict[str, str]):
    """On a terminal standard error shows a progress bar, which is gone at the end. The ids are the only output."""
    emulator.create_topic(TOPIC)
    terminal, there = pty.openpty()
    command = [*COMMAND, "publish", "flights", "--json"]
    lines = "".join(f"line {number}\n" for number in range(5000)).encode()
    ended = subprocess.run(command, input=lines, stdout=subprocess.PIPE, stderr=there, env=environment, check=False)
    os.close(there)

    assert 0 == ended.returncode
    assert 5000 == len(json.loads(ended.stdout)["messageIds"])
    assert "publishing" in shown_on(terminal)


def test_json_says_what_was_done_before_an_error(run: Run, emulator: Emulator):
    """If only the first of several deletions, or requests of messages, succeed, the JSON has those."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    lines = "\n".join([*map(str, range(1000)), "x" * 10_000_001])
    published = run("publish", "flights", "--json", stdin=lines, code=1)
    deleted = run("topics", "delete", "flights", "gone", "--json", code=1)

    assert 1000 == len(json.loads(published.stdout)["messageIds"]) == emulator.backlog(SUB)
    assert {"deleted": [TOPIC]} == json.loads(deleted.stdout)
    assert "Topic `projects/my-project/topics/gone` does not exist" in deleted.stderr


def test_names_are_whole_on_a_narrow_terminal(emulator: Emulator, environment: dict[str, str]):
    """Text that does not fit into a column continues in its next line, because a truncated name is useless."""
    name = "a-subscription-whose-name-is-longer-than-its-column"
    emulator.create_topic(TOPIC)
    emulator.create_subscription(f"projects/my-project/subscriptions/{name}", TOPIC)
    terminal, there = pty.openpty()
    command = [*COMMAND, "backlog", "--once"]
    subprocess.run(command, stdout=there, env={**environment, "COLUMNS": "50", "TERM": "xterm"}, check=True)
    os.close(there)
    shown = re.sub(r"\x1b\[[\d;]*m", "", shown_on(terminal))
    _, _, table = shown.partition("unacked")  # the end of the heading, which is in several lines, too

    assert len(table.splitlines()) > 2
    assert name == "".join(row.split()[0] for row in table.splitlines()[1:])


def test_publish_encodes_and_pull_decodes(run: Run, emulator: Emulator):
    """With `--encode topic` a JSON line becomes a message of the topic's schema, and `pull` shows it decoded."""
    run("schemas", "create", "record", "--type", "avro", "--definition", RECORD % OPTIONAL)
    run("topics", "create", "flights", "--schema", "record", "--message-encoding", "binary")
    emulator.create_subscription(SUB, TOPIC)
    lines = '{"a": 1, "b": {"string": "tagged"}}\n{"a": 2, "b": "plain"}\n'
    run("publish", "flights", "--encode", "topic", stdin=lines)
    wrong = run("publish", "flights", "--encode", "topic", stdin='{"a": "no"}\n', code=1)
    plain = run("publish", "flights", stdin=lines, code=1)

    pulled = said(run, "pull", "all", "--limit", "10")
    assert [{"a": 1, "b": "tagged"}, {"a": 2, "b": "plain"}] == [each["value"] for each in pulled]
    assert [b"\x02\x02\x0ctagged", b"\x04\x02\x0aplain"] == [record.data for record in emulator.messages(SUB)]
    assert wrong.stderr.startswith("Line 1 is not a message of the schema `projects/my-project/schemas/record@")
    assert 1 == wrong.stderr.count("\n")
    assert plain.stderr.endswith("`--encode topic` encodes lines of JSON by that schema.\n")
    assert 2 == emulator.backlog(SUB)


def test_a_topic_that_is_named_schema_has_none(run: Run, emulator: Emulator):
    """Of a message that is refused for its attributes, `publish` does not say that a schema wants another form."""
    emulator.create_topic("projects/my-project/topics/schema-events")

    refused = run("publish", "schema-events", "--message", "a", "--attribute", "goog_x=1", code=1)

    assert "not valid (key=goog_x)" in refused.stderr
    assert "--encode" not in refused.stderr


def test_pull_after_the_topic_was_deleted(run: Run, emulator: Emulator):
    """The messages that a subscription of a deleted topic still has are shown as they are."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    emulator.publish(TOPIC, b"one")
    run("topics", "delete", "flights")

    assert ["one"] == [each["data"] for each in said(run, "pull", "all")]


def test_tail_of_a_topic_takes_nothing(run: Run, emulator: Emulator, environment: dict[str, str]):
    """`tail TOPIC` shows copies of published messages, leaves other subscriptions alone and deletes its own."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    command = [*COMMAND, "tail", "flights", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        following = tail.stderr.readline()
        emulator.publish(TOPIC, {"data": b"one\x1b[2J", "attributes": {"k": "v"}})
        shown = json.loads(tail.stdout.readline())
        tail.send_signal(signal.SIGTERM)
        assert 0 == tail.wait(timeout=30)

    assert (1, 0) == (len(emulator.messages(SUB)), emulator.messages(SUB)[0].deliveries)
    assert {"k": "v"} == shown["attributes"]
    assert "\x1b" not in json.dumps(shown)
    assert following.startswith("following projects/my-project/subscriptions/pubsub-spark-tail-")
    assert [SUB] == [each["name"] for each in said(run, "subscriptions", "list")]


def test_tail_of_a_service_that_is_lost_ends_when_it_is_told_to(environment: dict[str, str]):
    """If its subscription cannot be deleted, Ctrl-C ends `tail` within seconds instead of after all the retries."""
    with Emulator() as service:
        service.create_topic(TOPIC)
        command = [*COMMAND, "tail", "flights", "--endpoint", service.endpoint]
        tail = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert tail.stderr is not None
        tail.stderr.readline()
    with tail:
        tail.send_signal(signal.SIGINT)
        assert 1 == tail.wait(timeout=15)

        assert "did not answer when asked to delete Subscription" in tail.stderr.read()


def test_tail_of_a_subscription_that_is_taken_for_a_topic(run: Run, emulator: Emulator):
    """The error says which option follows a subscription, if only a subscription has that id."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)

    meant = run("tail", SUB.rpartition("/")[2], code=1)
    neither = run("tail", "nothing", code=1)

    assert meant.stderr.endswith(f"`{SUB}` exists: follow it with `--subscription`.\n")
    assert "--subscription" not in neither.stderr
    assert "projects/my-project/topics/nothing` does not exist" in neither.stderr


def test_tail_of_a_subscription_gives_back(run: Run, emulator: Emulator):
    """`tail --subscription` shows each message once and acknowledges none."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    emulator.publish(TOPIC, {"data": b"one", "attributes": {"k": "\x1b[2J"}}, b"two\x1b[2J")

    shown = run("tail", "--subscription", "all", "--limit", "2").stdout

    assert ["  one", "  dHdvG1sySg=="] == shown.splitlines()[1::2]
    assert "k=\\x1b[2J" in shown
    assert 2 == emulator.backlog(SUB)


def test_tail_of_a_subscription_uses_up_one_attempt(emulator: Emulator, environment: dict[str, str]):
    """`tail --subscription` holds messages until it ends. Nacked at once, they would soon be dead letters."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    emulator.publish(TOPIC, b"one")
    command = [*COMMAND, "tail", "--subscription", "all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as tail:
        assert tail.stdout is not None
        tail.stdout.readline()
        time.sleep(1.0)
        assert 1 == emulator.messages(SUB)[0].deliveries
        tail.send_signal(signal.SIGINT)
        assert 0 == tail.wait(timeout=30)
    assert 1 == emulator.backlog(SUB)


def test_backlog_without_a_proxy(run: Run, emulator: Emulator, environment: dict[str, str]):
    """An emulator on this machine is not called through the proxy of the environment, by neither protocol."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    environment |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1")

    assert [SUB] == list(said(run, "backlog", "--once"))


def test_backlog(run: Run, emulator: Emulator, environment: dict[str, str]):
    """The backlog of one subscription or of all, once, or again and again until Ctrl-C."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    emulator.publish(TOPIC, b"one", b"two")
    found = said(run, "backlog", "--once")
    table = run("backlog", "all", "--once").stdout.splitlines()
    with subprocess.Popen(
        [*COMMAND, "backlog", "all", "--interval", "0.2"], stdout=subprocess.PIPE, text=True, env=environment
    ) as piped:
        assert piped.stdout is not None
        lines = [piped.stdout.readline().split()[0] for _ in range(4)]
        piped.send_signal(signal.SIGINT)
        assert 0 == piped.wait(timeout=30)
    command = [*COMMAND, "backlog", "--json", "--interval", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as live:
        assert live.stdout is not None
        looks = [json.loads(live.stdout.readline())[SUB]["undelivered"] for _ in range(2)]
        live.send_signal(signal.SIGINT)
        assert 0 == live.wait(timeout=30)

    assert {SUB: {"undelivered": 2, "leased": 0}} == {
        name: {key: each[key] for key in ("undelivered", "leased")} for name, each in found.items()
    }
    assert ["all", "2", "0"] == table[1].split()[:3]
    assert [2, 2] == looks
    assert ["subscription", "all"] * 2 == lines
    assert (
        "Subscription `projects/my-project/subscriptions/gone` does not exist"
        in run("backlog", "gone", "--once", code=1).stderr
    )


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["topics", "describe", "gone"], 1, "Topic `projects/my-project/topics/gone` does not exist at"),
        (["topics", "describe", "x"], 2, "`x` is not an id: "),
        (["topics", "describe", "projects/p/topic/x"], 2, "is not of the form `projects/PROJECT/topics/ID`."),
        (["topics", "create", "flights", "--schema", "s-1"], 2, "`--schema` needs `--message-encoding json`"),
        (["topics", "create", "flights", "--schema-project", "p"], 2, "are settings of a schema. Also pass `--schema`"),
        (["topics", "create", "flights", "--labels", "k"], 2, "`k` is not of the form `KEY=VALUE`."),
        (["subscriptions", "create", "all", "--topic", "gone"], 1, "Topic `projects/my-project/topics/gone` does not"),
        (["subscriptions", "update", "all"], 2, "Nothing to change: "),
        (
            ["subscriptions", "update", "all", "--clear-retry-policy", "--min-retry-delay", "1s"],
            2,
            "`--clear-retry-policy` and a flag that sets the same exclude each other.",
        ),
        (
            ["subscriptions", "update", "all", "--expiration-period", "soon"],
            2,
            "`--expiration-period` must be `never` or",
        ),
        (
            ["subscriptions", "create", "all", "--topic", "flights", "--write-metadata"],
            2,
            "`--write-metadata` needs `--bigquery-table`",
        ),
        (
            ["subscriptions", "create", "all", "--topic", "flights", "--cloud-storage-file-prefix", "a"],
            2,
            "`--cloud-storage-file-prefix` needs `--cloud-storage-bucket`",
        ),
        (
            [
                *("subscriptions", "create", "all", "--topic", "flights", "--cloud-storage-bucket", "lake"),
                "--cloud-storage-write-metadata",
            ],
            2,
            "`--cloud-storage-write-metadata` needs `--cloud-storage-output-format avro`",
        ),
        (
            [
                *("subscriptions", "create", "all", "--topic", "flights", "--cloud-storage-bucket", "lake"),
                *("--bigquery-table", "p.d.t"),
            ],
            2,
            "`--cloud-storage-bucket` and `--bigquery-table` exclude each other",
        ),
        (
            [
                *("subscriptions", "create", "all", "--topic", "flights", "--cloud-storage-bucket", "lake"),
                *("--push-endpoint", "http://localhost"),
            ],
            2,
            "`--push-endpoint` and an export exclude each other",
        ),
        (
            ["subscriptions", "update", "all", "--push-auth-service-account", "me@p.iam.gserviceaccount.com"],
            2,
            "`--push-auth-service-account` needs `--push-endpoint`.",
        ),
        (
            [
                *("subscriptions", "create", "all", "--topic", "flights", "--push-endpoint", "http://localhost"),
                "--push-no-wrapper-write-metadata",
            ],
            2,
            "`--push-no-wrapper-write-metadata` needs `--push-no-wrapper`.",
        ),
        (["schemas", "create", "s-1", "--type", "xml", "--definition", "{}"], 2, "`--type` must be `avro` or"),
        (["schemas", "create", "s-1", "--type", "avro", "--definition", "{"], 1, "Pub/Sub refuses to create Schema"),
        (["schemas", "delete-revision", "s-1"], 2, "`s-1` does not name a revision: write `s-1@REVISION`."),
        (
            ["schemas", "rollback", "s-1", "--revision-id", "12ab34cd"],
            1,
            "Schema `projects/my-project/schemas/s-1` does",
        ),
        (["schemas", "validate-message", "--message-encoding", "json"], 2, "Pass `--schema-name`, or a definition and"),
        (["schemas", "validate-message", "--message-encoding", "xml"], 2, "`--message-encoding` must be `json` or"),
        (
            ["schemas", "validate-message", "--message-encoding", "json", "--schema-name", "s-1", "--type", "avro"],
            2,
            "`--schema-name` and a definition with its `--type` exclude each other.",
        ),
        (["snapshots", "create", "before", "--subscription", "gone"], 1, "Subscription `projects/my-project/subscr"),
        (["pull", "gone"], 1, "Subscription `projects/my-project/subscriptions/gone` does not exist"),
        (["publish", "gone", "--message", "x"], 1, "Topic `projects/my-project/topics/gone` does not exist"),
        (["tail"], 2, "Name either a topic or, with `--subscription`, a subscription."),
        (
            ["topics", "list", "--endpoint", "x.y:1"],
            2,
            "pass `--credentials-file`. If it is an emulator, set PUBSUB_EM",
        ),
        (["topics", "list", "--endpoint", "http://here"], 2, "`--endpoint` must be `host:port` without `http://`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_one_sentence(run: Run, words: list[str], code: int, sentence: str):
    """An error is one line on standard error, and the exit code shows whose error it is."""
    ended = run(*words, code=code)

    assert sentence in ended.stderr
    assert ("", 1) == (ended.stdout, ended.stderr.count("\n"))


def test_staging(run: Run, tmp_path: Path):
    """A stream's files are listed and removed. If it has no files, `ls` says so and ends with 1."""
    staging = Staging(open_store(str(tmp_path)), SUB, "mine")
    staging.write_token()
    staging.create("1/part-0", [b"a part"])
    [listed] = said(run, "staging", "ls", str(tmp_path))
    row = run("staging", "ls", str(tmp_path)).stdout.splitlines()[1]
    removed = run("staging", "clean", str(tmp_path), "--stream", "mine").stdout
    nothing = run("staging", "ls", str(tmp_path), code=1)

    assert (SUB, "mine", [1], 2) == tuple(listed[key] for key in ("subscription", "stream", "batches", "files"))
    assert [SUB, "mine", "1", "2"] == row.split()[:4]
    assert "removed 2 files of stream mine\n" == removed
    assert ("", f"No stream has files in `{tmp_path}`.\n") == (nothing.stdout, nothing.stderr)


def test_options_are_listed(run: Run):
    """`options` is the declaration of each option, as text or as JSON."""
    listed = said(run, "options")

    assert {"reading", "writing"} == set(listed)
    assert "subscriptionId" in [each["name"] for each in listed["reading"]]
    assert any(line.startswith("topicId ") for line in run("options", "writing").stdout.splitlines())


def test_completion_knows_the_commands():
    """A shell that asks for completions of `pubsub-spark top` gets `topics`."""
    asked = {"_PUBSUB_SPARK_COMPLETE": "complete_bash", "COMP_WORDS": "pubsub-spark top", "COMP_CWORD": "1"}
    code = "from pubsub_spark.cli import app; app(prog_name='pubsub-spark')"
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True)

    assert ["topics"] == ended.stdout.split()
