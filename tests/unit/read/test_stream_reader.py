"""The stream reader: SIGTERM from Spark, which ends its process, and Spark's read limits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from pubsub_spark.backend import EmulatorBackend, GcpBackend
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver import query_driver
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.rows import Rows
from pubsub_spark.read.stream_reader import PubSubStreamReader, SigtermHandler, budget, is_once
from tests.unit.read.service import SUBSCRIPTION


@pytest.fixture
def sigterm() -> Iterator[SigtermHandler]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    listening = SigtermHandler()
    listening.install()
    yield listening
    signal.signal(signal.SIGTERM, before)


def test_between_calls_it_ends_at_once(sigterm: SigtermHandler):
    with sigterm:
        pass
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)


def test_a_call_is_finished_first(sigterm: SigtermHandler):
    did = []

    def call() -> None:
        with sigterm:
            signal.raise_signal(signal.SIGTERM)
            did.append("the rest of the call")

    with pytest.raises(SystemExit):
        call()
    assert ["the rest of the call"] == did


def test_one_that_was_swallowed_ends_the_next_call(sigterm: SigtermHandler):
    """A SystemExit that was swallowed, as in a `__del__`, is raised again at the next call."""
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit), sigterm:
        pytest.fail("the call was made")


def test_stop_is_not_disturbed(sigterm: SigtermHandler):
    sigterm.ignore()
    signal.raise_signal(signal.SIGTERM)
    assert signal.SIG_DFL != signal.getsignal(signal.SIGTERM)


def test_a_handler_of_somebody_else_stays():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        SigtermHandler().install()
        assert signal.SIG_IGN == signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_read_limits_are_kept():
    """`maxMessagesPerTrigger` is Spark's limit by default. Spark's requests only lower it."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark 4.2 and later ask")
    options = ReadOptions(subscription_id=SUBSCRIPTION, max_messages_per_trigger=10, max_bytes_per_trigger=100)
    reader = PubSubStreamReader(options, EmulatorBackend("localhost:1"), Rows(options, EmulatorBackend("localhost:1")))

    assert limits.ReadMaxRows(10) == reader.getDefaultReadLimit()
    for limit, messages, volume in [
        (limits.ReadMaxRows(7), 7, 100),
        (limits.ReadMaxRows(11), 10, 100),
        (limits.ReadMaxBytes(9), 10, 9),
        (limits.ReadAllAvailable(), 10, 100),
        (None, 10, 100),
    ]:
        assert Budget(messages, volume) == budget(options, limit)


def test_all_at_once_is_one_batch():
    """Spark asks for everything if it does not ask again: for `once`, and for triggers that it runs like `once`."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark 4.2 and later ask")
    assert is_once(limits.ReadAllAvailable())
    assert not is_once(limits.ReadMaxRows(7))
    assert not is_once(None)


def test_store_has_the_credentials_of_pubsub_and_fail_after(monkeypatch: pytest.MonkeyPatch):
    """Tasks also need the credentials of `gs://`. The driver's store is the one that its partitions carry there."""
    monkeypatch.setattr(SigtermHandler, "install", lambda _: None)
    monkeypatch.setattr("pubsub_spark.logs.to_stderr", lambda level: None)
    options = ReadOptions(
        subscription_id="projects/p/subscriptions/sub", staging_location="gs://bucket/x", fail_after=60.0
    )
    backend = GcpBackend(credentials_json='{"type": "service_account"}')
    driver = Mock()
    monkeypatch.setattr(query_driver, "QueryDriver", driver)
    PubSubStreamReader(options, backend, Rows(options, backend)).reportLatestOffset()
    store = driver.call_args.args[0].store

    assert ("gs://bucket/x", '{"type": "service_account"}', 60.0) == (
        store.location,
        store.credentials_json,
        store.fail_after,
    )
