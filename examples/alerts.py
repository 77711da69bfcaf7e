"""Alerts, and a text file for Prometheus, from what Spark reports of `format("pubsub")` queries.

    spark.streams.addListener(PubSubListener("/var/lib/node_exporter/pubsub.prom", alert=print))

Runs on the driver, in the Python process of the application. Spark calls a listener after each batch; of an idle query
it says every ten seconds that it is idle, and the metrics of that moment are then in its `lastProgress`. The file has
the format that node_exporter's textfile collector reads; Spark's own metrics system takes no metrics of a Python
source. What each metric means: docs/operations.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
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


def alerts(metrics: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a source: the name of a rule, and a sentence."""
    if not metrics["connected"]:
        yield "disconnected", f"no connection to Pub/Sub (last error: {metrics['lastError'] or 'none'})"
    if metrics["intakePaused"]:
        yield "paused", f"nothing is read, because {metrics['unackedBatches']} batches wait for their acks"
    if metrics["oldestUnackedSeconds"] > OLDEST_SECONDS:
        yield "late", f"a message has waited for {metrics['oldestUnackedSeconds']:.0f} s"


def pubsub_metrics(progress: StreamingQueryProgress) -> Iterator[dict[str, Any]]:
    """The metrics of each Pub/Sub source in a progress; of none before Spark has asked for them."""
    for source in progress.sources:
        metrics = json.loads(source.latestOffset or "null")
        if isinstance(metrics, dict) and "subscription" in metrics:
            yield metrics


def prometheus_lines(query: str, metrics: dict[str, Any]) -> Iterator[str]:
    """The lines of a source: a name, labels and a number each; texts have none."""
    labels = f'query={json.dumps(query)},subscription="{metrics["subscription"]}"'
    for name, value in metrics.items():
        if isinstance(value, int | float):
            snake_case = re.sub("([A-Z])", r"_\1", name).lower()
            yield f"pubsub_spark_{snake_case}{{{labels}}} {float(value):g}\n"


class PubSubListener(StreamingQueryListener):
    """The listener of all queries of a session. alert: called with a sentence when something goes wrong or is over."""

    def __init__(self, file: str, alert: Callable[[str], object]) -> None:
        self._file = Path(file)
        self._alert = alert
        self._lines: dict[str, str] = {}  # by query id
        self._wrong: dict[str, dict[str, str]] = {}  # by query id: sentences by subscription and rule

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is no progress yet."""

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
        """Remove the query's lines, and say why it failed."""
        if event.exception is not None:
            self._alert(f"query {event.id} failed: {event.exception.splitlines()[0]}")
        self._lines.pop(str(event.id), None)
        self._wrong.pop(str(event.id), None)
        self._write()

    def _report(self, progress: StreamingQueryProgress) -> None:
        query, name = str(progress.id), progress.name or str(progress.id)
        sources = list(pubsub_metrics(progress))
        wrong = {
            f"{metrics['subscription']} {rule}": sentence for metrics in sources for rule, sentence in alerts(metrics)
        }
        before = self._wrong.get(query, {})
        for what in wrong.keys() - before.keys():  # once at the beginning, and not when its sentence changes
            self._alert(f"query {name}, {what}: {wrong[what]}")
        for what in before.keys() - wrong.keys():
            self._alert(f"query {name}, {what}: over")
        self._wrong[query] = wrong
        self._lines[query] = "".join(line for metrics in sources for line in prometheus_lines(name, metrics))
        self._write()

    def _write(self) -> None:
        """Replace the file in one step: a collector must not read half of it."""
        new = self._file.with_suffix(".new")
        new.write_text("".join(self._lines.values()))
        new.replace(self._file)
