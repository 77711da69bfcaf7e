"""The invariants. They read the record and the service's own state, and know nothing of the code that is checked.

I1  no acked message that is not a row of a committed batch, or a       at each ack
    dead letter that was published, but in the cases of `cases`
I2  every evaluation of a batch has the same rows                       at each evaluation (`Record.evaluate`)
    and its commit has them                                             at each commit (`Record.commit`)
I3  in the end everything is a committed row, and acked                 after the quiet runs
I4  every run ends or makes progress within bounds                      in `history`
I5  a row is repeated only in the cases of `cases`, and never in the    at the end
    driver's part of a batch. The sink has it once for each commit.
    A task stages nothing after its lease                               at each part (`Record.stage`)
    and no query deletes the last file that knows a message to come     at each deletion
I6  kept state is bounded by uncommitted and in-doubt messages          at the end
keys  messages of an ordering key are in order, in partition and batches   at the end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from tests.simulation import product
from tests.simulation.cases import Repeat, loss_of, name_of
from tests.simulation.record import Record, Staged, short
from tests.simulation.store import SimStore

MAX_IN_DOUBT_FILES = 12  # each twice as long as the next, and deleted with the next batch
MAX_SCHEMA_FILES = 30  # of five revisions: as readers, and the answers about each
MAX_BATCHES = 4  # for a backlog that fits into one
MAX_OTHER_FILES, MAX_OTHER_BYTES = 4, 1024  # the token, the last batch, the owner, the unfinished run


def watch_acks(record: Record) -> None:
    """Check I1 at each ack."""

    def check(message_id: str, by: str) -> None:
        message = record.messages[message_id]
        if message_id in record.committed or message.ended:
            return
        if message_id in record.dead_letters:
            message.ended = "cannot be decoded"
            return
        message.ended = loss_of(record, message_id, by)
        if message.ended:
            record.tell("checker", "%s is lost: %s", short([message_id]), message.ended)
        else:
            record.violate("I1", f"{by} has acknowledged {short([message_id])}, which is no row of a committed batch")

    record.watchers.append(check)


def undelivered(record: Record) -> list[str]:
    """Return the messages that are not rows and have to be."""
    return [m.id for m in record.messages.values() if not m.ended and m.id not in record.committed]


def check_repeats(record: Record) -> None:
    """Check I5 in the committed batches, and count the repeats of each case."""
    rows: dict[bytes, tuple[str, float]] = {}  # the message that is a row, and since when, by data
    for message_id, commits in record.committed.items():
        for (first, before), (again, after) in pairwise(commits):
            _check_repeat(record, Repeat(message_id, first, again, before is after), f"of batch {after.batch[1]}")
        for at, _ in commits[:1]:
            other, first = rows.setdefault(record.messages[message_id].data, (message_id, at))
            if other != message_id:
                _check_repeat(record, Repeat(message_id, first, at, False), f"with the data of {short([other])}")


def _check_repeat(record: Record, repeat: Repeat, what: str) -> None:
    case = name_of(record, repeat)
    record.repeats[str(case)] += 1
    if case is None:
        record.violate(
            "I5",
            f"{short([repeat.message_id])} is a row at {repeat.first:.3f} s and again {what} at {repeat.again:.3f} s, "
            "and no case of guarantee.md explains it",
        )


def check_sink(record: Record) -> None:
    """Check I1 and I5 in the sink: it has each row once for each commit, but in the cases of `cases`.

    A rollback takes rows away from the sink, and a new checkpoint leaves rows there of batches that are not committed.
    """
    if record.notes["rolled back"] or record.notes["new checkpoint"]:
        return
    for message_id, commits in record.committed.items():
        written = record.sunk[message_id]
        for again in written[len(commits) :]:
            _check_repeat(record, Repeat(message_id, written[0], again, False), "in the sink")
        message = record.messages[message_id]
        if len(written) < len(commits):
            message.ended = loss_of(record, message_id, "the sink")
            if not message.ended:
                record.violate("I1", f"{short([message_id])} is a row of a committed batch, and is not in the sink")


def check_deletion(record: Record, path: str, content: bytes, left: Mapping[str, bytes], by: str) -> None:
    """Check I5 when a query deletes a file: a committed message that no other file knows has been acknowledged.

    Its next delivery would be a row again, also if none comes in this history.
    """
    messages = [record.messages[message_id] for message_id, commits in record.committed.items() if commits]
    not_acked = [message.id for message in messages if not message.ended and not record.acked[message.id]]
    forgotten = product.known_ids(path, content, not_acked)
    for other, kept in left.items():
        forgotten -= product.known_ids(other, kept, sorted(forgotten))
    for message_id in sorted(forgotten):
        first, _ = record.committed[message_id][0]
        if record.is_behind(by):
            record.note("forgotten behind", message_id)
        elif name_of(record, Repeat(message_id, first, record.hub.now, False)) is None:
            record.violate("I5", f"{short([message_id])} is forgotten with {path}, and was not acknowledged")


def check_driver_parts(record: Record) -> None:
    """Check I5 in the parts of the driver stream: no case allows a repeated row in one of them."""
    for batch, parts in record.staged.items():
        for part in parts:
            counts = Counter(product.driver_ids(part.content))
            if twice := [message_id for message_id, count in counts.items() if count > 1]:
                record.violate("I5", f"the driver's part of batch {batch[1]} has {short(twice)} more than once")


def check_keys(record: Record) -> None:
    """Check the order of each key, unless the service has forgotten its outstanding messages (after a seek)."""
    if not record.notes["seek"] and not record.notes["recreated"]:
        _check_order(record)
        _check_partitions(record)


def _check_order(record: Record) -> None:
    """Check that the first rows of each key are in the order of publishing, within partitions and over batches.

    A message that was not read in its batch may be a row later, after a rollback. If Pub/Sub ends a lease early and
    makes the message a dead letter, later ones of its key come while it is still in a buffer.
    """
    cut = {message_id for _, ids in record.notes["lease cut"] for message_id in ids}
    seen = {
        message.id
        for message in record.messages.values()
        if message.ended == "not read" or (message.ended == "dead letter" and message.id in cut)
    }
    last: dict[str, int] = {}
    for commit in record.commits:
        for _, partition in sorted(commit.rows.items()):
            for message_id, _ in partition:
                key = record.messages[message_id].key
                if not key or message_id in seen:
                    continue
                seen.add(message_id)
                if int(message_id) < last.get(key, 0):
                    record.violate("keys", f"{short([message_id])} of key {key} comes after {short([str(last[key])])}")
                if any(known is commit for _, known in record.committed[message_id]):  # otherwise see `roll_back`
                    last[key] = int(message_id)


def _check_partitions(record: Record) -> None:
    """Check that the rows of a key in a batch are in one partition.

    Pub/Sub may deliver the same message of a key to two tasks by itself. Neither sees the other's part if both look
    before either is staged. In two batches, its second row may be in another partition than later messages of the key.
    Later messages of a key also come if an earlier one becomes a dead letter before its batch is committed.
    """
    notes = (*record.notes["ack forgotten"], *record.notes["lease cut"])
    repeated_keys = {record.messages[message_id].key for _, ids in notes for message_id in ids}
    for commit in record.commits:
        partitions: dict[str, int] = {}
        messages = [record.messages[message_id] for rows in commit.rows.values() for message_id, _ in rows]
        dead = {message.key for message in messages if message.ended == "dead letter"}
        for index, partition in commit.rows.items():
            for message_id, _ in partition:
                key, known = record.messages[message_id].key, record.committed[message_id]  # none after a rollback
                is_repeat = key in repeated_keys and bool(known) and known[0][1] is not commit
                if key and key not in dead and not is_repeat and partitions.setdefault(key, index) != index:
                    if key in repeated_keys and _looked_too_early(record.staged[commit.batch]):
                        continue
                    record.violate("keys", f"batch {commit.batch[1]} has key {key} in two partitions")


def _looked_too_early(parts: list[Staged]) -> bool:
    """Return whether a task with messages has looked for other parts before another one that is before its own."""
    return any(
        after.looked is not None and any(after.looked < before.at for before in parts[:number])
        for number, after in enumerate(parts)
    )


def check_batches(record: Record, backlog: int, batches: int) -> None:
    """Check I4: tasks pull a backlog that is larger than the driver's buffer and fits into a batch."""
    if batches > MAX_BATCHES:
        record.violate("I4", f"a backlog of {backlog} messages took {batches} batches")


