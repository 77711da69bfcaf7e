"""The law of leases, looked for by hypothesis: what may come again is known to be late, what is held is looked after.

The model is the service's side: when the lease of each part really ends. Our side learns of it only through its own
announcements, and through extensions that may be answered, refused or lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pubsub_spark.read.leases import LEASE, STREAM_LEASE, WATCH, Lease, Leases


@dataclass
class Part:
    """What the service knows: until when the messages are leased, and whether that was over once."""

    ends: float
    lapsed: bool = False


class LeaseMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.batch = 0
        self.leases = Leases()
        self.parts: dict[tuple[int, int], Part] = {}
        self.committed: set[int] = set()

    @rule(waited=st.sampled_from([0, 10, 50]), tasks=st.integers(0, 2))
    def plan(self, waited: int, tasks: int) -> None:
        """A batch of what has waited at the door for so long, and of what tasks pull within the next seconds."""
        self.batch += 1
        self.leases.announce(self.batch, self.now)
        door = Lease(self.now - waited, STREAM_LEASE)
        self.leases.found(self.batch, 0, door)
        self.parts[self.batch, 0] = Part(door.ends)
        for part in range(1, tasks + 1):
            self.parts[self.batch, part] = Part(self.now + part + STREAM_LEASE)

    @rule(answer=st.sampled_from(["granted", "refused", "lost"]), took=st.sampled_from([0, 5, 50]))
    def look_after(self, answer: str, took: int) -> None:
        """What the keeper does each second; the service may take its time to answer, or not."""
        since = self.now
        for batch in self.leases.watched(since):
            for number, part in self.parts:
                if number == batch:
                    self.leases.found(batch, part)
        due = self.leases.due(since)
        if answer == "granted":
            for key in due:
                self._let_lapse(key)
                self.parts[key].ends = since + LEASE
        self.wait(took)
        if answer != "lost":
            for batch, part in due:
                self.leases.extended(batch, part, since, self.now, refused=answer == "refused")

    @rule()
    def commit(self) -> None:
        named = self.leases.commit(self.batch)
        assert not self.committed & set(named)
        self.committed |= set(named)

    @rule()
    def acknowledge(self) -> None:
        for batch in self.leases.unacknowledged:
            assert batch in self.committed, "acknowledged is a part of committed"
            self.leases.acknowledged(batch)
            self.parts = {key: part for key, part in self.parts.items() if key[0] != batch}

    @rule(seconds=st.sampled_from([1, 14, 46, 61, 150, 601]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        for key in self.parts:
            self._let_lapse(key)

    def _let_lapse(self, key: tuple[int, int]) -> None:
        self.parts[key].lapsed |= self.now >= self.parts[key].ends

    @invariant()
    def what_may_come_again_is_late(self) -> None:
        for (batch, part), real in self.parts.items():
            assert not real.lapsed or self.leases.is_late(batch, part, self.now)

    @invariant()
    def what_is_held_for_long_is_looked_after(self) -> None:
        watched = set(self.leases.watched(self.now))
        assert watched == {b for b in {*self.leases.held, *self.leases.unacknowledged} if self._age(b) >= WATCH}

    def _age(self, batch: int) -> float:
        owner = self.leases._batches[batch]
        return self.now - owner.announced


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
