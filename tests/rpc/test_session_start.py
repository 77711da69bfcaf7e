"""The start of a query: the subscription that it finds or creates, permissions, positions. And its deletion."""

from __future__ import annotations

import datetime
import errno
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api.errors import Code
from pubsub_spark.emulator.handlers import iam
from pubsub_spark.errors import ForbiddenError, MissingError, OptionsError, ResourceError, StagingError
from pubsub_spark.read.driver.query_driver import QueryDriver
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.staging import fencing
from tests.conftest import Names
from tests.engine import Engine, until
from tests.rpc.conftest import Client
from tests.rpc.session import (
    LEASE,
    acked,
    buffered,
    die_in_a_batch,
    google,
    run_until,
    start_and_acknowledge,
    start_with,
)


def test_missing_subscription_is_created_with_its_settings(emulator: Emulator, names: Names, query: Engine):
    """`topicId` names the topic. Every setting that was passed is on the subscription."""
    name = f"{names.subscription}-new"
    query.options = replace(
        query.options,
        subscription_id=name,
        topic_id=names.topic,
        enable_message_ordering=True,
        enable_exactly_once_delivery=True,
        filter='attributes.kind = "x"',
    )
    query.start()
    query.trigger()
    found = google(emulator).get_subscription(subscription=name)

    assert (names.topic, True, True, 'attributes.kind = "x"') == (
        found.topic,
        found.enable_message_ordering,
        found.enable_exactly_once_delivery,
        found.filter,
    )


def test_missing_subscription_without_topic(query: Engine, names: Names):
    """The error of a missing subscription names the missing resource, and the option that would create it."""
    query.options = replace(query.options, subscription_id=f"{names.subscription}-missing")
    query.start()
    with pytest.raises(MissingError, match="With `topicId` the connector creates it"):
        query.trigger()


def test_subscription_that_another_query_creates_meanwhile(emulator: Emulator, names: Names, query: Engine):
    """A subscription that another query creates between our get and our create is read."""
    query.options = replace(query.options, topic_id=names.topic)
    emulator.fail("GetSubscription", "NOT_FOUND")
    emulator.publish(names.topic, "a")
    query.start()
    run_until(query, 1)

    assert ["a"] == query.rows


def test_subscription_of_another_topic_is_refused(names: Names, query: Engine):
    """`topicId` creates missing resources. A subscription of another topic has other messages than expected."""
    query.options = replace(query.options, topic_id=f"{names.topic}-other")
    query.start()
    with pytest.raises(OptionsError, match=f"`topicId` is `{names.topic}-other`, but .* of `{names.topic}`. Correct"):
        query.trigger()


def test_checkpoint_of_another_subscription_is_refused(names: Names, query: Engine):
    """A checkpoint of another subscription is refused. Nothing is read or acknowledged."""
    start_and_acknowledge(query, names, "a")
    query.stop()
    query.emulator.create_subscription(f"{names.subscription}-other", names.topic)
    query.options = replace(query.options, subscription_id=f"{names.subscription}-other")
    query.start()
    with pytest.raises(OptionsError, match=f"belongs to a query of `{names.subscription}`, not of .*-other`. Use"):
        query.trigger()


def announced(query: Engine, names: Names) -> tuple[QueryDriver, Offset]:
    """Start a query that deletes its subscription, and return it with the end of its first batch."""
    query.options = replace(query.options, delete_subscription_on_stream_stop=True)
    start_with(query, names, "a")
    session = query.session
    assert session is not None
    return session, session.latest_offset(session.initial_offset(), query.budget)


def test_subscription_is_kept_when_a_batch_is_in_doubt(
    emulator: Emulator, names: Names, query: Engine, caplog: pytest.LogCaptureFixture
):
    """A query that ends in the middle of a batch does not delete its subscription, and a WARNING reports it."""
    session, end = announced(query, names)
    session.partitions(session.initial_offset(), end)
    query.stop()

    assert names.subscription == emulator_subscription(emulator, names)
    assert f"`{names.subscription}` is not deleted" in caplog.text


def test_subscription_is_kept_when_the_query_failed(emulator: Emulator, names: Names, query: Engine):
    """A query that has failed deletes nothing."""
    query.options = replace(query.options, delete_subscription_on_stream_stop=True)
    query.start()
    query.trigger()
    until(lambda: emulator.close_streams("PERMISSION_DENIED"), "an open stream")
    with pytest.raises(ForbiddenError):
        run_until(query, 1)
    query.stop()

    assert names.subscription == emulator_subscription(emulator, names)


