"""Many histories: run them, stop at the first that breaks an invariant, make it smaller, say what happened."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.simulation import history
from tests.simulation.history import Outcome, Plan
from tests.simulation.record import Violation
from tests.simulation.shrink import shrink

_CHUNK = 10  # histories that a process gets at a time


@dataclass
class Summary:
    """The result of a number of histories. failures: their reports, smallest history first."""

    histories: int = 0
    steps: int = 0
    messages: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    violation: Violation | None = None  # the last

    def add(self, outcome: Outcome) -> None:
        """Count a history."""
        self.histories += 1
        self.steps += outcome.steps
        self.messages += outcome.messages
        self.kinds.update(outcome.rates)
        self.repeats += outcome.record.repeats
        self.losses.update(message.ended for message in outcome.record.messages.values() if message.ended)
        self.violation = outcome.violation or self.violation

    def __iadd__(self, other: Summary) -> Summary:
        self.histories += other.histories
        self.steps += other.steps
        self.messages += other.messages
        self.kinds += other.kinds
        self.repeats += other.repeats
        self.losses += other.losses
        self.failures += other.failures
        self.violation = other.violation or self.violation
        return self

    def __str__(self) -> str:
        each = max(1, self.histories)
        repeats, losses = (
            ", ".join(f"{name}: {count}" for name, count in counts.most_common()) or "none"
            for counts in (self.repeats, self.losses)
        )
        return (
            f"{self.histories:,} histories, {self.steps // each:,} steps and {self.messages / each:.1f} messages each\n"
            f"repeated rows: {repeats}\nmessages that need not be rows: {losses}"
        )


def run(seeds: Iterable[int], seconds: float = float("inf"), keep_going: bool = False) -> Summary:
    """Run the histories of seeds, for so much processor time, up to the first that breaks an invariant."""
    end = time.process_time() + seconds
    summary = Summary()
    for seed in seeds:
        if time.process_time() >= end:
            break
        outcome = history.run(Plan(seed))
        summary.add(outcome)
        if outcome.violation is not None:
            summary.failures.append(report(outcome))
            if not keep_going:
                break
    return summary


def report(outcome: Outcome, lines: int = 80) -> str:
    """Return the report of a failed history: itself, and a smaller one with its timeline."""
    smaller = shrink(outcome)
    return "\n".join(
        [_headline(outcome), *_timeline(outcome, 15), "", "smaller:", _headline(smaller), *_timeline(smaller, lines)]
    )


def _headline(outcome: Outcome) -> str:
    assert outcome.violation is not None
    invariant, what = outcome.violation
    faults = ", ".join(f"{kind} {rate:g}" for kind, rate in sorted(outcome.rates.items())) or "none"
    return (
        f"seed {outcome.plan.seed} breaks {invariant}: {what}\n"
        f"  {outcome.plan}\n  faults: {faults}. {outcome.happened} happened"
    )


def _timeline(outcome: Outcome, lines: int) -> list[str]:
    shown = outcome.record.lines()
    left_out = [f"... {len(shown) - lines} lines before"] if len(shown) > lines else []
    return left_out + shown[-lines:]


def run_parallel(first: int, count: int, jobs: int) -> Summary:
    """Run the histories of `count` seeds from `first` on, in several processes."""
    chunks = [range(at, min(at + _CHUNK, first + count)) for at in range(first, first + count, _CHUNK)]
    total = Summary()
    with ProcessPoolExecutor(jobs, initializer=gc.freeze) as pool:  # imports are not looked at again: 10 % faster
        for summary in pool.map(run, chunks):
            total += summary
            if total.failures:
                pool.shutdown(cancel_futures=True)
                break
    return total
