"""The partitions of a batch, with the I/O that they need: a new batch, or the replay of one that is staged already."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from ...codec.envelope import first_deliveries
from ...errors import DamagedFile, MissingFile, StagingError
from ...options import ReadOptions
from ..staging import fencing
from ..staging import part as staged_part
from ..staging.area import Staging, given_path, part_path
from ..staging.ids import IdSet, digests, is_in, message_ids
from ..staging.part import Footer
from ..task.partitions import DriverPartition, Partition, PullPartition, replay_partitions
from .in_doubt_files import write_in_doubt
from .ledger import UNSETTLED
from .planner import Budget, Planner
from .run import Run
from .times import DRIVER_TIMES

_log = logging.getLogger(__name__)


def new_batch(
    run: Run,
    options: ReadOptions,
    planner: Planner,
    batch: int,
    budget: Budget,
    is_only: bool = False,
    clock_margin: float = DRIVER_TIMES.clock_margin,
) -> list[Partition]:
    """Return the partitions of a new batch. Buffered messages are its part 0. is_only: no other may follow."""
    stream, staging, ledger = run.stream, run.staging, run.ledger
    pulls = planner.is_backlogged or stream.is_saturated
    lease, taken = stream.take(budget.messages, budget.bytes)
    doubt_ids(run)  # after they have come: one of them may be a redelivery
    with run.changed:
        sets = ledger.in_doubt.sets
    builder = staging.part_builder()
    for received, messages in zip(taken, first_deliveries(taken), strict=True):
        builder.add(_without(messages, sets), received.receipts)
    content = b"".join(builder.buffers("driver", reader=run.reader, id=uuid.uuid4().hex))
    driver_part = staged_part.footer(content)
    if not staging.create(part_path(batch, 0), [content]):
        raise StagingError(
            f"Batch {batch} of `{options.subscription}` was staged in `{staging.location}` by another query meanwhile. "
            "Let one query at a time use the checkpoint."
        )
    fencing.check_owner(staging)  # another run may have listed the batch before part 0 was in it
    now = run.now()
    with run.changed:
        in_doubt = list(ledger.in_doubt.runs) if pulls else []
        reads = frozenset(id_run.path for id_run in in_doubt)
        ledger.plan(batch, now, reads)
        ledger.stage(batch, 0, len(content), driver_part, lease, outstanding=driver_part.acks)
        for part in ledger.parts_of(batch):
            ledger.keep(part, [pa.concat_arrays([delivery.receipts.column("ack_id")]) for delivery in taken])
        deadline = ledger.deadline(batch, now)
        committed = [(part.batch, part.number, part.length, part.id) for part in ledger.undoubted]
    if not pulls:
        return [DriverPartition(staging, batch, content, reader=run.reader)]
    write_in_doubt(run, in_doubt)
    first = PullPartition(
        staging,
        batch,
        1,
        0,
        0,
        first_wait=planner.first_wait,
        deadline=run.runtime.wall() + deadline - run.now() - clock_margin,  # a standstill in between makes it earlier
        excludes=sorted(reads),
        committed=committed,
        streams=options.streams_per_partition or planner.streams,
        period=planner.period(is_only or options.streams_per_partition is not None),
        driver_content=content,
        reader=run.reader,
    )
    return [*budget.shares(first, planner.tasks, driver_part)] or [
        DriverPartition(staging, batch, content, reader=run.reader)
    ]


def _without(messages: pa.RecordBatch, sets: list[IdSet]) -> pa.RecordBatch:
    """Return the messages that are in none of the sets: the lease extender may poll some after `drop_redelivered`."""
    if not sets:
        return messages
    return messages.filter(pa.array(~is_in(digests(messages.column("message_id")), sets)))


def replayed_batch(run: Run, batch: int) -> Sequence[Partition]:
    """Return the partitions of a batch that an earlier run staged. Its manifest fixes its parts."""
    staging = run.staging
    staging.write_manifest(batch)
    parts = readable_parts(staging, batch)
    with run.changed:
        run.ledger.plan(batch, run.now(), is_replay=True)
        for number, (length, footer) in parts.items():
            run.ledger.stage(batch, number, length, footer)
    _log.warning("batch %d of `%s` is replayed from %d staged parts", batch, run.subscription, len(parts))
    if not parts:
        _log.warning(
            "batch %d of `%s` has no rows: the query ended before it was staged, or its files are gone from `%s`. Its "
            "messages, if any, will be delivered again",
            batch,
            run.subscription,
            staging.location,
        )
    reader = parts[0][1].reader if 0 in parts else None
    ids = {number: footer.id for number, (_, footer) in parts.items() if footer.id}
    partitions = replay_partitions(staging, batch, sorted(parts), reader)
    return [replace(each, ids={part: ids[part] for part in each.parts if part in ids}) for each in partitions]


def readable_parts(staging: Staging, batch: int, is_over: bool = True) -> dict[int, tuple[int, Footer]]:
    """Return length and footer of the parts of a batch whose rows Spark may have, without damaged ones.

    They are those in the manifest. Without one, the driver's part and those that tasks have yielded. The driver's is
    staged first: without it others may be of a late task, and are redelivered like damaged ones. So is a part with
    receipts of another one's rows that is not among them.

    is_over: whether no task of the batch is running, so that each part that is left out is reported.
    """
    sizes, yielded, fixed = staging.listing(batch)
    if fixed == {} and not sizes and not yielded:  # see `replayed_batch`
        return {}
    parts: dict[int, tuple[int, Footer]] = {}
    left_out: dict[int, object] = {}
    for number in sorted({0, *sizes, *yielded, *(fixed or ())}):
        if fixed is not None and number not in fixed:
            left_out[number] = "it was gone or damaged when the batch was first replayed"
            continue
        try:
            if number not in sizes:
                raise MissingFile(part_path(batch, number), staging.location)
            length = sizes[number]
            found = staging.yielded(batch, number) if fixed is None and number in yielded else None
            footer = found or staging.footer(batch, number, length)
            if fixed is not None and fixed[number] not in ("", footer.id):
                raise MissingFile(part_path(batch, number), staging.location)
            if fixed is not None or number == 0 or number in yielded or not footer.id:  # 0.1.0 has no ids
                parts[number] = length, footer
            else:
                left_out[number] = f"no task has yielded it to Spark, or `{given_path(batch, number)}` is gone"
        except (DamagedFile, MissingFile) as error:
            left_out[number] = error
    if fixed is None and 0 not in sizes:
        left_out |= dict.fromkeys(parts, "it may be of a late task, because the driver's part is gone")
        parts = {}
    for number, reason in left_out.items() if is_over else ():
        _log.warning(
            "part %d of batch %d of `%s` in `%s` is left out. Its messages will be delivered again unless they were "
            "acknowledged: %s",
            number,
            batch,
            staging.subscription,
            staging.location,
            reason,
        )
    return _with_siblings(staging, batch, parts)


def _with_siblings(staging: Staging, batch: int, parts: dict[int, tuple[int, Footer]]) -> dict[int, tuple[int, Footer]]:
    """Return the parts without those that have receipts of rows of parts that are not among them."""
    while True:
        ids = {(number, footer.id) for number, (_, footer) in parts.items()}
        needed = {number: {tuple(each) for each in footer.siblings} for number, (_, footer) in parts.items()}
        alone = [number for number, siblings in needed.items() if not siblings <= ids]
        if not alone:
            return parts
        parts = {number: part for number, part in parts.items() if number not in alone}  # others may need these
        _log.warning(
            "parts %s of batch %d of `%s` are left out, because they have redeliveries of rows that are lost. Their "
            "messages will be delivered again",
            alone,
            batch,
            staging.subscription,
        )


def doubt_ids(run: Run) -> None:
    """Put the ids of committed parts in doubt whose leases may end during the next batch. Raises StagingError."""
    looked: set[tuple[int, int]] = set()
    while True:
        with run.changed:
            doubtful = run.ledger.take_doubtful(run.now())
        parts = [part for part in doubtful if (part.batch, part.number) not in looked]
        if not parts:  # while parts are read, leases of others end
            return
        for part in parts:
            looked.add((part.batch, part.number))
            try:
                receipts = list(run.staging.receipts(part.batch, part.number, part.length, part.id))
            except (MissingFile, DamagedFile):  # settled meanwhile, or the ack worker reports it
                continue
            ids = message_ids(receipts)
            with run.changed:
                if part.state in UNSETTLED:  # else its file may be deleted
                    run.ledger.doubt(part, ids, run.now())


def drop_redelivered(run: Run) -> None:
    """Have the driver stream's messages whose ids are in doubt acknowledged at once."""
    with run.changed:
        sets = run.ledger.in_doubt.sets
    if not sets:
        return
    dropped = run.stream.drop(lambda ids: is_in(digests(ids), sets))
    with run.changed:
        for redelivered in dropped:
            run.ledger.redelivered(redelivered)
        if dropped:
            run.changed.notify_all()