def test_subscription_is_kept_when_a_batch_could_not_be_planned(
    emulator: Emulator, names: Names, query: Engine, caplog: pytest.LogCaptureFixture
):
    """Spark has its offset already, and its messages are unread. Another query may have taken over."""
    session, end = announced(query, names)
    assert session.active is not None
    fencing.claim(session.active.run.staging, time.time())
    with pytest.raises(StagingError, match="Another query has taken over"):
        session.partitions(session.initial_offset(), end)
    query.stop()

    assert names.subscription == emulator_subscription(emulator, names)
    assert f"`{names.subscription}` is not deleted" in caplog.text


@pytest.mark.parametrize("is_asked", [True, False])
def test_subscription_is_kept_when_a_batch_is_announced_or_spark_has_died(
    emulator: Emulator, names: Names, query: Engine, is_asked: bool
):
    """Spark may have the batch in its offset log. PySpark also stops a reader whose Spark was killed."""
    session, _ = announced(query, names)
    if not is_asked:
        query.stop()
        query.start()
        assert query.session is not None
        session = query.session
    session.close(is_asked)
    query.session = None

    assert names.subscription == emulator_subscription(emulator, names)


def test_subscription_of_another_query_is_kept(
    emulator: Emulator, names: Names, query: Engine, caplog: pytest.LogCaptureFixture
):
    """It reads from the same checkpoint, while this one was idle."""
    query.options = replace(query.options, delete_subscription_on_stream_stop=True)
    query.start()
    query.trigger()
    session = query.session
    assert session is not None and session.active is not None
    fencing.claim(session.active.run.staging, time.time())
    query.stop()

    assert names.subscription == emulator_subscription(emulator, names)
    assert "is not deleted (deleteSubscriptionOnStreamStop): Another query has taken over" in caplog.text


def emulator_subscription(emulator: Emulator, names: Names) -> str:
    """Return the name of the subscription, as the service returns it."""
    return str(google(emulator).get_subscription(subscription=names.subscription).name)


@pytest.mark.parametrize("permission", ["pubsub.subscriptions.consume", "pubsub.subscriptions.delete"])
def test_missing_permission_is_an_error_at_the_start(
    names: Names, query: Engine, monkeypatch: pytest.MonkeyPatch, permission: str
):
    """The permissions that the options need are checked before the first message, and the error names the one."""
    granted = {"pubsub.subscriptions.consume", "pubsub.subscriptions.delete"} - {permission}
    monkeypatch.setitem(iam.PERMISSIONS, "subscriptions", {name.rpartition(".")[2] for name in granted})
    query.options = replace(query.options, delete_subscription_on_stream_stop=True)
    query.start()

    with pytest.raises(ForbiddenError, match=f"{permission} is not granted"):
        query.trigger()


@pytest.mark.parametrize(("code", "warns"), [("INTERNAL", True), ("UNIMPLEMENTED", False)])
def test_permissions_that_cannot_be_asked_for_do_not_stop_the_query(
    emulator: Emulator, names: Names, query: Engine, caplog: pytest.LogCaptureFixture, code: Code, warns: bool
):
    """If the service cannot report the permissions, a WARNING is logged. An emulator may not know the call."""
    emulator.fail("TestIamPermissions", code, count=9)
    emulator.publish(names.topic, "a")
    query.start()
    run_until(query, 1)

    assert warns == ("is granted on Subscription" in caplog.text)


@pytest.mark.parametrize("created", [False, True])
def test_settings_of_a_subscription_that_exists_are_not_changed(
    emulator: Emulator, names: Names, query: Engine, caplog: pytest.LogCaptureFixture, created: bool
):
    """A WARNING names the options that differ from the subscription. A query that has created its own has none."""
    query.options = replace(
        query.options,
        subscription_id=f"{names.subscription}-new" if created else names.subscription,
        topic_id=names.topic,
        enable_message_ordering=True,
        filter="attributes:kind",
    )
    query.start()
    query.trigger()
    query.stop()
    query.start()
    query.trigger()

    lines = [each.partition(" exists with other settings than ")[2] for each in caplog.messages]
    differing = "`enableMessageOrdering`, `filter`"
    assert ([] if created else [differing] * 2) == [line.partition(", which")[0] for line in lines if line]
    assert google(emulator).get_subscription(subscription=query.options.subscription).enable_message_ordering == created


def test_dead_letter_topic_is_checked_at_the_start(names: Names, query: Engine):
    """A `deadLetterTopic` that does not exist is an error before the first message."""
    query.options = replace(query.options, decode="topic", dead_letter_topic=f"{names.topic}-dead")
    query.start()

    with pytest.raises(MissingError, match=f"Topic `{names.topic}-dead` does not exist"):
        query.trigger()


