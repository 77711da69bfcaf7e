"""The start of a run: connect, take over the staging area, and make the ledger from its files.

batches up to the last deleted one    files that a late task staged, never rows: deleted
later ones up to the checkpoint's     committed, acks unknown: sent now. Their leases count as ended
later ones                            not committed: Spark asks for them, and they are replayed
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...backend import Backend
from ...errors import StagingError
from ...memory import keep_freed_memory
from ...options import ReadOptions
from ..offset import Offset
from ..pull.driver_stream import MAX_BYTES, MAX_MESSAGES, DriverStream
from ..pull.lease import STREAM_LEASE_SECONDS, pull_lease_seconds
from ..pull.streaming_pull import StreamSettings
from ..runtime import SYSTEM, Runtime
from ..staging import fencing
from ..staging.area import ACKNOWLEDGED, SCHEMAS, Staging
from ..staging.schemas import ReaderSchema, stage_reader
from ..staging.store import Store
from . import subscription
from .batches import readable_parts
from .in_doubt import DOUBT_SECONDS, InDoubt
from .in_doubt_files import read_in_doubt
from .ledger import AckLedger
from .report import Report
from .run import Run
from .times import DRIVER_TIMES, DriverTimes

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """The arguments of a run's start."""

    options: ReadOptions
    backend: Backend
    store: Store
    runtime: Runtime = SYSTEM
    reader: ReaderSchema | None = None  # of the payloads
    times: DriverTimes = DRIVER_TIMES
    max_buffered: int = MAX_MESSAGES  # messages of the driver stream
    metrics_store: Store | None = None

    @property
    def area(self) -> str:
        """The digest of the staging location, see `Offset`."""
        return Staging(self.store, self.options.subscription, stream="").area

    def run(
        self, start: Offset, is_replay: bool, is_stopping: Callable[[], bool] = lambda: False, is_first: bool = False
    ) -> Run:
        """Return a new run after the batch `start`. is_replay: whether Spark asks for the next batch again. is_first:
        whether its checkpoint is new.

        Raises ResourceError, StagingError or ServiceError if the subscription or the staging area cannot be used, or
        the query was stopped meanwhile.
        """
        keep_freed_memory()
        options, runtime = self.options, self.runtime
        staging = Staging(self.store, options.subscription, start.stream)
        if is_replay and start.area not in (None, staging.area):
            self._report_other_area(start.batch + 1)
        staging.write_token()
        # Other files may have the staged batches: in another location, on another machine, or on a disk that is not
        # mounted now. They are not replayed now. A later run there would acknowledge them if the stream were the same.
        successor = None if is_first else staging.successor(uuid.uuid4().hex)
        is_lost = successor is not None and start.area in (None, staging.area)
        if is_lost and is_replay:
            _log.warning(
                "batch %d of `%s` is not committed and has no files in `%s`. It is replayed without rows, and its "
                "messages will be delivered again. If the files are on another machine or disk, do not return to them",
                start.batch + 1,
                options.subscription,
                self.store.location,
            )
        staging = replace(staging, stream=successor or staging.stream)
        if start.batch < check_not_behind(options, start.batch, staging):  # the area may be another query's
            staging = replace(staging, stream=uuid.uuid4().hex)
        if staging.stream != start.stream:
            staging.write_token()
        connection = self.backend.connect()
        try:
            topic = subscription.prepare(connection.admin, options, is_first)
            if is_stopping():  # Spark does not wait for this process, and its next run may own the area by now
                raise StagingError(f"The query of `{options.subscription}` was stopped while it started.")
            staging = fencing.claim(staging, runtime.wall())  # when nothing else can fail: an earlier owner ends by it
            last_deleted = check_not_behind(options, start.batch, staging)
            deleted = last_deleted if staging.stream == start.stream or is_lost else start.batch
            if staging.is_new() and (is_replay or start.batch):
                last_deleted = start.batch
                staging.begin_after(last_deleted)
            wall = runtime.wall()
            leased_until = staging.begin_run(wall, DOUBT_SECONDS) - wall + runtime.boottime()
            in_doubt, schemas = staging.ids_in_doubt(), staging.files(f"{SCHEMAS}/")
            batches = staging.batches()
            fencing.check_owner(staging)  # so nothing that is listed is a later run's
            gone = start.batch - deleted - sum(deleted < batch <= start.batch for batch in batches)
            if gone > 0 and staging.last_acknowledged() == last_deleted:  # else the run before has just deleted them
                _log.warning(
                    "%d of the committed batches %d to %d of `%s` have no files in `%s`. Their messages will be "
                    "delivered again unless they were acknowledged",
                    gone,
                    deleted + 1,
                    start.batch,
                    options.subscription,
                    self.store.location,
                )
            ids = read_in_doubt(staging, in_doubt, start.batch, topic, runtime.wall(), runtime.boottime())
            ledger = self._ledger(staging, batches, start.batch, last_deleted, ids)
            settings = StreamSettings(
                options.subscription,
                client_id=f"{start.stream}-0-{uuid.uuid4().hex[:8]}",
                lease_seconds=int(STREAM_LEASE_SECONDS),
                max_messages=min(self.max_buffered, options.max_messages_per_trigger),
                max_bytes=min(MAX_BYTES, options.max_bytes_per_trigger),
            )
            if all(batch <= start.batch for batch in batches):  # only batches that are not committed need them
                staging.delete_files(schemas)
            reader = None if self.reader is None else stage_reader(staging, self.reader)
            stream = DriverStream(connection, settings, self.times.pull, runtime)
        except BaseException:
            connection.close()
            raise
        _log.info(
            "reading `%s` from `%s` after batch %d of stream %s, staging in `%s`",
            options.subscription,
            self.backend.address,
            start.batch,
            start.stream,
            self.store.location,
        )
        return Run(
            connection,
            staging,
            ledger,
            stream,
            runtime.condition(),
            runtime,
            frozenset(batch for batch in batches if batch > last_deleted),
            leased_until,
            topic,
            self.reader,
            reader,
            Report(self.metrics_store, options.subscription),
        )

    def _report_other_area(self, batch: int) -> None:
        """Report a replay of a batch that was staged elsewhere: without its rows, it must not be acknowledged there."""
        replay = (
            f"Batch {batch} of `{self.options.subscription}` is not committed and was staged in another "
            f"`stagingLocation` than `{self.store.location}`"
        )
        if self.options.fail_on_data_loss:
            raise StagingError(
                f"{replay}. Use that one until the batch is committed, or set failOnDataLoss=false to replay it "
                "without rows: its messages will be delivered again. Then never use the other location again."
            )
        _log.warning("%s. It is replayed without rows, and its messages will be delivered again", replay)

    def _ledger(
        self, staging: Staging, batches: list[int], committed: int, last_deleted: int, in_doubt: InDoubt
    ) -> AckLedger:
        now = self.runtime.boottime()
        staging.delete_before(ACKNOWLEDGED, last_deleted)  # an earlier run's deletion may have been refused
        ledger = AckLedger(pull_lease_seconds(self.options.max_fetch_period), in_doubt)
        for batch in batches:
            if batch <= last_deleted:
                staging.delete(f"{batch}/")
            elif batch <= committed:
                ledger.plan(batch, now, is_replay=True)
                ledger.commit(batch, readable_parts(staging, batch))
        ledger.last_commit = committed
        return ledger


def check_not_behind(options: ReadOptions, batch: int, staging: Staging) -> int:
    """Return the last deleted batch. If it is after `batch`, where the checkpoint is, report the loss."""
    last_deleted = staging.last_acknowledged()
    if batch < last_deleted:
        report_loss(
            options,
            f"The checkpoint of `{options.subscription}` is at batch {batch}, but batches up to {last_deleted} were "
            "acknowledged and deleted (an old checkpoint, a copy of one, or asynchronous progress tracking)",
        )
    return last_deleted


def report_loss(options: ReadOptions, loss: str) -> None:
    """Raise StagingError for a loss, or log it with `failOnDataLoss=false`."""
    if options.fail_on_data_loss:
        raise StagingError(
            f"{loss}, so its rows cannot be delivered again. Start a new checkpoint location, or set "
            "failOnDataLoss=false to continue without them."
        )
    _log.warning("%s. Continuing without them (failOnDataLoss=false)", loss)
