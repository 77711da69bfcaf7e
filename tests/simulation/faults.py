"""Which faults a history has, and how often each happens.

A swarm: a history draws a few kinds and a rate for each, and the others are off. A history with every fault at once
finds less than thousands with three faults each.

Never injected, because no connector could keep its promise: a service that loses a message or takes an ack back after
its retention. A store whose create-only writes overwrite, or that loses a file which it still lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.chooser import Chooser

# Kind -> what happens, and the highest rate (a probability for each occasion).
KINDS: dict[str, tuple[str, float]] = {
    "driver killed": ("the driver is killed at any point where it waits", 1.0),
    "task killed": ("an attempt of a task is killed at any point where it waits", 0.5),
    "late attempt": ("an attempt lives on after its driver is gone, or sleeps until long after its batch", 0.7),
    "process suspended": ("a process stands still for seconds or hours (SIGSTOP)", 0.5),
    "machine sleeps": ("a machine sleeps, and its monotonic clock stands still", 0.5),
    "all suspended": ("all processes of the query stand still for seconds or minutes", 0.7),
    "clocks apart": ("the machines' wall clocks are wrong", 1.0),
    "slow threads": ("time passes while threads could run", 0.02),
    "thread preempted": ("a thread stands still between two lines, and others run", 0.05),
    "service down": ("for a while every call is UNAVAILABLE, and streams end", 0.7),
    "service silent": ("for a while nothing reaches the service and nothing comes back", 0.7),
    "no quota": ("for a while Acknowledge and ModifyAckDeadline are RESOURCE_EXHAUSTED, or all ids fail", 0.7),
    "call refused": ("a call fails and has no effect", 0.2),
    "call slow": ("a call takes seconds or longer than its timeout", 0.2),
    "answer lost": ("a call takes effect and is not answered", 0.2),
    "some ids fail": ("a request fails for some of its ids (exactly-once delivery)", 0.5),
    "acks dropped": ("the service drops acks of a key that come before those of earlier messages", 1.0),
    "ack forgotten": ("the service accepts an ack and delivers the message again", 0.05),
    "lease cut": ("the service ends leases early", 0.3),
    "stream ended": ("the service ends a stream", 0.05),
    "stream silent": ("a stream brings nothing any more, and is not ended", 0.02),
    "seek back": ("the subscription is sought back", 0.4),
    "seek forward": ("the subscription is sought forward", 0.4),
    "schema changed": ("revisions of the topic's schema are committed, some seen late, and deleted", 0.7),
    "recreated": ("the subscription is deleted and created again", 0.3),
    "store refuses": ("a call of the store is refused", 0.05),
    "store slow": ("a call of the store takes seconds or minutes", 0.05),
    "store answer lost": ("the store does what it is asked and reports a failure", 0.05),
    "file removed": ("a cleaner removes files of the staging area", 0.5),
    "power loss": ("the machines lose power, and files that are being written are cut short", 0.4),
    "task fails": ("a task fails after it was given its rows", 0.2),
    "sink fails": ("the sink fails before or after it has written", 0.3),
    "partial action": ("`foreachBatch` does not read all partitions, or catches a failure, and attempts live on", 1.0),
    "speculation": ("two attempts of a task run at once", 0.4),
    "second driver": ("another driver starts on the same checkpoint while the first lives", 0.4),
    "checkpoint rolled back": ("the checkpoint loses its last entries", 0.5),
    "other staging": ("the query uses another staging area for a run", 0.3),
    "other options": ("the query is restarted with other options", 0.7),
}

# Kinds that explain a repeated row (`cases`). Behind them, no repeat shows a wrong rule.
REPEATING = frozenset(
    {
        "ack forgotten",
        "checkpoint rolled back",
        "file removed",
        "lease cut",
        "other staging",
        "power loss",
        "recreated",
        "seek back",
        "seek forward",
        "service silent",
        "stream silent",
    }
)

# Kinds that take away files or acks of earlier runs.
UNDOING = frozenset(
    {
        "checkpoint rolled back",
        "file removed",
        "other staging",
        "power loss",
        "recreated",
        "seek back",
        "seek forward",
    }
)

# Kinds that are drawn more often, because few of their histories show a wrong rule.
_RARELY_SEEN = ("some ids fail", "some ids fail", "checkpoint rolled back", "checkpoint rolled back")

# Kinds that come with one of others: a rollback shows little unless acks were in doubt before it.
_TOGETHER = {"checkpoint rolled back": ("no quota", "no quota", "some ids fail")}


@dataclass
class Faults:
    """The faults of one history. rates: by kind. Those that are left out never happen.

    hit: how many were drawn. spared: the numbers of those that do not happen all the same.
    """

    chooser: Chooser
    rates: dict[str, float] = field(default_factory=dict)
    are_on: bool = True
    spared: frozenset[int] = frozenset()
    hit: int = 0

    @classmethod
    def drawn(
        cls,
        chooser: Chooser,
        most: int = 5,
        without: frozenset[str] = frozenset(),
        always: tuple[str, ...] = (),
        spared: frozenset[int] = frozenset(),
    ) -> Faults:
        """Return a mix of `always` and up to `most` other kinds, each at a rate up to its highest.

        Rates of `without` are dropped.
        """
        kinds = [*KINDS, *_RARELY_SEEN]
        rates = {kind: KINDS[kind][1] * chooser.pick((1.0, 1.0, 0.3)) for kind in always}
        for _ in range(chooser.below(most + 1)):
            kind = chooser.pick(kinds)
            rates[kind] = KINDS[kind][1] * chooser.pick((1.0, 1.0, 0.3, 0.1))
            if kind in _TOGETHER:
                other = chooser.pick(_TOGETHER[kind])
                rates.setdefault(other, KINDS[other][1])
        return cls(chooser, {kind: rate for kind, rate in rates.items() if kind not in without}, spared=spared)

    def hits(self, kind: str) -> bool:
        """Return whether a fault of this kind happens now."""
        rate = self.rates.get(kind)
        if rate is None or not self.are_on or not self.chooser.chance(rate):
            return False
        self.hit += 1
        return self.hit not in self.spared