def check_files(record: Record, store: SimStore, stream: str, is_in_doubt: bool) -> None:
    """Check I6, when no lease is left. is_in_doubt: whether the source cannot know that its last batch is committed.

    Looks at the folder of one stream: a start that dies before its first batch leaves a folder of its own.
    """
    sizes = {path.partition(f"/{stream}/")[2]: len(data) for path, data in store.files.items() if f"/{stream}/" in path}
    folders = Counter(path.partition("/")[0] for path in sizes if "/" in path)
    batches = [folder for folder in folders if folder.isdigit()]
    if len(batches) > is_in_doubt:
        record.violate("I6", f"files are left of batches {sorted(batches)}, which are committed and acked")
    if folders["in-doubt"] > MAX_IN_DOUBT_FILES:
        record.violate("I6", f"{folders['in-doubt']} files of ids in doubt are left")
    if folders["schemas"] > MAX_SCHEMA_FILES:
        record.violate("I6", f"{folders['schemas']} files of schemas are left")
    known = {*batches, "in-doubt", "schemas"}
    others = {path: size for path, size in sizes.items() if path.partition("/")[0] not in known}
    if len(others) > MAX_OTHER_FILES or sum(others.values()) > MAX_OTHER_BYTES:
        record.violate("I6", f"{len(others)} files of {sum(others.values()):,} bytes are left: {sorted(others)}")


def check_memory(record: Record, memory: product.Memory, is_calm: bool) -> None:
    """Check I6 at the end of a quiet run that has delivered everything, and has looked for more.

    It may hold the ids of messages that were acknowledged late, if anything delayed an ack. Some are in several sets.
    """
    if memory.batches or memory.buffered:
        record.violate("I6", f"a run has batches {memory.batches} and {memory.buffered} messages in memory at its end")
    if memory.ids > (0 if is_calm else len(record.messages)):
        record.violate("I6", f"a run has {memory.ids} ids in doubt in {memory.sets} sets at its end")
