"""The executor's side: a part of a batch becomes messages, the same ones however often it is asked.

    staged already? -> those.  Else pull, stage (create-only), yield.
    Lost the race?  -> give mine back, yield the winner's.
    Put failed?     -> fail, and give nothing back: the store may have the part, and whoever comes next yields it.

Everything is opened here and closed before the first batch is yielded; nothing is left behind in a reused worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import lru_cache

import pyarrow as pa

from ..backend import Backend, Connection
from ..codec.envelope import Received
from ..errors import StagingError
from ..memory import freeze_imports, keep_freed_memory
from ..options import ReadOptions
from . import acks
from .leases import STREAM_LEASE
from .plan import DoorPart, Part, PullPart, StagedPart
from .pull import Flow, Pulled, pull
from .redelivery import firsts, without
from .staging import Buffer, Staging, messages, receipts_of

_NACK_TIMEOUT = 10.0  # seconds; what is not given back comes again when its lease runs out


def read(part: Part, options: ReadOptions, backend: Backend) -> Iterator[pa.RecordBatch]:
    """The messages of a part, as record batches of the schema MESSAGES."""
    _see(part.staging)
    match part:
        case DoorPart():
            yield from messages(part.content)
        case PullPart():
            if part.door is not None:
                yield from messages(part.door)
            path = f"{part.batch}/part-{part.part}"
            content = part.staging.read(path)
            yield from _pulled(part, path, options, backend) if content is None else messages(content)
        case StagedPart():
            for number in part.parts:
                yield from _staged(part.staging, f"{part.batch}/part-{number}")


def _staged(staging: Staging, path: str) -> Iterator[pa.RecordBatch]:
    content = staging.read(path)
    if content is None:
        raise StagingError(
            f"The staged part `{staging.root}/{path}` is gone from `{staging.location}`, so the batch cannot be given "
            "again. Its messages were not acknowledged: start a new checkpoint location and they come again."
        )
    return messages(content)


def count_malformed(part: Part, count: int) -> None:
    """Tell the driver how many payloads of a part could not be decoded."""
    part.staging.count(part.batch, part.part, count)


@lru_cache(maxsize=64)
def _see(staging: Staging) -> None:
    """Check once per process that this executor sees the driver's staging area."""
    staging.check_token()


def lease(options: ReadOptions) -> int:
    """Seconds for which a pull leases: twice as long as it may take, and then some to say so."""
    return int(max(STREAM_LEASE, 2 * options.max_fetch_period + 30))


def _pulled(part: PullPart, path: str, options: ReadOptions, backend: Backend) -> Iterator[pa.RecordBatch]:
    if part.batch <= part.staging.released():  # other messages than at first would be no answer
        if not options.fail_on_data_loss:
            return
        raise StagingError(
            f"Batch {part.batch} of `{options.subscription}` is evaluated again, but it was acknowledged and released "
            "when its query went on. Write or cache its DataFrame before `foreachBatch` returns, or set "
            "failOnDataLoss=false to get nothing here."
        )
    keep_freed_memory()
    with backend.connect() as connection:
        kept, content = _packed(part, options, connection)
        if not part.staging.create(path, content):
            ack_ids = (receipts.column("ack_id") for receipts in receipts_of(content))
            acks.send(connection, options.subscription, ack_ids, 0, time.monotonic() + _NACK_TIMEOUT)
            kept = list(messages(part.staging.read(path)))
    del content
    freeze_imports()
    while kept:
        yield kept.pop(0)


def _packed(part: PullPart, options: ReadOptions, connection: Connection) -> tuple[list[pa.RecordBatch], list[Buffer]]:
    """Pull a part: the messages to yield, and the pieces to stage."""
    known = part.staging.known(part.batch) if part.known else pa.array([], pa.string())
    packer = part.staging.packer()
    kept: list[pa.RecordBatch] = []

    def keep(got: Received, receipts: pa.RecordBatch) -> None:
        kept.append(without(got, known).messages)
        packer.add(kept[-1], receipts)

    if options.id_attribute is None:  # packed at once, while it is in the processor's cache
        pulled = _pull(part, options, connection, lambda got: keep(got, got.receipts))
    else:
        received: list[Received] = []
        pulled = _pull(part, options, connection, received.append)
        received = [got.named_by(options.id_attribute) for got in received]
        for got, first in zip(received, firsts(received), strict=True):
            keep(first, got.receipts)
    return kept, packer.content(pulled.ended)


def _pull(part: PullPart, options: ReadOptions, connection: Connection, take: Callable[[Received], object]) -> Pulled:
    most = part.max_messages
    if options.max_records_per_fetch is not None:
        most = min(most, options.max_records_per_fetch)
    flow = Flow(
        options.subscription,
        client_id=f"{part.staging.stream}-{part.part}",
        deadline=lease(options),
        max_messages=most,
        max_bytes=part.max_bytes,
    )
    return pull(connection, flow, options.max_fetch_period, options.idle_timeout, take)
