"""Each command on topics, subscriptions, schemas and snapshots, against the emulator."""

from __future__ import annotations

import json
from pathlib import Path

from pubsub_spark.emulator import Emulator
from tests.rpc.conftest import Run, said

RECORD = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}%s]}'
OPTIONAL = ', {"name": "b", "type": ["null", "string"], "default": null}'
TOPIC, SUB = "projects/my-project/topics/flights", "projects/my-project/subscriptions/all"
SCHEMA = "projects/my-project/schemas/record"


def test_topics(run: Run, emulator: Emulator):
    """A topic is created, listed, described, changed and deleted."""
    created = said(run, "topics", "create", "flights", "--labels", "team=data,note=ab")
    assert {"name": TOPIC, "labels": {"team": "data", "note": "ab"}} == created

    changed = said(
        run, "topics", "update", TOPIC, "--update-labels", "env=test", "--remove-labels", "note",
        "--message-retention-duration", "1d",
    )  # fmt: skip
    assert {"team": "data", "env": "test"} == changed["labels"]
    assert [changed] == said(run, "topics", "list")
    assert changed == said(run, "topics", "describe", "flights")
    assert "messageRetentionDuration: 86400s" in run("topics", "describe", "flights").stdout.splitlines()
    assert {"deleted": [TOPIC]} == said(run, "topics", "delete", "flights")
    assert [] == said(run, "topics", "list", "--project", "my-project")


def test_subscriptions_of_a_topic(run: Run, emulator: Emulator):
    """The subscriptions of a topic are listed. A detached one has no backlog, and is not listed any more."""
    emulator.create_topic(TOPIC)
    emulator.create_topic("projects/my-project/topics/trains")
    emulator.create_subscription(SUB, TOPIC)
    emulator.create_subscription("projects/my-project/subscriptions/lake", TOPIC)
    emulator.create_subscription("projects/my-project/subscriptions/other", "projects/my-project/topics/trains")
    emulator.publish(TOPIC, "a")

    assert [SUB, "projects/my-project/subscriptions/lake"] == said(run, "topics", "list-subscriptions", "flights")
    assert {"detached": SUB} == said(run, "topics", "detach-subscription", "all")
    assert f"detached {SUB}" == run("topics", "detach-subscription", SUB).stdout.strip()
    assert ["projects/my-project/subscriptions/lake"] == said(run, "topics", "list-subscriptions", TOPIC)
    assert said(run, "subscriptions", "describe", "all")["detached"]
    assert (0, 1) == (emulator.backlog(SUB), emulator.backlog("projects/my-project/subscriptions/lake"))
    missing = run("topics", "list-subscriptions", "none", code=1).stderr
    assert "Topic `projects/my-project/topics/none` does not exist at `" in missing


def test_several_are_created_at_once(run: Run, emulator: Emulator):
    """Each name is a resource with the settings of the flags. Those before one that fails are reported."""
    topics = said(run, "topics", "create", "flights", "trains", "--labels", "team=data")
    subscriptions = run("subscriptions", "create", "all", "some", "--topic", "flights").stdout
    failed = run("topics", "create", "ships", "trains", "--json", code=1)

    names = [TOPIC, "projects/my-project/topics/trains"]
    assert [{"name": each, "labels": {"team": "data"}} for each in names] == topics
    assert [f"name: {SUB}", "name: projects/my-project/subscriptions/some"] == [
        line for line in subscriptions.splitlines() if line.startswith("name:")
    ]
    assert [{"name": "projects/my-project/topics/ships"}] == json.loads(failed.stdout)
    assert f"Topic `{names[1]}` exists already." in failed.stderr


