"""Reading a partition in a task: the same messages however often it is read.

    part staged already?           -> its messages
    else                           -> pull, stage (create-only), the pulled messages
    another attempt staged first?  -> nack the pulled messages, give those of the other attempt
    staging failed?                -> fail, and nack nothing: the store may have the part, which the next attempt gives
    idAttribute?                   -> stage first, then claim the ids: no rows that another part has claimed (`claims`)
    rows given, and part gone?     -> fail: other messages would be acknowledged than the first evaluation gave
    another run owns the area?     -> fail, and nack the pulled messages
    lease over before it is staged -> fail, and nack: another task of the batch may have been given the messages
    waited for the store?          -> stage no messages: those of batches before may be delivered again by now

A task extends the leases of what it pulled only while staging takes long, for the driver knows staged parts alone.

Connections are opened here and closed before the first record batch is yielded; nothing is left behind in a reused
worker but the ids that batches exclude: the next one excludes most of them, too.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa
from pyspark import TaskContext

from ..backend import Backend, Connection
from ..codec.envelope import Received, deduplication_ids
from ..errors import StagingError
from ..memory import freeze_imports, keep_freed_memory
from ..options import ReadOptions
from . import claims, owner, staged_part
from .deduplication import drop_duplicates, exclude
from .partitions import DriverPartition, Partition, PullPartition, StagedPartition
from .pull import acks
from .pull.lease import STREAM_LEASE_SECONDS
from .pull.pull import PullResult, pull
from .pull.streaming_pull import StreamSettings
from .recent_ids import IdSet, digests, is_in, merged
from .runtime import SYSTEM
from .staged_part import Buffer
from .staging import Staging, given_path, manifest_path, part_path, repeated_path
from .task_acks import TaskAcks
from .task_slots import task_slots

_log = logging.getLogger(__name__)
_BATCH_ID_PROPERTY = "streaming.sql.batchId"
_EXTEND_AFTER_SECONDS = STREAM_LEASE_SECONDS / 4  # of staging a part
_EXTENSION_TIMEOUT_SECONDS = 30.0  # the next extension sends what was not answered
# Until a pull begins. What a batch excludes is known when it is planned: later the leases of other batches may expire,
# which nobody extends or acknowledges when the store does not give their ack ids.
_MAX_WAIT_SECONDS = STREAM_LEASE_SECONDS / 2
_NACK_TIMEOUT_SECONDS = 10.0  # messages that are not nacked are delivered again when their lease expires
_excluded: dict[tuple[Staging, str], IdSet] = {}  # by file, for the last part that this process has pulled


def read(partition: Partition, options: ReadOptions, backend: Backend) -> Iterator[pa.RecordBatch]:
    """The messages of a partition, as record batches of the schema MESSAGES."""
    _check_token_once(partition.staging)
    match partition:
        case DriverPartition():
            yield from staged_part.messages(partition.content)
        case PullPartition():
            if partition.driver_content is not None:
                yield from staged_part.messages(partition.driver_content)
            began = SYSTEM.boottime()
            content = partition.staging.read(part_path(partition.batch, partition.part))
            if content is None:
                yield from _pulled(partition, options, backend, began)
            else:
                yield from _given(partition, options, staged_part.messages(content))
        case StagedPartition():
            for part in partition.parts:
                messages = _staged(partition.staging, part_path(partition.batch, part))
                if part in partition.repeats:
                    repeated = partition.staging.ids(repeated_path(partition.batch, part))
                    messages = _without(messages, repeated, options.id_attribute)
                yield from messages


def count_malformed(partition: Partition, count: int) -> None:
    """Record for the driver how many payloads of a partition could not be decoded."""
    partition.staging.record_malformed(partition.batch, partition.part, count)


def pull_lease_seconds(options: ReadOptions) -> int:
    """The lease of a task's stream: twice as long as a pull may take, and half a minute for staging it."""
    return int(max(STREAM_LEASE_SECONDS, 2 * options.max_fetch_period + 30))


@lru_cache(maxsize=64)
def _check_token_once(staging: Staging) -> None:
    staging.check_token()


def _staged(staging: Staging, path: str) -> Iterator[pa.RecordBatch]:
    content = staging.read(path)
    if content is None:
        raise StagingError(
            f"The staged part `{staging.root}/{path}` is gone from `{staging.location}`, so the batch cannot be given "
            "again. Its messages were not acknowledged: start a new checkpoint location and they come again."
        )
    return staged_part.messages(content)


