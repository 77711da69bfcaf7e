"""The parts of the code under test that the simulator uses. It imports nothing else of `read/` but `Runtime`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import pyarrow as pa

from pubsub_spark.codec.registry import TopicSchema
from pubsub_spark.errors import DamagedFile, MissingFile
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.dead_letters import ID_ATTRIBUTE
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.driver.query_driver import QueryDriver
from pubsub_spark.read.driver.start import Start
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.rows import Rows
from pubsub_spark.read.runtime import Runtime
from pubsub_spark.read.staging import ids, part, schemas
from pubsub_spark.read.task import partition_pull, partition_reader

__all__ = [
    "ID_ATTRIBUTE",
    "Budget",
    "Memory",
    "MissingFile",
    "Offset",
    "begin",
    "driver",
    "driver_ids",
    "known_ids",
    "memory",
    "read",
    "staged_ids",
]


class Memory(NamedTuple):
    """The memory of a run. batches: that are not deleted. ids: different ones in doubt, in so many sets."""

    batches: list[int]
    buffered: int
    sets: int
    ids: int


def begin() -> None:
    """Clear the caches of this process, left from the last history."""
    partition_pull.excluded_ids.clear()
    partition_reader.check_token_once.cache_clear()
    for each in (staged_ids, _digest, _digests_in_doubt):
        each.cache_clear()


def driver(
    options: ReadOptions,
    backend: Any,
    store: Any,
    fetch_partitions: int,
    is_stopping: Callable[[], bool],
    may_be_asked_once: bool,
    buffered: int,
    runtime: Runtime,
    reader: TopicSchema | None,
    metrics_store: Any,
) -> QueryDriver:
    """Return the driver of one start of a query. buffered: the most messages that its stream buffers."""
    start = Start(options, backend, store, runtime, reader, max_buffered=buffered, metrics_store=metrics_store)
    return QueryDriver(start, fetch_partitions, is_stopping, may_be_asked_once)


def memory(driver: QueryDriver) -> Memory | None:
    """Return the memory of a run, or None before its first call."""
    if driver.active is None:
        return None
    run = driver.active.run
    sets, ledger = run.ledger.in_doubt.sets, run.ledger
    batches = [*ledger.undeleted, *ledger.uncommitted]
    in_doubt = {digest.tobytes() for each in sets for digest in each.digests.T}
    return Memory(batches, run.stream.message_count, len(sets), len(in_doubt))


def read(
    partition: Any, options: ReadOptions, backend: Any, runtime: Runtime, reader: TopicSchema | None
) -> Iterator[pa.RecordBatch]:
    """Read a partition in a task. reader: the schema that its run decodes with, or None."""
    messages = partition_reader.read(partition, options, backend, runtime)
    if reader is None:
        return messages
    schemas.cached_answers.clear()  # a process of its own
    staged = schemas.StagedSchemas(partition.staging, partition.batch, partition.reader)
    return Rows(options, backend, reader).of(messages, partial(partition_reader.count_malformed, partition), staged)


def driver_ids(content: bytes) -> list[str]:
    """Return the ids of the rows of a staged part of the driver stream, or [] for a task's part."""
    if part.footer(content).ended != "driver":
        return []
    return [message_id for rows in part.messages(content) for message_id in rows.column("message_id").to_pylist()]


@lru_cache(None)
def staged_ids(content: bytes) -> frozenset[str]:
    """Return the ids of the messages that are acknowledged with a staged part."""
    return frozenset(
        message_id for receipts in part.receipts([content]) for message_id in receipts.column("message_id").to_pylist()
    )


def known_ids(path: str, content: bytes, message_ids: Sequence[str]) -> set[str]:
    """Return those of the ids that a file of the staging area has: a part, or ids in doubt."""
    if not message_ids:
        return set()
    folder, _, name = path.rpartition("/")
    try:
        if name.startswith("part-"):
            return set(staged_ids(content).intersection(message_ids))
        if folder.endswith("/in-doubt"):
            in_doubt = _digests_in_doubt(content)
            return {message_id for message_id in message_ids if _digest(message_id) in in_doubt}
    except DamagedFile:  # by a power loss
        pass
    return set()


@lru_cache(None)
def _digests_in_doubt(content: bytes) -> frozenset[bytes]:
    """Return the digests of a file of ids in doubt."""
    return frozenset(digest.tobytes() for digest in ids.deserialized(content)[0].T)


@lru_cache(None)
def _digest(message_id: str) -> bytes:
    return ids.digests(pa.array([message_id], pa.string())).T.tobytes()