def test_what_is_of_another_project(run: Run, emulator: Emulator):
    """A topic, dead-letter topic, schema, subscription or snapshot that is named by id can be of another project."""
    other = ("--project", "other")
    run("schemas", "create", "record", "--type", "avro", "--definition", RECORD % "", *other)
    run("topics", "create", "flights", *other)
    typed = said(
        run, "topics", "create", "typed", "--schema", "record", "--schema-project", "other",
        "--message-encoding", "json",
    )  # fmt: skip
    created = said(
        run, "subscriptions", "create", "all", "--topic", "flights", "--topic-project", "other",
        "--dead-letter-topic", "flights", "--dead-letter-topic-project", "other",
    )  # fmt: skip
    run("subscriptions", "create", "theirs", "--topic", "flights", *other)
    run("snapshots", "create", "before", "--subscription", "theirs", "--subscription-project", "other", *other)
    sought = said(run, "seek", "all", "--snapshot", "before", "--snapshot-project", "other")

    assert "projects/other/schemas/record" == typed["schemaSettings"]["schema"]
    assert (SUB, "projects/other/topics/flights") == (created["name"], created["topic"])
    assert "projects/other/topics/flights" == created["deadLetterPolicy"]["deadLetterTopic"]
    assert {"subscription": SUB, "to": "projects/other/snapshots/before"} == sought