def _without(messages: Iterator[pa.RecordBatch], ids: IdSet, id_attribute: str | None) -> Iterator[pa.RecordBatch]:
    """The messages that have none of these deduplication ids."""
    for batch in messages:
        yield batch.filter(pa.array(~is_in(digests(deduplication_ids(batch, id_attribute)), [ids])))


def _may_pull(partition: PullPartition, options: ReadOptions) -> bool:
    """Whether a part is still to be pulled; StagingError when its rows were given before and are gone."""
    staging, batch, part = partition.staging, partition.batch, partition.part
    files = staging.files(batch)
    if manifest_path(batch) in files:
        raise StagingError(
            f"Batch {batch} of `{options.subscription}` is given again by a restarted query, so part {part} of its "
            "first run is not pulled any more."
        )
    if part_path(batch, 0) in files and given_path(batch, part) not in files:
        return True
    if batch > staging.last_acknowledged():
        raise StagingError(
            f"The staged files of batch {batch} of `{options.subscription}` are gone from `{staging.location}`, so its "
            "rows cannot be given again. Keep cleaners and lifecycle rules from `stagingLocation` and start the query "
            "again: messages whose files are gone were not acknowledged and come again."
        )
    if not options.fail_on_data_loss:
        return False
    raise StagingError(
        f"Batch {batch} of `{options.subscription}` is evaluated again, but it was acknowledged and deleted when its "
        "query went on. Write or cache its DataFrame before `foreachBatch` returns, or set failOnDataLoss=false to get "
        "nothing here."
    )


def _pulled(partition: PullPartition, options: ReadOptions, backend: Backend, began: float) -> Iterator[pa.RecordBatch]:
    """Pull and stage a part; the messages of whichever attempt has staged it first. began: when the task did."""
    staging = partition.staging
    if not _may_pull(partition, options):
        return
    keep_freed_memory()
    path = part_path(partition.batch, partition.part)
    waited = SYSTEM.boottime() - began
    if waited >= _MAX_WAIT_SECONDS:
        _log.warning(
            "part %d of batch %d of `%s` pulls nothing, because the store kept its task waiting for %.0f s",
            partition.part,
            partition.batch,
            options.subscription,
            waited,
        )
        staging.create(path, staging.part_builder().buffers("idle", **_told_by_spark()))
        yield from _given(partition, options, _staged(staging, path))
        return
    with backend.connect() as connection:
        task_acks = TaskAcks(connection, staging, partition.acks)
        messages, buffers, leased = _pull_part(partition, options, connection, task_acks)
        failure = owner.taken_over(staging) or _expired(partition, options, SYSTEM.boottime() - leased)
        if failure is not None:
            _nack(connection, options, buffers)
            raise failure
        with _leases_extended(connection, options, buffers):
            is_first = staging.create(path, buffers)
        if not is_first:
            _nack(connection, options, buffers)
            messages = list(_staged(staging, path))
    del buffers
    freeze_imports()
    yield from _given(partition, options, _drained(messages))


