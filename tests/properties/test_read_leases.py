"""Two laws of leases, tested with hypothesis: a part that may be delivered again is expired, a held one is extended.

The model is the service's side: when the lease of each part really ends. `Leases` learns of it only through its own
plans, and through extensions that may be answered, refused or lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pubsub_spark.read.leases import TRACK_AFTER_SECONDS, Leases
from pubsub_spark.read.pull.lease import LEASE_SECONDS, STREAM_LEASE_SECONDS, Lease


@dataclass
class ServiceLease:
    """The lease of a part on the service's side: when it ends, and whether it has ended once."""

    ends: float
    expired: bool = False


class LeaseMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.batch = 0
        self.leases = Leases()
        self.parts: dict[tuple[int, int], ServiceLease] = {}
        self.committed: set[int] = set()

    @rule(waited=st.sampled_from([0, 10, 50]), tasks=st.integers(0, 2))
    def plan(self, waited: int, tasks: int) -> None:
        """Plan a batch of messages that were buffered for so long, and of those that tasks pull in the next seconds."""
        self.batch += 1
        self.leases.plan(self.batch, self.now)
        driver_lease = Lease(self.now - waited, STREAM_LEASE_SECONDS)
        self.leases.track(self.batch, 0, driver_lease)
        self.parts[self.batch, 0] = ServiceLease(driver_lease.end)
        for part in range(1, tasks + 1):
            self.parts[self.batch, part] = ServiceLease(self.now + part + STREAM_LEASE_SECONDS)

    @rule(answer=st.sampled_from(["granted", "refused", "lost"]), took=st.sampled_from([0, 5, 50]))
    def extend(self, answer: str, took: int) -> None:
        """Do what the lease extender does each second; the service may be slow to answer, or not answer."""
        sent = self.now
        for batch in self.leases.to_track(sent):
            for number, part in self.parts:
                if number == batch:
                    self.leases.track(batch, part)
        due = self.leases.due(sent)
        if answer == "granted":
            for key in due:
                self._expire(key)
                self.parts[key].ends = sent + LEASE_SECONDS
        self.wait(took)
        if answer != "lost":
            for batch, part in due:
                self.leases.record_extension(batch, part, sent, self.now, refused=answer == "refused")

    @rule()
    def commit(self) -> None:
        named = self.leases.commit(self.batch)
        assert not self.committed & set(named)
        self.committed |= set(named)

    @rule()
    def acknowledge(self) -> None:
        for batch in self.leases.unacknowledged:
            assert batch in self.committed, "acknowledged is a part of committed"
            self.leases.record_acknowledged(batch)
            self.parts = {key: part for key, part in self.parts.items() if key[0] != batch}

    @rule(seconds=st.sampled_from([1, 14, 46, 61, 150, 601]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        for key in self.parts:
            self._expire(key)

    def _expire(self, key: tuple[int, int]) -> None:
        self.parts[key].expired |= self.now >= self.parts[key].ends

    @invariant()
    def part_that_may_be_delivered_again_is_expired(self) -> None:
        for (batch, part), real in self.parts.items():
            assert not real.expired or self.leases.is_expired(batch, part, self.now)

    @invariant()
    def part_that_is_held_for_long_is_tracked(self) -> None:
        tracked = set(self.leases.to_track(self.now))
        assert tracked == {
            b for b in {*self.leases.uncommitted, *self.leases.unacknowledged} if self._age(b) >= TRACK_AFTER_SECONDS
        }

    def _age(self, batch: int) -> float:
        owner = self.leases._batches[batch]
        return self.now - owner.planned


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