def test_error_names_the_resource_that_is_missing(run: Run, emulator: Emulator):
    """The error of a command on an existing resource names the other resource, or the revision, that does not exist."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    run("schemas", "create", "record", "--type", "avro", "--definition", RECORD % "")
    encoded = ("--message-encoding", "json")
    for words, missing in (
        (("subscriptions", "update", "all", "--dead-letter-topic", "gone"), "Topic `projects/my-project/topics/gone`"),
        (("topics", "update", "flights", "--schema", "gone", *encoded), "Schema `projects/my-project/schemas/gone`"),
        (
            ("topics", "create", "typed", "--schema", "record", "--first-revision-id", "deadbeef", *encoded),
            f"Schema `{SCHEMA}@deadbeef`",
        ),
        (("schemas", "rollback", "record", "--revision-id", "deadbeef"), f"Schema `{SCHEMA}@deadbeef`"),
    ):
        assert run(*words, code=1).stderr.startswith(f"{missing} does not exist at"), words


def test_push(run: Run, emulator: Emulator):
    """A push subscription has the token and the format of the flags. An update of its endpoint replaces them."""
    emulator.create_topic(TOPIC)
    created = said(
        run, "subscriptions", "create", "all", "--topic", "flights", "--push-endpoint", "http://127.0.0.1:9/a",
        "--push-auth-service-account", "push@my-project.iam.gserviceaccount.com", "--push-auth-token-audience", "me",
        "--push-no-wrapper", "--push-no-wrapper-write-metadata",
    )["pushConfig"]  # fmt: skip
    changed = said(run, "subscriptions", "update", "all", "--push-endpoint", "http://127.0.0.1:9/b")["pushConfig"]

    token = {"serviceAccountEmail": "push@my-project.iam.gserviceaccount.com", "audience": "me"}
    assert (token, {"writeMetadata": True}) == (created["oidcToken"], created["noWrapper"])
    assert {"pushEndpoint"} == {*changed} - {"attributes"}


def test_exports(run: Run, emulator: Emulator):
    """Subscriptions that write objects and rows are created with the flags of gcloud."""
    emulator.create_topic(TOPIC)
    objects = said(
        run, "subscriptions", "create", "lake", "--topic", "flights", "--cloud-storage-bucket", "lake",
        "--cloud-storage-file-prefix", "flights/", "--cloud-storage-file-suffix", ".avro",
        "--cloud-storage-file-datetime-format", "YYYY-MM-DD/hh_mm_ssZ", "--cloud-storage-max-duration", "2m",
        "--cloud-storage-max-bytes", "20m", "--cloud-storage-max-messages", "5000",
        "--cloud-storage-output-format", "avro", "--cloud-storage-write-metadata",
    )["cloudStorageConfig"]  # fmt: skip
    rows = said(
        run, "subscriptions", "create", "rows", "--topic", "flights", "--bigquery-table", "p.d.t",
        "--use-table-schema", "--write-metadata", "--drop-unknown-fields",
    )["bigqueryConfig"]  # fmt: skip

    assert "NOT_FOUND" == objects.pop("state") == rows.pop("state")  # this emulator has neither
    assert {
        "bucket": "lake",
        "filenamePrefix": "flights/",
        "filenameSuffix": ".avro",
        "filenameDatetimeFormat": "YYYY-MM-DD/hh_mm_ssZ",
        "maxDuration": "120s",
        "maxBytes": str(20 * 2**20),
        "maxMessages": "5000",
        "avroConfig": {"writeMetadata": True},
    } == objects
    assert {"table": "p.d.t", "useTableSchema": True, "writeMetadata": True, "dropUnknownFields": True} == rows


def test_subscriptions(run: Run, emulator: Emulator):
    """A subscription has the settings of the flags. An update leaves all settings that it does not name."""
    emulator.create_topic(TOPIC)
    emulator.create_topic("projects/my-project/topics/dead")
    created = said(
        run, "subscriptions", "create", "all", "--topic", "flights", "--ack-deadline", "20",
        "--enable-message-ordering", "--message-filter", 'attributes:"k"', "--expiration-period", "never",
        "--dead-letter-topic", "dead", "--max-delivery-attempts", "7", "--min-retry-delay", "5s",
    )  # fmt: skip
    changed = said(run, "subscriptions", "update", "all", "--ack-deadline", "30", "--clear-dead-letter-policy")

    assert (20, True, 'attributes:"k"', {}) == (
        created["ackDeadlineSeconds"],
        created["enableMessageOrdering"],
        created["filter"],
        created["expirationPolicy"],
    )
    assert {"deadLetterTopic": "projects/my-project/topics/dead", "maxDeliveryAttempts": 7} == created[
        "deadLetterPolicy"
    ]
    assert {**created, "ackDeadlineSeconds": 30} == {**changed, "deadLetterPolicy": created["deadLetterPolicy"]}
    assert "deadLetterPolicy" not in changed
    assert ["all", "flights", "30", "s", "True"] == run("subscriptions", "list").stdout.splitlines()[1].split()[:5]
    run("subscriptions", "delete", "all")
    assert [] == said(run, "subscriptions", "list")


def test_schemas(run: Run, tmp_path: Path):
    """A schema is created from a file. A revision is committed, listed and compared. An incompatible one is refused."""
    (tmp_path / "r.avsc").write_text(RECORD % "")
    first = said(run, "schemas", "create", "record", "--type", "avro", "--definition-file", str(tmp_path / "r.avsc"))
    second = said(run, "schemas", "commit", "record", "--type", "avro", "--definition", RECORD % OPTIONAL)
    refused = run("schemas", "update", "record", "--definition", RECORD % ', {"name": "c", "type": "int"}', code=1)
    one, two = first["revisionId"], second["revisionId"]

    assert [two, one] == [each["revisionId"] for each in said(run, "schemas", "list-revisions", "record")]
    difference = said(run, "schemas", "diff", "record")
    assert (one, two, "compatible") == (difference["old"], difference["new"], difference["verdict"])
    assert '+      "name": "b",' in difference["diff"]
    assert f"{one} after {two}: compatible" in run("schemas", "diff", "record", two, one).stdout
    assert 1 == refused.stderr.count("\n")
    assert "commit a revision of Schema `projects/my-project/schemas/record`" in refused.stderr
    assert RECORD % "" == said(run, "schemas", "describe", f"record@{one}")["definition"]
    assert f"has no revision `zz`. It has `{two}`, `{one}`." in run("schemas", "diff", "record", "zz", code=1).stderr
    run("schemas", "delete", "record")
    assert [] == said(run, "schemas", "list")


def test_schema_revisions(run: Run):
    """A rollback commits the old definition again. A revision can be deleted."""
    one = said(run, "schemas", "create", "record", "--type", "avro", "--definition", RECORD % "")["revisionId"]
    two = said(run, "schemas", "commit", "record", "--definition", RECORD % OPTIONAL)["revisionId"]
    three = said(run, "schemas", "rollback", "record", "--revision-id", one)

    assert RECORD % "" == three["definition"]
    assert three["revisionId"] not in (one, two)
    assert {"deleted": [f"{SCHEMA}@{two}"]} == said(run, "schemas", "delete-revision", f"record@{two}")
    assert f"deleted {SCHEMA}@{one}\n" == run("schemas", "delete-revision", f"{SCHEMA}@{one}").stdout
    assert [three["revisionId"]] == [each["revisionId"] for each in said(run, "schemas", "list-revisions", "record")]
    last = run("schemas", "delete-revision", f"record@{three['revisionId']}", code=1).stderr
    assert "Cannot delete last revision" in last


def test_validation_of_definitions(run: Run):
    """A definition is checked, and no schema is created."""
    of_avro = ["schemas", "validate-schema", "--type", "avro", "--definition"]

    assert "Schema is valid.\n" == run(*of_avro, RECORD % "").stdout
    assert {"valid": True} == said(run, *of_avro, RECORD % "")
    assert "Pub/Sub refuses to validate a schema in Project `my-project`: " in run(*of_avro, "{", code=1).stderr
    assert [] == said(run, "schemas", "list")


def test_validation_of_messages(run: Run):
    """A message, of a flag or of standard input, is checked against a schema or a definition."""
    run("schemas", "create", "record", "--type", "avro", "--definition", RECORD % "")
    validate = ["schemas", "validate-message", "--message-encoding"]
    inline = ["--type", "avro", "--definition", RECORD % ""]

    assert {"valid": True} == said(run, *validate, "json", "--message", '{"a": 1}', "--schema-name", "record")
    assert "Message is valid.\n" == run(*validate, "JSON", *inline, stdin='{"a": 1}').stdout
    assert "Message is valid.\n" == run(*validate, "binary", *inline, stdin="\2").stdout
    refused = run(*validate, "json", "--message", '{"a": "x"}', "--schema-name", "record", code=1)
    assert f"Pub/Sub refuses to validate a message against Schema `{SCHEMA}`: " in refused.stderr
    refused = run(*validate, "json", "--message", '{"a": "x"}', *inline, code=1)
    assert "Pub/Sub refuses to validate a message in Project `my-project`: " in refused.stderr


def test_a_list_has_a_limit(run: Run, emulator: Emulator):
    """`--limit` is the maximum number of listed resources."""
    for each in "abc":
        emulator.create_topic(f"projects/my-project/topics/flights-{each}")

    assert [2, 3] == [len(said(run, "topics", "list", "--limit", limit)) for limit in ("2", "5")]


def test_snapshots_and_seek(run: Run, emulator: Emulator):
    """Messages acknowledged after a snapshot are redelivered when a subscription is moved to it."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC, retain_acked_messages=True)
    emulator.publish(TOPIC, b"one")
    run("snapshots", "create", "before", "--subscription", "all")
    labelled = said(run, "snapshots", "update", "before", "--update-labels", "k=v")
    run("subscriptions", "pull", "all", "--auto-ack")
    assert 0 == emulator.backlog(SUB)

    run("seek", "all", "--snapshot", "before")
    assert 1 == emulator.backlog(SUB)
    assert {"k": "v"} == labelled["labels"]
    assert [labelled] == said(run, "snapshots", "list") == [said(run, "snapshots", "describe", "before")]
    run("subscriptions", "seek", "all", "--time", "2099-01-01T00:00:00Z")
    assert 0 == emulator.backlog(SUB)
    run("snapshots", "delete", "before")
    assert "Pass either `--time` or `--snapshot`.\n" == run("seek", "all", code=2).stderr