def _given(
    partition: PullPartition, options: ReadOptions, messages: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of a staged part; with `idAttribute`, those whose ids it claims."""
    if options.id_attribute is not None:
        messages = _claimed(partition, list(messages), options.id_attribute)
    partition.staging.record_given(partition.batch, partition.part)
    yield from messages


def _claimed(partition: PullPartition, messages: list[pa.RecordBatch], id_attribute: str) -> Iterator[pa.RecordBatch]:
    """Claim the ids of a staged part; the messages that no other part has claimed before."""
    if any(each.num_rows for each in messages):
        ids = [digests(deduplication_ids(each, id_attribute)) for each in messages]
        earlier = claims.claim(partition.staging, partition.batch, partition.part, merged(ids))
        if earlier:
            messages = [m.filter(pa.array(~is_in(d, earlier))) for m, d in zip(messages, ids, strict=True)]
    return _drained(messages)


def _drained(messages: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The record batches of a list, which does not keep those that were given."""
    while messages:
        yield messages.pop(0)


def _expired(partition: PullPartition, options: ReadOptions, seconds: float) -> StagingError | None:
    """The error for messages that are held for so many seconds and not staged, if their leases may be over."""
    lease = pull_lease_seconds(options)
    if seconds < lease:
        return None
    return StagingError(
        f"Part {partition.part} of batch {partition.batch} of `{options.subscription}` was held for {seconds:.0f} s, "
        f"longer than the lease of {lease} s, before it was staged: this machine slept or was stopped. Its messages "
        "come again, and Spark tries the task again; keep executors from being suspended."
    )


@contextmanager
def _leases_extended(connection: Connection, options: ReadOptions, buffers: list[Buffer]) -> Iterator[None]:
    """Extend the leases of a part again and again while it is being staged; a store that is quick costs no request."""
    staged = threading.Event()

    def extend() -> None:
        while not staged.wait(_EXTEND_AFTER_SECONDS):
            ack_ids = (receipts.column("ack_id") for receipts in staged_part.receipts(buffers))
            deadline = time.monotonic() + _EXTENSION_TIMEOUT_SECONDS
            acks.extend(connection, options.subscription, ack_ids, pull_lease_seconds(options), deadline)

    thread = threading.Thread(target=extend, name="lease extender of a task", daemon=True)
    thread.start()
    try:
        yield
    finally:
        staged.set()
        thread.join()


def _nack(connection: Connection, options: ReadOptions, buffers: list[Buffer]) -> None:
    ack_ids = (receipts.column("ack_id") for receipts in staged_part.receipts(buffers))
    acks.nack(connection, options.subscription, ack_ids, time.monotonic() + _NACK_TIMEOUT_SECONDS)


def _pull_part(
    partition: PullPartition, options: ReadOptions, connection: Connection, task_acks: TaskAcks
) -> tuple[list[pa.RecordBatch], list[Buffer], float]:
    """Pull a part: its messages, the buffers to stage, and from when on the lease clock they are leased."""
    staging = partition.staging
    excluded_ids = _excluded_ids(staging, partition.excludes)
    builder = staging.part_builder()
    messages: list[pa.RecordBatch] = []
    arrived: list[Received] = []

    def add(received: Received, receipts: pa.RecordBatch) -> pa.RecordBatch:
        messages.append(exclude(received, excluded_ids).messages)
        builder.add(messages[-1], receipts)
        return messages[-1]

    def keep(received: Received) -> pa.RecordBatch:
        arrived.append(received)
        return received.messages

    if options.id_attribute is None:  # built while the messages are in the processor's cache
        result = _pull(partition, options, connection, lambda received: add(received, received.receipts))
    else:
        result = _pull(partition, options, connection, keep)
        arrived = [received.with_deduplication_id(options.id_attribute) for received in arrived]
        for received, first in zip(arrived, drop_duplicates(arrived), strict=True):
            add(first, received.receipts)
    buffers = builder.buffers(
        result.ended,
        pull_bytes=result.bytes,
        pull_seconds=round(result.seconds, 3),
        sent_acks=task_acks.finish(),
        **_told_by_spark(),
    )
    return messages, buffers, SYSTEM.boottime() if result.leased is None else result.leased


def _excluded_ids(staging: Staging, paths: Sequence[str]) -> list[IdSet]:
    """The ids in these files, of which a reused worker reads those that are new."""
    ids = {(staging, path): _excluded.get((staging, path)) for path in paths}
    _excluded.clear()
    _excluded.update({key: staging.ids(key[1]) if each is None else each for key, each in ids.items()})
    return list(_excluded.values())


def _told_by_spark() -> dict[str, int | None]:
    """Spark's batchId of the batch that this task works on, and the number of tasks that run at once."""
    context = TaskContext.get()
    if context is None:
        return {}
    batch = context.getLocalProperty(_BATCH_ID_PROPERTY)
    slots = task_slots(context.getLocalProperty, os.cpu_count() or 1)
    return {"spark_batch": int(batch) if batch else None, "task_slots": slots}


def _pull(
    partition: PullPartition, options: ReadOptions, connection: Connection, take: Callable[[Received], pa.RecordBatch]
) -> PullResult:
    settings = StreamSettings(
        options.subscription,
        client_id=f"{partition.staging.stream}-{partition.part}-{uuid.uuid4().hex[:8]}",  # its own for each attempt
        lease_seconds=pull_lease_seconds(options),
        max_messages=min(partition.max_messages, options.max_records_per_fetch or partition.max_messages),
        max_bytes=partition.max_bytes,
    )
    return pull(connection, settings, options.max_fetch_period, options.idle_timeout, take, partition.streams)
