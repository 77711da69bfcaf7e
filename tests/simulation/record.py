"""What happened in a history, as seen from outside the code: by the service, by the store, by Spark.

The checkers and the cases read nothing else. `tell` adds a line to the timeline that a failed history prints.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.simulation import product
from tests.simulation.hub import Hub

Row = tuple[str, Any]  # message id and data, or the decoded fields by name
Rows = tuple[Row, ...]
Batch = tuple[str, int]  # stream and number, as in the end offset


class Violation(NamedTuple):
    """A broken invariant."""

    invariant: str
    what: str


@dataclass
class Message:
    """A published message. ended: why it need not be delivered any more, such as a seek."""

    id: str
    key: str
    data: bytes
    at: float
    ended: str = ""


class Commit(NamedTuple):
    """A committed batch: time, checkpoint, Spark's number, its rows in the sink by partition.

    rows: without the partitions that `foreachBatch` did not read.
    """

    at: float
    checkpoint: str
    number: int
    batch: Batch
    rows: dict[int, Rows]


class Staged(NamedTuple):
    """A part that a process has staged for a partition.

    looked: when the process last listed the parts of its batch after it had messages.
    """

    at: float
    looked: float | None
    partition: int
    content: bytes


@dataclass
class Record:
    """The record of one history."""

    hub: Hub
    messages: dict[str, Message] = field(default_factory=dict)
    delivered: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    acked: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    commits: list[Commit] = field(default_factory=list)
    committed: dict[str, list[tuple[float, Commit]]] = field(default_factory=lambda: defaultdict(list))
    evaluations: dict[tuple[Batch, str], dict[int, Rows]] = field(default_factory=lambda: defaultdict(dict))
    sunk: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # written by the sink, by id
    dead_letters: set[str] = field(default_factory=set)  # ids of messages that were published to `deadLetterTopic`
    repeats: Counter[str] = field(default_factory=Counter)  # by the name of their case
    staged: dict[Batch, list[Staged]] = field(default_factory=lambda: defaultdict(list))
    counted: dict[Batch, float] = field(default_factory=dict)  # when a driver has listed a batch after its commit
    unstaged: set[Batch] = field(default_factory=set)  # whose staged files something else has removed or cut short
    unmarked: set[Batch] = field(default_factory=set)  # that have lost a sign that a part was yielded
    schemas_lost: bool = False  # so that values may differ, with a WARNING
    notes: dict[str, list[tuple[float, Any]]] = field(default_factory=lambda: defaultdict(list))  # faults, by kind
    timeline: list[tuple[float, str, str, tuple[Any, ...]]] = field(default_factory=list)
    violation: Violation | None = None
    _undone: dict[Batch | str, set[str]] = field(default_factory=dict)  # applications by batch, and by message id
    _looked: dict[str, dict[Batch, float]] = field(default_factory=dict)  # by process, since it has messages
    _uncounted: set[Batch] = field(default_factory=set)  # committed, and a driver is just learning of it
    _partitions: dict[str, int] = field(default_factory=dict)  # by process of an attempt
    _leased_until: dict[str, float] = field(default_factory=dict)  # by process, of its last delivery
    watchers: list[Callable[[str, str], None]] = field(
        default_factory=list
    )  # called with (message id, process) at acks

    def tell(self, who: str, what: str, *values: Any) -> None:
        """Add a line to the timeline. what: with `%s` for the values, which are shown only if it is printed."""
        self.timeline.append((self.hub.now, who, what, values))

    def note(self, kind: str, value: Any = None) -> None:
        """Record that a fault happened."""
        self.notes[kind].append((self.hub.now, value))

    @property
    def has_lost(self) -> bool:
        """Whether files or batches are lost, so that runs fail until the advice of their errors is followed."""
        return any(self.notes[kind] for kind in ("file removed", "rolled back", "other staging"))

    def violate(self, invariant: str, what: str) -> None:
        """Record the first broken invariant. The history ends with it."""
        if self.violation is None and not self.hub.is_over:
            self.violation = Violation(invariant, what)
            self.hub.is_stopped = True
            self.tell("checker", "%s: %s", invariant, what)

    def publish(self, message: Message) -> None:
        """Record that a message was published. One that has the id of an earlier one takes its place."""
        if message.id in self.messages:
            self.note("counted again", message.id)
            for known in (self.delivered, self.acked, self.committed, self.sunk):
                known.pop(message.id, None)
        self.messages[message.id] = message

    def deliver(self, ids: list[str], to: str, leased_until: float) -> None:
        """Record that the service has sent messages, leased until a virtual time."""
        for message_id in ids:
            self.delivered[message_id].append(self.hub.now)
        self._looked.setdefault(to, {})
        self._leased_until[to] = leased_until
        self.tell(to, "is sent %s", short(ids))

    def look(self, batch: Batch, by: str) -> None:
        """Record that a process has listed the parts of a batch."""
        if by in self._looked:
            self._looked[by][batch] = self.hub.now
        if batch in self._uncounted and by not in self._partitions:
            self.counted[batch] = self.hub.now

    def attempt(self, process: str, partition: int) -> None:
        """Record that a process reads a partition. The driver stages messages of the first one."""
        self._partitions[process] = partition

    def stage(self, batch: Batch, by: str, content: bytes, asked: float) -> None:
        """Record that a process has staged a part of a batch. asked: when it has sent the part to the store.

        A task must not send messages after their leases, because another task may have been sent them. Attempts of two
        actions have one name, so the lease of the last delivery counts.
        """
        was_late = self.notes["response late"] or self.notes["response slow"] or self.notes["paused"]
        is_over = by in self._partitions and asked >= self._leased_until.get(by, math.inf)
        if is_over and not was_late and product.staged_ids(content):
            self.violate("I5", f"{by} has staged a part of batch {batch[1]} after the leases of its messages")
        looked, partition = self._looked.get(by, {}).get(batch), self._partitions.get(by, 0)
        self.staged[batch].append(Staged(self.hub.now, looked, partition, content))

    def begin_offset(self, is_new: bool = False) -> None:
        """Record that a driver learns of commits. is_new: whether it has just started and knows of none."""
        if is_new:
            self.counted.clear()
        self._uncounted = {commit.batch for commit in self.commits} - self.counted.keys()

    def end_offset(self) -> None:
        """Record that the driver knows of all commits."""
        for batch in self._uncounted:
            self.counted.setdefault(batch, self.hub.now)
        self._uncounted = set()

    def ack(self, ids: list[str], by: str) -> None:
        """Record that the service has accepted acks."""
        self.tell(by, "acknowledged %s", short(ids))
        for each in ids:
            self.acked[each].append(self.hub.now)
            for watch in self.watchers:
                watch(each, by)

    def evaluate(self, batch: Batch, area: str, partition: int, rows: Rows, by: str) -> None:
        """Record that an attempt has yielded the rows of a partition to Spark, which are staged in an area."""
        if self.is_undone(batch, by):
            return
        known = self.evaluations[batch, area].setdefault(partition, rows)
        self.tell(by, "batch %s partition %s: rows %s", batch[1], partition, short([row[0] for row in rows]))
        before, after = ([row[0] for row in each] for each in (known, rows))
        if batch not in self.unstaged and (
            before != after or not (self.schemas_lost or _have_same_values(known, rows))
        ):
            self.violate(
                "I2",
                f"partition {partition} of batch {batch[1]} had the rows {short(before)} before, now {short(after)}"
                + (" with other values" if before == after else ""),
            )

    def compare(self, batch: Batch, before: dict[int, Rows], after: dict[int, Rows]) -> None:
        """Check that an action of a run has the rows of the one before it on the same batch, whatever was removed.

        Not if the sign was removed that a part was yielded.
        """
        for partition in before.keys() & after.keys():
            ids = [[row[0] for row in rows[partition]] for rows in (before, after)]
            if ids[0] != ids[1] and batch not in self.unmarked:
                self.violate("I2", f"an action on batch {batch[1]} has the rows {short(ids[1])} after {short(ids[0])}")

    def commit(self, commit: Commit, by: str, has_all: bool) -> None:
        """Record that Spark has written a batch to its commit log. by: the name of the application.

        has_all: whether it must have all rows that were yielded in any area. Not if an action was partial, or with
        failOnDataLoss=false.
        """
        if has_all and commit.batch not in self.unstaged:
            areas = [rows for (batch, _), rows in self.evaluations.items() if batch == commit.batch]
            yielded = {message_id for rows in areas for partition in rows.values() for message_id, _ in partition}
            lost = yielded - {message_id for partition in commit.rows.values() for message_id, _ in partition}
            if lost:
                self.violate("I2", f"batch {commit.batch[1]} is committed without its rows {short(sorted(lost))}")
        self.commits.append(commit)
        self.note("commit", by)
        self.counted.pop(commit.batch, None)  # it is not of an earlier commit, which a rollback undid
        for partition in commit.rows.values():
            for message_id, _ in partition:
                self.committed[message_id].append((self.hub.now, commit))
        self.tell("spark", "commits batch %s of checkpoint %s", commit.batch[1], commit.checkpoint)

    def is_behind(self, application: str) -> bool:
        """Return whether another application has committed a batch since this one was started."""
        started = min((at for at, name in self.notes["start"] if name == application), default=math.inf)
        return any(at >= started and name != application for at, name in self.notes["commit"])

    def roll_back(self, batches: set[Batch], applications: set[str]) -> None:
        """Record that a checkpoint has lost batches: messages that are not acked are rows again, of other batches.

        applications: those started so far. Their rows of these batches no longer count, and a message that they
        acknowledge from now on is lost.
        """
        self.note("rolled back")
        for key in [key for key in self.evaluations if key[0] in batches]:
            del self.evaluations[key]
        undone = [
            message_id
            for message_id, commits in self.committed.items()
            if not self.acked[message_id] and all(commit.batch in batches for _, commit in commits)
        ]
        for message_id in undone:
            del self.committed[message_id]
        self._undone |= dict.fromkeys([*batches, *undone], applications)

    def is_undone(self, what: Batch | str, by: str) -> bool:
        """Return whether a batch or a message was undone by `roll_back` when the application of a process had begun."""
        return by.partition(" task")[0] in self._undone.get(what, ())

    def lines(self) -> list[str]:
        """Return the timeline as text: virtual time, process, action."""
        width = max((len(who) for _, who, _, _ in self.timeline), default=0)
        return [f"{at:12.3f} s  {who:<{width}}  {what % values}" for at, who, what, values in self.timeline]


def _have_same_values(before: Rows, after: Rows) -> bool:
    """Return whether rows have the same data, or decoded fields: the columns of a replay are those of the run, maybe
    more.
    """
    for (_, one), (_, other) in zip(before, after, strict=True):
        if isinstance(one, dict):
            if any(one[name] != other[name] for name in one.keys() & other.keys()):
                return False
        elif one != other:
            return False
    return True


def short(ids: list[str]) -> str:
    """Return message ids for the timeline: their last digits, the first few of many."""
    shown = " ".join("m" + each[-4:].lstrip("0").rjust(1, "0") for each in ids[:12])
    return f"[{shown}{f' and {len(ids) - 12} more' if len(ids) > 12 else ''}]"
