"""The executor's side: a part of a batch becomes messages, the same ones however often it is asked.

    staged already? -> those.  Else pull, stage (create-only), yield.
    Lost the race?  -> give mine back, yield the winner's.

Everything is opened here and closed before the first batch is yielded; nothing is left behind in a reused worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from ..backend import Backend, Connection
from ..errors import StagingError
from ..options import ReadOptions
from . import acks
from .leases import STREAM_LEASE
from .plan import DoorPart, Part, PullPart
from .pull import Flow, Pulled, pull
from .redelivery import without
from .staging import Staging, messages, pack

_NACK_TIMEOUT = 10.0  # seconds; what is not given back comes again when its lease runs out


def read(part: Part, options: ReadOptions, backend: Backend) -> Iterator[pa.RecordBatch]:
    """The messages of a part, as record batches of the schema MESSAGES."""
    _see(part.staging)
    if isinstance(part, DoorPart):
        yield from messages(part.content)
        return
    path = f"{part.batch}/part-{part.part}"
    content = part.staging.read(path)
    if content is not None:
        yield from messages(content)
    elif isinstance(part, PullPart):
        yield from _pulled(part, path, options, backend)
    else:
        raise StagingError(
            f"The staged part `{part.staging.root}/{path}` is gone from `{part.staging.location}`, so the batch cannot "
            "be given again. Its messages were not acknowledged: start a new checkpoint location and they come again."
        )


def count_malformed(part: Part, count: int) -> None:
    """Tell the driver how many payloads of a part could not be decoded."""
    part.staging.count(part.batch, 0 if isinstance(part, DoorPart) else part.part, count)


@lru_cache(maxsize=64)
def _see(staging: Staging) -> None:
    """Check once per process that this executor sees the driver's staging area."""
    staging.check_token()


def _pulled(part: PullPart, path: str, options: ReadOptions, backend: Backend) -> Iterator[pa.RecordBatch]:
    with backend.connect() as connection:
        pulled = _pull(part, options, connection)
        known = part.staging.known(part.batch) if part.known else pa.array([], pa.string())
        received = [got.named_by(options.id_attribute) for got in pulled.received]
        kept, dropped = without(received, known, distinct=options.id_attribute is not None)
        content = pack(kept, [got.receipts for got in received], pulled.ended, dropped)
        if not part.staging.create(path, content):
            for got in pulled.received:
                ids = got.receipts.column("ack_id")
                acks.send(connection, options.subscription, ids, 0, time.monotonic() + _NACK_TIMEOUT)
            kept = list(messages(part.staging.read(path)))
    yield from kept


def _pull(part: PullPart, options: ReadOptions, connection: Connection) -> Pulled:
    most = part.max_messages
    if options.max_records_per_fetch is not None:
        most = min(most, options.max_records_per_fetch)
    flow = Flow(
        options.subscription,
        client_id=f"{part.staging.stream}-{part.part}",
        deadline=int(max(STREAM_LEASE, 2 * options.max_fetch_period + 30)),
        max_messages=most,
        max_bytes=part.max_bytes,
    )
    return pull(connection, flow, options.max_fetch_period, options.idle_timeout)
