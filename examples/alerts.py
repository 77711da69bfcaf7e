"""Alerts from the metrics of `format("pubsub")` queries (Spark 4.2 and later).

    spark.streams.addListener(PubSubListener(alert=print))

Runs on the driver, in the Python process of the application. Spark calls a listener after each batch, and every ten
seconds for an idle query, whose `lastProgress` then has new metrics. On older versions of Spark, and for Prometheus,
the option `metricsLocation` writes the same metrics. docs/operations.md explains each of them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

OLDEST_SECONDS = 600


def alerts(metrics: dict[str, Any], before: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each rule that a source breaks, and a message. before: the metrics of the last report."""
    if not metrics["connected"]:
        yield "disconnected", f"no connection to Pub/Sub (last error: {metrics['lastError'] or 'none'})"
    if metrics["intakePaused"]:
        yield "paused", f"nothing is read, because {metrics['unackedBatches']} batches wait for their acks"
    if metrics["oldestUnackedSeconds"] > OLDEST_SECONDS:
        yield "late", f"a message has waited for {metrics['oldestUnackedSeconds']:.0f} s"
    if metrics["deadLetters"] > before.get("deadLetters", 0):
        yield "dead letters", f"{metrics['deadLetters']} payloads could not be decoded and are dead letters"
    if metrics["unackedBatches"] > 1 and metrics["ackedMessages"] == before.get("ackedMessages"):
        yield "acks", f"no ack was accepted since the last report, and {metrics['unackedBatches']} batches wait"


def pubsub_metrics(progress: StreamingQueryProgress) -> Iterator[dict[str, Any]]:
    """Yield the metrics of each Pub/Sub source in a progress. Spark asks for the first ones after a batch."""
    for source in progress.sources:
        if source.latestOffset.startswith("{"):  # else "None"
            metrics = json.loads(source.latestOffset)
            if "subscription" in metrics:
                yield metrics


def message_of(exception: str) -> str:
    """Return the connector's message in the error of a query, or else the first line of the error."""
    ours = re.findall(r"^pubsub_spark\.errors\.\w+: (.+)$", exception, re.MULTILINE)
    return ours[-1] if ours else exception.strip().splitlines()[0]


class PubSubListener(StreamingQueryListener):
    """The listener of all queries of a session. alert: called with a message when a problem begins or ends."""

    def __init__(self, alert: Callable[[str], object]) -> None:
        self._alert = alert
        self._names: dict[str, str] = {}  # by query id, like the others
        self._problems: dict[str, dict[str, str]] = {}  # messages by subscription and rule
        self._before: dict[str, dict[str, dict[str, Any]]] = {}  # the last metrics, by subscription

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Remember the query's name."""
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report a batch."""
        self._report(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Report an idle query. It may have lost its connection."""
        spark = SparkSession.getActiveSession()
        query = None if spark is None else spark.streams.get(str(event.id))
        if query is not None and query.lastProgress is not None:
            self._report(query.lastProgress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Report why a query failed."""
        query = str(event.id)
        if event.exception is not None:
            self._alert(f"query {self._names.get(query, query)} failed: {message_of(event.exception)}")
        self._problems.pop(query, None)
        self._before.pop(query, None)
        self._names.pop(query, None)  # last: `wait_for_end` waits for it

    def wait_for_end(self, query: StreamingQuery, seconds: float = 10) -> None:
        """Wait until the end of a query was reported, which is a moment after `awaitTermination` has returned."""
        end = time.monotonic() + seconds
        while str(query.id) in self._names and time.monotonic() < end:
            time.sleep(0.05)

    def _report(self, progress: StreamingQueryProgress) -> None:
        query, name = str(progress.id), progress.name or str(progress.id)
        last = self._before.get(query, {})
        sources = {metrics["subscription"]: metrics for metrics in pubsub_metrics(progress)}
        problems = {
            f"{subscription} {rule}": message
            for subscription, metrics in sources.items()
            for rule, message in alerts(metrics, last.get(subscription, {}))
        }
        before = self._problems.get(query, {})
        for problem in problems.keys() - before.keys():  # once at the beginning, also if its message changes
            self._alert(f"query {name}, {problem}: {problems[problem]}")
        for problem in before.keys() - problems.keys():
            self._alert(f"query {name}, {problem}: over")
        self._problems[query], self._before[query] = problems, sources
