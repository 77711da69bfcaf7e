"""The doctor's findings: each fault of a machine, of options and of rights, with its remedy."""

import sys
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.backend import EmulatorBackend, GcpBackend
from pubsub_spark.cli import checks
from pubsub_spark.errors import ForbiddenError, MissingError, StagingError
from pubsub_spark.options import ReadOptions, WriteOptions
from pubsub_spark.read.staging import store

SUB, TOPIC, DEAD = "projects/p/subscriptions/sub", "projects/p/topics/news", "projects/p/topics/dead"


def program(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("version", "state"), [("1.8.0_392", "wrong"), ("17.0.15", "ok"), ("21-ea", "ok")])
def test_java_must_be_17(tmp_path: Path, version: str, state: str):
    """The Java of JAVA_HOME is named with its version. A version before 17 is wrong."""
    program(tmp_path, "bin/java", f"echo 'openjdk version \"{version}\"' >&2")

    found = checks.java({"JAVA_HOME": str(tmp_path)})

    assert (state, f"{version}, {tmp_path}/bin/java") == (found.state, found.found)


def test_missing_java(tmp_path: Path):
    """A JAVA_HOME without Java is wrong, and the remedy names the package to install."""
    found = checks.java({"JAVA_HOME": str(tmp_path)})

    assert ("wrong", "Install a JRE 17 or newer, or point JAVA_HOME at one.") == (found.state, found.remedy)


def test_this_python_as_worker():
    """Workers that run this very Python have its version and the package."""
    assert ["ok", "ok"] == [each.state for each in checks.worker_python({"PYSPARK_PYTHON": sys.executable})]


@pytest.mark.parametrize(
    ("said", "check", "sentence"),
    [
        ('{"python": "3.9.2", "executable": "x", "missing": "pubsub_spark"}', "worker's Python", "3.9.2, x"),
        (
            f'{{"python": "{sys.version.split()[0]}", "executable": "x", "missing": "pubsub_spark"}}',
            "package in workers",
            "no package `pubsub_spark`",
        ),
        (
            f'{{"python": "{sys.version.split()[0]}", "executable": "x", "pubsub_spark": "0"}}',
            "package in workers",
            "0, and the driver's is ",
        ),
        ("Traceback", "worker's Python", "does not run"),
    ],
)
def test_workers_that_are_unfit(tmp_path: Path, said: str, check: str, sentence: str):
    """A worker's Python is wrong if it has another version, no package, or another release of it."""
    python = program(tmp_path, "python", f"echo '{said}'")

    wrong = [each for each in checks.worker_python({"PYSPARK_PYTHON": python}) if each.state == "wrong"]

    assert check == wrong[0].check
    assert sentence in wrong[0].found
    assert sys.executable in wrong[0].remedy


