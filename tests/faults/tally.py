"""The tally of a soak: its counts, which another start continues, and the rules for counting an end of a query.

`reason` is the error of ours that a driver ended with, by its log. `by_kill` is the fault that killed it. An end that
has neither counts as nothing: the soak fails by it.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass, field, fields
from pathlib import Path

_ENDED_BY_KILL = -signal.SIGKILL
# The sentences of ours that a failed query may end with: the classes of `pubsub_spark.errors`.
_OURS = re.compile(r"pubsub_spark\.errors\.(\w+Error): ")
_TRACEBACK = 'tests/spark/driver.py", line '  # of the driver, as Python prints it when a query has failed


@dataclass
class Tally:
    """The counts of all rounds so far."""

    seed: int
    rounds: int = 0
    seconds: float = 0.0
    published: int = 0
    lost: int = 0
    repeated: int = 0
    unacknowledged: int = 0
    starts: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    settings: dict[str, int] = field(default_factory=dict)  # rounds of each
    failures: dict[str, int] = field(default_factory=dict)  # by class of the error, or the fault that killed
    most: dict[str, list[int]] = field(default_factory=dict)  # the usage by the kind of process, at the ends of rounds

    @classmethod
    def read(cls, path: Path, seed: int) -> Tally:
        """Return the tally of an earlier start, or a new one if it does not exist or has another seed."""
        if path.exists():
            known = {each.name for each in fields(cls)}
            found = cls(**{name: value for name, value in json.loads(path.read_text()).items() if name in known})
            if found.seed == seed:
                return found
        return cls(seed)

    def __str__(self) -> str:
        most = "; ".join(
            f"{kind} {processes} with {threads} threads, {files} files, {megabytes} MB"
            for kind, (processes, threads, files, megabytes) in sorted(self.most.items())
        )
        return (
            f"seed {self.seed}: {self.rounds} rounds in {self.seconds:.0f} s, {self.published} messages, "
            f"{self.lost} lost, {self.repeated} repeated, {self.unacknowledged} unacknowledged; "
            f"{self.starts} starts; settings: {_listed(self.settings)}; faults: {_listed(self.faults)}; "
            f"queries that ended: {_listed(self.failures)}; at the ends of rounds, at the most: {most}"
        )


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def reason(log: str) -> str | None:
    """Return the class of our error that a driver ended with, by its log, or None if its last words are not ours.

    Tasks that failed and were tried again are also in the log, and are no reason. The reason follows the driver's own
    traceback.
    """
    _, traceback, end = log.rpartition(_TRACEBACK)
    found = _OURS.findall(end) if traceback else []
    return found[-1] if found else None


def by_kill(log: str, code: int, fault: str | None) -> str | None:
    """Return the fault that killed a query, if it ended as one does by that. A kill excuses no other end.

    code: of the driver's exit. `kill_driver` leaves no last words. After the others Spark ends the query, and the
    driver says so.
    """
    if fault is None or (code == _ENDED_BY_KILL) != (fault == "kill_driver"):
        return None
    return fault if fault == "kill_driver" or _TRACEBACK in log else None
