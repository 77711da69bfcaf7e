"""Alerts from what Spark reports of `format("pubsub")` queries (Spark 4.2 and later).

    spark.streams.addListener(PubSubListener(alert=print))

Runs on the driver, in the Python process of the application. Spark calls a listener after each batch; of an idle query
it says every ten seconds that it is idle, and the metrics of that moment are then in its `lastProgress`. On older
Sparks, and for Prometheus, the option `metricsLocation` has the same metrics. What each means: docs/operations.md.
"""

from __future__ import annotations

import json
import re
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

OLDEST_SECONDS = 600


def alerts(metrics: dict[str, Any], before: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a source: the name of a rule, and a sentence. before: the metrics of the last report."""
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
    """The metrics of each Pub/Sub source in a progress; of none before Spark has asked for them."""
    for source in progress.sources:
        if source.latestOffset.startswith("{"):  # else "None"
            metrics = json.loads(source.latestOffset)
            if "subscription" in metrics:
                yield metrics


def sentence_of(exception: str) -> str:
    """The sentence of the connector in the error of a query, which begins with a traceback of Python; or its start."""
    ours = re.findall(r"^pubsub_spark\.errors\.\w+: (.+)$", exception, re.MULTILINE)
    return ours[-1] if ours else exception.strip().splitlines()[0]


class PubSubListener(StreamingQueryListener):
    """The listener of all queries of a session. alert: called with a sentence when something goes wrong or is over."""

    def __init__(self, alert: Callable[[str], object]) -> None:
        self._alert = alert
        self._names: dict[str, str] = {}  # by query id, like the others
        self._wrong: dict[str, dict[str, str]] = {}  # sentences by subscription and rule
        self._before: dict[str, dict[str, dict[str, Any]]] = {}  # the last metrics, by subscription

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Remember the query's name."""
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report a batch."""
        self._report(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Report an idle query, which may be one that has lost its connection."""
        spark = SparkSession.getActiveSession()
        query = None if spark is None else spark.streams.get(str(event.id))
        if query is not None and query.lastProgress is not None:
            self._report(query.lastProgress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Say why a query failed."""
        name = self._names.pop(str(event.id), str(event.id))
        if event.exception is not None:
            self._alert(f"query {name} failed: {sentence_of(event.exception)}")
        self._wrong.pop(str(event.id), None)
        self._before.pop(str(event.id), None)

    def _report(self, progress: StreamingQueryProgress) -> None:
        query, name = str(progress.id), progress.name or str(progress.id)
        last = self._before.get(query, {})
        sources = {metrics["subscription"]: metrics for metrics in pubsub_metrics(progress)}
        wrong = {
            f"{subscription} {rule}": sentence
            for subscription, metrics in sources.items()
            for rule, sentence in alerts(metrics, last.get(subscription, {}))
        }
        before = self._wrong.get(query, {})
        for what in wrong.keys() - before.keys():  # once at the beginning, and not when its sentence changes
            self._alert(f"query {name}, {what}: {wrong[what]}")
        for what in before.keys() - wrong.keys():
            self._alert(f"query {name}, {what}: over")
        self._wrong[query], self._before[query] = wrong, sources