def test_staging_area_is_checked_at_the_start(
    emulator: Emulator, names: Names, query: Engine, monkeypatch: pytest.MonkeyPatch
):
    """A store that refuses writes is an error before the first message, and before anything is created."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(obstore, "put", refuse)
    query.options = replace(query.options, subscription_id=f"{names.subscription}-new", topic_id=names.topic)
    query.start()

    with pytest.raises(StagingError, match=r"cannot be used: .*Permission denied.* where driver and executors"):
        query.trigger()
    assert [names.subscription] == [
        found.name for found in google(emulator).list_subscriptions(project=f"projects/{names.project}")
    ]


def test_subscription_is_deleted_on_stop(emulator: Emulator, names: Names, query: Engine):
    """`deleteSubscriptionOnStreamStop` leaves nothing behind."""
    query.options = replace(query.options, delete_subscription_on_stream_stop=True)
    query.start()
    query.trigger()
    query.stop()

    assert [] == list(google(emulator).list_subscriptions(project=f"projects/{names.project}"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"push_config": {"push_endpoint": "https://example.com/push"}}, "pushes its messages to an endpoint"),
        ({"bigquery_config": {"table": "p.d.t"}}, "writes its messages to BigQuery"),
        ({"cloud_storage_config": {"bucket": "some-bucket"}}, "writes its messages to Cloud Storage"),
    ],
)
def test_subscription_that_is_not_pulled_is_refused(
    emulator: Emulator, names: Names, query: Engine, settings: dict[str, Any], says: str
):
    """Push, BigQuery and Cloud Storage subscriptions cannot be pulled, which is an error at the start."""
    name = f"{names.subscription}-elsewhere"
    emulator.create_subscription(name, names.topic, **settings)
    query.options = replace(query.options, subscription_id=name)
    query.start()
    with pytest.raises(ResourceError, match=says) as refused:
        query.trigger()
    assert name in str(refused.value)


def test_detached_subscription_is_refused(emulator: Emulator, names: Names, query: Engine):
    """A subscription that its topic's owner has detached never gets a message again."""
    Client(emulator.endpoint).ask("Publisher/DetachSubscription", subscription=names.subscription)
    query.start()
    with pytest.raises(ResourceError, match=f"`{names.subscription}` is detached from its topic"):
        query.trigger()


def _read_a_and_after_a_restart_b(query: Engine, names: Names) -> None:
    """The seek brings `a`. The restart does not seek again."""
    query.start()
    run_until(query, 1)
    acked(query, 1)
    query.stop()
    query.start()
    query.emulator.publish(names.topic, "b")
    run_until(query, 2)
    assert ["a", "b"] == query.rows


def test_start_goes_back_to_a_snapshot(emulator: Emulator, names: Names, query: Engine):
    """`startingSnapshot` delivers messages unacknowledged at the time of the snapshot to a new checkpoint, once."""
    snapshot = f"projects/{names.project}/snapshots/before"
    emulator.publish(names.topic, "a")
    google(emulator).create_snapshot(name=snapshot, subscription=names.subscription)
    other = Engine(emulator, query.options, f"{query.location}/other")
    other.start()
    acked(other, 1)
    other.stop()

    query.options = replace(query.options, starting_snapshot=snapshot)
    _read_a_and_after_a_restart_b(query, names)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"starting_snapshot": "projects/{p}/snapshots/nope"}, "Snapshot `projects/{p}/snapshots/nope`"),
        ({"subscription_id": "new-sub", "topic_id": "nope"}, "Topic `projects/{p}/topics/nope`"),
    ],
)
def test_what_is_missing_is_what_is_named(names: Names, query: Engine, given: dict[str, str], missing: str):
    """The error names the missing snapshot or topic, not the subscription."""
    fields: dict[str, Any] = {name: value.format(p=names.project, topic=names.topic) for name, value in given.items()}
    query.options = replace(query.options, project=names.project, **fields)
    query.start()

    with pytest.raises(MissingError, match=f"^{missing.format(p=names.project)} does not exist"):
        query.trigger()


def test_restart_after_an_empty_batch_does_not_seek(emulator: Emulator, names: Names, query: Engine):
    """Spark has committed an empty batch, and the snapshot has expired: nothing was staged yet."""
    snapshot = f"projects/{names.project}/snapshots/expiring"
    google(emulator).create_snapshot(name=snapshot, subscription=names.subscription)
    query.options = replace(query.options, starting_snapshot=snapshot)
    query.start()
    query.trigger()
    query.crash()
    google(emulator).delete_snapshot(snapshot=snapshot)
    emulator.publish(names.topic, "a")
    query.start()
    run_until(query, 1)

    assert ["a"] == query.rows


def test_start_seeks_once(emulator: Emulator, names: Names, query: Engine):
    """`startingTimestamp` takes a new checkpoint back in time, and does not move a restart."""
    name = f"{names.subscription}-kept"
    emulator.create_subscription(name, names.topic, retain_acked_messages=True)
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1)
    other = Engine(emulator, replace(query.options, subscription_id=name), f"{query.location}/other")
    emulator.publish(names.topic, "a")
    other.start()
    acked(other, 1)
    other.stop()

    query.options = replace(query.options, subscription_id=name, starting_timestamp=before)
    _read_a_and_after_a_restart_b(query, names)


