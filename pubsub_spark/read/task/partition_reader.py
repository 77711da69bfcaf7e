"""Reading a partition in a task: the same messages however often it is read.

    part staged already?                -> its messages
    else                                -> pull, stage (create-only), the pulled messages
    another attempt staged first?       -> nack the pulled messages, yield those of the other attempt
    staging failed?                     -> fail, and nack nothing: the store may have the part, which the next attempt
                                           yields
    rows yielded, and the part is gone? -> fail: other messages would be acknowledged than the first evaluation yielded
    another run owns the area?          -> fail, and nack the pulled messages, or the other run replays them if they are
                                           staged
    lease over before it is staged?     -> fail, and nack: another task of the batch may have the messages

Leases are extended only while staging takes long, because the driver knows staged parts alone. Connections are closed
before the first record batch is yielded. Only ids in doubt stay in a reused worker: the next batch needs most of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa

from ...backend import Backend, Connection
from ...errors import MissingFile, StagingError
from ...memory import freeze_imports, keep_freed_memory
from ...options import ReadOptions
from ..pull import acks
from ..pull.lease import pull_lease_seconds
from ..runtime import SYSTEM, Runtime
from ..staging import fencing
from ..staging import part as staged_part
from ..staging.area import Staging, given_path, manifest_path, part_path
from ..staging.part import Buffer
from .partition_pull import TASK_TIMES, PartitionPull, TaskTimes
from .partitions import DriverPartition, Partition, PullPartition, StagedPartition

_log = logging.getLogger(__name__)


def read(
    partition: Partition,
    options: ReadOptions,
    backend: Backend,
    runtime: Runtime = SYSTEM,
    times: TaskTimes = TASK_TIMES,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition, as record batches of the schema MESSAGES."""
    check_token_once(partition.staging)
    try:
        yield from _rows(partition, options, backend, runtime, times)
    except MissingFile as error:
        raise _lost(partition.staging, error) from None


def _rows(
    partition: Partition, options: ReadOptions, backend: Backend, runtime: Runtime, times: TaskTimes
) -> Iterator[pa.RecordBatch]:
    match partition:
        case DriverPartition():
            yield from staged_part.messages(partition.content)
        case PullPartition():
            if partition.driver_content is not None:
                yield from staged_part.messages(partition.driver_content)
            content = partition.staging.read(part_path(partition.batch, partition.part))
            if content is None:
                yield from _pulled(partition, options, backend, runtime, times)
            else:
                _record_yielded(partition, options, content)
                yield from partition.staging.messages(partition.batch, partition.part, content) or ()
        case StagedPartition():
            for part in partition.parts:
                content = _staged(partition.staging, partition.batch, part)
                part_id = partition.ids.get(part, "")
                if part_id and part_id != staged_part.footer(content, part_path(partition.batch, part)).id:
                    raise _gone(partition.batch, options, partition.staging)
                yield from partition.staging.messages(partition.batch, part, content) or ()


def count_malformed(partition: Partition, count: int) -> None:
    """Record for the driver how many payloads of a partition could not be decoded."""
    partition.staging.record_malformed(partition.batch, partition.part, count)


@lru_cache(maxsize=64)
def check_token_once(staging: Staging) -> None:
    staging.check_token()


def _staged(staging: Staging, batch: int, part: int) -> Buffer:
    content = staging.read(part_path(batch, part))
    if content is None:
        path = f"{staging.root}/{part_path(batch, part)}"
        raise _lost(
            staging,
            StagingError(
                f"The staged part `{path}` is gone from `{staging.location}`, so the batch cannot be read again. Its "
                "messages were not acknowledged: start a new checkpoint location and they will be delivered again."
            ),
        )
    return content


def _lost(staging: Staging, error: StagingError) -> StagingError:
    """Return the error for files that are gone. A run that has taken over deletes files of its predecessor."""
    return fencing.taken_over(staging) or error


def _gone(batch: int, options: ReadOptions, staging: Staging) -> StagingError:
    return _lost(
        staging,
        StagingError(
            f"The staged files of batch {batch} of `{options.subscription}` are gone from `{staging.location}`, so its "
            "rows cannot be read again. Exclude `stagingLocation` from cleanup jobs and lifecycle rules and start the "
            "query again: unacknowledged messages will be delivered again."
        ),
    )