@pytest.mark.parametrize(
    ("columns", "state", "found"),
    [
        (["message_id", "data"], "ok", "this package's source"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find", "wrong", "Spark does not find it"),
        (["messageId", "payload"], "wrong", "another source has this name"),
        ("[PUBSUB] java.lang.IllegalArgumentException", "wrong", "another source has this name"),
    ],
)
def test_names_of_the_source(columns: Any, state: str, found: str):
    """A name is ours by its columns. It may also be unknown, or another source's."""
    finding = checks.source_finding("pubsub", columns)

    assert (state, found) == (finding.state, finding.found)


def test_permissions_follow_the_options():
    """Each option that acts on a resource needs the permission for it."""
    read = ReadOptions(
        subscription_id=SUB, decode="topic", dead_letter_topic=DEAD, delete_subscription_on_stream_stop=True
    )
    write = WriteOptions(topic_id=TOPIC, encode="none")

    assert [
        (SUB, "pubsub.subscriptions.consume"),
        (SUB, "pubsub.subscriptions.delete"),
        (SUB, "pubsub.subscriptions.get"),
        (DEAD, "pubsub.topics.publish"),
        (TOPIC, "pubsub.topics.publish"),
    ] == [(each.name, each.permission) for each in checks.needed(read, write)]


def test_no_permission_on_the_subscription_if_the_topic_is_named():
    """With `topicId` the subscription is not asked for its topic."""
    read = ReadOptions(subscription_id=SUB, topic_id=TOPIC, decode="topic")

    assert [(SUB, "pubsub.subscriptions.consume"), (TOPIC, "pubsub.topics.get")] == [
        (each.name, each.permission) for each in checks.needed(read, None)
    ]


def test_permissions_on_a_schema_and_a_snapshot():
    """A named schema must be readable. A schema passed as text need not. A snapshot is for a seek."""
    named = ReadOptions(subscription_id=SUB, decode="topic", schema="record", project="p", starting_snapshot="before")
    inline = ReadOptions(subscription_id=SUB, decode="topic", schema='{"type": "record"}')

    assert ["pubsub.subscriptions.consume", "pubsub.schemas.get", "pubsub.snapshots.seek"] == [
        each.permission for each in checks.needed(named, None)
    ]
    assert "projects/p/snapshots/before" == checks.needed(named, None)[-1].name
    assert ["pubsub.subscriptions.consume"] == [each.permission for each in checks.needed(inline, None)]


class Rights:
    """Resources on which the caller has these permissions. Names in `missing` do not exist."""

    def __init__(self, *granted: str, missing: str = "", tells: bool = True) -> None:
        self._granted, self._missing, self._tells = frozenset(granted), missing, tells

    def get(self, collection: str, name: str) -> None:
        if name == self._missing:
            raise MissingError(f"Subscription `{name}` does not exist. Create it.")
        raise ForbiddenError("Looking is not allowed.")

    def granted(self, collection: str, name: str, permissions: list[str]) -> frozenset[str] | None:
        return self._granted & {*permissions} if self._tells else None


def test_permission_that_is_not_granted():
    """The role to grant is named. A caller that may not look at the resource may still have the permission."""
    wanted = checks.needed(ReadOptions(subscription_id=SUB), WriteOptions(topic_id=TOPIC, encode="none"))
    rights: Any = Rights("pubsub.subscriptions.consume")

    found = checks.permissions(rights, wanted)

    assert ["ok", "wrong"] == [each.state for each in found]
    assert "Grant the caller `roles/pubsub.publisher`." == found[1].remedy


def test_service_that_does_not_tell_permissions():
    """Permissions that the service does not report are skipped instead of wrong."""
    rights: Any = Rights(tells=False)

    assert ["skipped"] == [
        each.state for each in checks.permissions(rights, checks.needed(ReadOptions(subscription_id=SUB), None))
    ]


def test_subscription_that_the_first_start_creates():
    """With a topic a missing subscription is not a fault, but needs the right to attach it. Without a topic it is a
    fault.
    """
    wanted = checks.needed(ReadOptions(subscription_id=SUB), None)
    rights: Any = Rights("pubsub.topics.attachSubscription", missing=SUB)

    assert ["ok", "ok"] == [each.state for each in checks.permissions(rights, wanted, TOPIC)]
    [missing] = checks.permissions(rights, wanted)
    assert ("wrong", f"Subscription `{SUB}` does not exist", "Create it.") == (
        missing.state,
        missing.found,
        missing.remedy,
    )


@pytest.mark.parametrize(("seconds", "state"), [(0, "ok"), (-29, "ok"), (31, "wrong"), (-3600, "wrong")])
def test_clock_that_is_off(seconds: float, state: str):
    """A clock may be half a minute off, in either direction."""
    assert state == checks.skew(seconds).state


def test_staging_round_trip(tmp_path: Path):
    """A folder stores a file and returns it, and nothing of it remains. A file is not a folder."""
    (tmp_path / "file").touch()

    def state(name: str) -> str:
        read = ReadOptions(subscription_id=SUB, staging_location=str(tmp_path / name))
        return checks.staging(read, EmulatorBackend("127.0.0.1:1")).state

    assert "ok" == state("area")
    assert [] == [each for each in (tmp_path / "area").rglob("*") if each.is_file()]
    assert "wrong" == state("file")


def test_staging_area_is_that_of_the_options(monkeypatch: pytest.MonkeyPatch):
    """The store gets the credentials of the options and `failAfter`, as in a query."""
    opened: list[tuple[Any, ...]] = []

    def open_store(*arguments: Any) -> Any:
        opened.append(arguments)
        raise StagingError("The bucket does not exist. Create it.")

    monkeypatch.setattr(store, "open_store", open_store)
    read = ReadOptions(subscription_id=SUB, staging_location="gs://bucket/staging", fail_after=7.0)
    found = checks.staging(read, GcpBackend(None, '{"type": "service_account"}'))

    assert [("gs://bucket/staging", '{"type": "service_account"}', 7.0)] == opened
    assert ("wrong", "The bucket does not exist", "Create it.") == (found.state, found.found, found.remedy)


def test_endpoint_that_nobody_serves():
    """An address that refuses connections is wrong."""
    assert ("wrong", True) == (
        (found := checks.endpoint("127.0.0.1:1")).state,
        found.found.startswith("127.0.0.1:1: "),
    )


def test_endpoint_behind_a_proxy(monkeypatch: pytest.MonkeyPatch):
    """If calls go through a proxy, this machine need not reach the endpoint."""
    monkeypatch.setenv("https_proxy", "http://proxy:3128")

    assert ("skipped", "192.0.2.1:443 is called through the proxy of `https_proxy`") == (
        (found := checks.endpoint("192.0.2.1:443")).state,
        found.found,
    )
