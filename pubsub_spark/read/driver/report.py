"""The metrics of a run as a file for Prometheus: one per subscription, in `metricsLocation`.

Counters continue over the runs of a query: a run reads the file of the last one and adds to it. A file that cannot be
written is a WARNING, never a failed or delayed query.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import StagingError
from ..staging.store import Store

_COUNTERS = frozenset(
    {
        "reopenedStreams",
        "messages",
        "bytes",
        "redeliveriesDropped",
        "malformed",
        "deadLetters",
        "ackedMessages",
        "failedAcks",
        "leasesExtended",
        "outageSeconds",
    }
)
_SAMPLE = re.compile(r"^(\w+_total)\{[^}]*\} (\S+)$", re.MULTILINE)
_log = logging.getLogger(__name__)


class Report:
    """The file of one run. store: of `metricsLocation`, or None, which writes nothing."""

    def __init__(self, store: Store | None, subscription: str) -> None:
        self._store = store
        self._subscription = subscription
        self._path = f"{'-'.join(subscription.split('/')[1::2])}.prom"
        self._before: Mapping[str, float] | None = None  # the counters of earlier runs, once they are read
        self._has_failed = False

    def write(self, metrics: Mapping[str, Any], now: float) -> None:
        """Replace the file. metrics: those of `lastProgress`. now: seconds since the epoch."""
        if self._store is None:
            return
        try:
            if self._before is None:
                content = bytes(self._store.read(self._path) or b"").decode(errors="replace")
                self._before = {name: float(value) for name, value in _SAMPLE.findall(content)}
            self._store.put(self._path, "".join(self._lines(metrics, now)).encode())
        except (StagingError, ValueError) as error:
            if not self._has_failed:
                _log.warning("the metrics of `%s` are not written: %s", self._subscription, error)
            self._has_failed = True
        else:
            self._has_failed = False

    def _lines(self, metrics: Mapping[str, Any], now: float) -> Iterator[str]:
        before = self._before or {}
        for name, value in {**metrics, "writtenTimestampSeconds": now}.items():
            if isinstance(value, int | float):  # texts have no place here
                sample = "pubsub_spark_" + re.sub("([A-Z])", r"_\1", name).lower()
                kind = "gauge"
                if name in _COUNTERS:
                    sample, kind = f"{sample}_total", "counter"
                    value += before.get(sample, 0)
                yield f'# TYPE {sample} {kind}\n{sample}{{subscription="{self._subscription}"}} {float(value):.15g}\n'


NO_REPORT = Report(None, "")