def _may_pull(partition: PullPartition, options: ReadOptions) -> bool:
    """Return whether a part is still to be pulled. Raises StagingError if its rows were yielded and are gone."""
    staging, batch, part = partition.staging, partition.batch, partition.part
    files = staging.files(f"{batch}/")
    if manifest_path(batch) in files:
        raise StagingError(
            f"Batch {batch} of `{options.subscription}` is replayed by a restarted query, so part {part} of its first "
            "run is not pulled any more."
        )
    is_staged = part_path(batch, part) in files  # by another attempt, since this one has looked: it is yielded then
    if part_path(batch, 0) in files and (is_staged or given_path(batch, part) not in files):
        return True
    if batch > staging.last_acknowledged():
        raise _gone(batch, options, staging)
    if not options.fail_on_data_loss:
        return False
    raise _lost(
        staging,
        StagingError(
            f"Batch {batch} of `{options.subscription}` is evaluated again, but it was acknowledged and deleted when "
            "its query continued. Write or cache its DataFrame before `foreachBatch` returns, or set "
            "failOnDataLoss=false to read nothing here."
        ),
    )


def _pulled(
    partition: PullPartition, options: ReadOptions, backend: Backend, runtime: Runtime, times: TaskTimes
) -> Iterator[pa.RecordBatch]:
    staging = partition.staging
    if not _may_pull(partition, options):
        return
    keep_freed_memory()
    with backend.connect() as connection:
        pull = PartitionPull(partition, options, connection, runtime, times)
        messages, buffers = pull.run()
        failure = fencing.taken_over(staging) or _expired(partition, options, runtime.boottime() - pull.leased)
        if failure is not None:
            _nack(connection, options, buffers, runtime, times)
            raise failure
        del pull
        with _leases_extended(connection, options, buffers, runtime, times):
            is_first = staging.create(part_path(partition.batch, partition.part), buffers)
        end: Buffer = b"".join(buffers[-2:])  # with the footer
        if not is_first:
            _nack(connection, options, buffers, runtime, times)
            end = _staged(staging, partition.batch, partition.part)
            messages = list(staging.messages(partition.batch, partition.part, end) or ())
    del buffers
    freeze_imports()
    _record_yielded(partition, options, end)
    yield from _drained(messages)


def _record_yielded(partition: PullPartition, options: ReadOptions, content: Buffer) -> None:
    """Record that a staged part is the one that is yielded. content: of the part, or its end with the footer."""
    staging, batch, part = partition.staging, partition.batch, partition.part
    fencing.check_owner(staging)  # another run may have listed the batch before the part was in it
    if not staging.record_yielded(batch, part, staged_part.footer(content, f"{staging.root}/{part_path(batch, part)}")):
        raise _gone(batch, options, staging)


def _drained(messages: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a list, which does not keep them."""
    while messages:
        yield messages.pop(0)


def _expired(partition: PullPartition, options: ReadOptions, seconds: float) -> StagingError | None:
    lease = pull_lease_seconds(options.max_fetch_period)
    if seconds < lease:
        return None
    return StagingError(
        f"Part {partition.part} of batch {partition.batch} of `{options.subscription}` was held for {seconds:.0f} s "
        f"before it was staged, longer than its lease of {lease} s, probably because this machine was suspended. Spark "
        "retries the task and Pub/Sub redelivers the messages. Keep executors from being suspended."
    )


@contextmanager
def _leases_extended(
    connection: Connection, options: ReadOptions, buffers: list[Buffer], runtime: Runtime, times: TaskTimes
) -> Iterator[None]:
    """Extend the leases of a part while it is being staged. A quick store costs no request."""
    staged = runtime.event()
    lease = pull_lease_seconds(options.max_fetch_period)

    def extend() -> None:
        while not staged.wait(lease / 4):
            ack_ids = (receipts.column("ack_id") for receipts in staged_part.receipts(buffers))
            try:
                acks.extend(connection, options.subscription, ack_ids, lease, times.extension, runtime=runtime)
            except Exception:
                _log.exception("lease extensions of `%s` failed. Trying again", options.subscription)

    thread = runtime.start(extend, "lease extender of a task")
    try:
        yield
    finally:
        staged.set()
        thread.join()


def _nack(
    connection: Connection, options: ReadOptions, buffers: list[Buffer], runtime: Runtime, times: TaskTimes
) -> None:
    acks.nack(connection, options.subscription, staged_part.receipts(buffers), times.pull.nack, runtime)
