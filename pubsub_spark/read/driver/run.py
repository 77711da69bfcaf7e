"""The open objects of a running query on the driver, shared by Spark's calls and the background threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...backend import Connection
from ..pull.driver_stream import DriverStream
from ..runtime import Runtime
from ..staging.area import Staging
from ..staging.schemas import ReaderSchema
from .ledger import AckLedger
from .report import NO_REPORT, Report


@dataclass(frozen=True)
class Run:
    """One run of a query, from its first call to `close`.

    changed: a Condition, held around each use of `ledger` and never while anything waits. Notified when acks are due or
    answered. staged: batches that earlier runs have staged. leased_until: until when messages of an earlier run are
    delivered, on the lease clock. topic: of the subscription, if it is known. reader_schema, reader: the schema that
    batches are decoded with, and its name in the staging area.
    """

    connection: Connection
    staging: Staging
    ledger: AckLedger
    stream: DriverStream
    changed: Any
    runtime: Runtime
    staged: frozenset[int] = frozenset()
    leased_until: float = 0.0
    topic: str | None = None
    reader_schema: ReaderSchema | None = None
    reader: str | None = None
    report: Report = NO_REPORT

    def now(self) -> float:
        """Return the seconds on the lease clock, which the ledger uses."""
        return self.runtime.boottime()

    @property
    def subscription(self) -> str:
        return self.staging.subscription