def test_start_does_not_seek_again_without_its_staging_area(emulator: Emulator, names: Names, query: Engine):
    """A job passes the time of each start. A cleaner removes the files of the first one, which died in a batch."""

    def start() -> None:
        query.options = replace(query.options, starting_timestamp=datetime.datetime.now(datetime.UTC))
        query.start()

    start()
    query.trigger()
    emulator.publish(names.topic, "a")
    buffered(query, 1)
    die_in_a_batch(query, 1)
    shutil.rmtree(query.location)
    start()
    query.trigger()
    emulator.advance(LEASE)
    run_until(query, 1)

    assert ["a"] == query.rows


def test_subscription_that_vanished_is_created_again_with_a_warning(
    emulator: Emulator, names: Names, query: Engine, caplog: pytest.LogCaptureFixture
):
    """It was deleted or has expired, so messages may be lost."""
    query.options = replace(query.options, topic_id=names.topic)
    start_and_acknowledge(query, names, "a")
    query.stop()
    google(emulator).delete_subscription(subscription=names.subscription)
    assert "created again" not in caplog.text
    query.start()
    query.trigger()

    assert f"`{names.subscription}` was deleted or has expired since the last run, and is created again" in caplog.text


@pytest.mark.parametrize("passes_start", [True, False])
def test_batch_whose_files_are_on_another_machine_is_not_acknowledged_later(
    names: Names, query: Engine, caplog: pytest.LogCaptureFixture, passes_start: bool
):
    """Both machines have the same local path. The second one replays the batch without rows, and says so."""
    query.passes_start, query.location = passes_start, f"{query.location}/staging"
    start_and_acknowledge(query, names, "first")
    query.emulator.publish(names.topic, "a")
    buffered(query, 1)
    die_in_a_batch(query, 1)
    here = Path(query.location)
    here.rename(here.with_name("machine-1"))
    query.start()
    query.trigger()  # the replay
    query.trigger()  # a batch that says where the query continues
    query.crash()
    assert "If the files are on another machine or disk, do not return to them" in caplog.text

    here.rename(here.with_name("machine-2"))
    here.with_name("machine-1").rename(here)
    query.start()
    query.trigger()
    query.sleep(2 * LEASE)
    run_until(query, 2)

    assert ["first", "a"] == query.rows


@pytest.mark.parametrize("passes_start", [True, False])
def test_single_batch_of_a_run_without_its_area_has_rows(names: Names, query: Engine, passes_start: bool):
    """Each scheduled run is on a fresh machine. Its only batch also says where the query continues."""
    query.passes_start, query.location = passes_start, f"{query.location}/staging"
    for number in range(4):
        query.emulator.publish(names.topic, str(number))
        query.start()
        if passes_start:
            assert query.session is not None
            query.session.prepare_for_once()
        query.trigger()
        query.stop()
        assert str(number) in query.written[number]
        shutil.rmtree(query.location)
        query.sleep(2 * LEASE)


def test_checkpoint_from_before_a_lost_area_is_behind(names: Names, query: Engine):
    """The query continued in another stream, where later batches were acknowledged and deleted."""
    query.location = f"{query.location}/staging"
    start_and_acknowledge(query, names, "first")
    query.stop()
    shutil.rmtree(query.location)
    offsets, committed = [*query.offsets], query.committed
    query.start()
    for count, text in enumerate("ab", 2):
        query.emulator.publish(names.topic, text)
        run_until(query, count)
        acked(query, count)
    query.stop()
    query.offsets, query.committed = offsets, committed
    query.start()

    with pytest.raises(StagingError, match=r"is at batch \d, but batches up to \d were acknowledged and deleted"):
        query.trigger()


def test_killed_starts_without_an_area_share_a_folder(names: Names, query: Engine):
    """No run has put a batch into the offset log yet."""
    query.location = f"{query.location}/staging"
    start_and_acknowledge(query, names, "first")
    query.stop()
    shutil.rmtree(query.location)
    for _ in range(3):
        query.start()
        assert query.session is not None
        query.session.latest_offset(query.offsets[-1], query.budget)
        query.crash()

    assert 2 == len([*Path(query.location).glob("*/*/*")])


@pytest.mark.parametrize("batch", [1, 0])
def test_offset_of_sparks_wrapper_is_refused(names: Names, query: Engine, batch: int):
    """On Spark 4.0 it asks for a batch without the committed offset. Its batches would have no rows."""
    query.start()
    assert query.session is not None
    at = query.session.initial_offset()
    with pytest.raises(OptionsError, match=r"triggerAvailableNowWrapper\.enabled"):
        query.session.partitions(replace(at, stream="of-the-checkpoint", batch=1), replace(at, batch=batch))
