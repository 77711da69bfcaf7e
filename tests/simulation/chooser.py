"""Where the decisions of a history come from.

`Seeded` draws them. `Enumerated` takes every combination of them in turn, depth first: it replays a prefix of decisions
and takes the first alternative after it, as TigerBeetle's exhaustigen does. A history asks for decisions in an order
that depends on nothing but earlier decisions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Chooser(Protocol):
    """The source of a history's decisions."""

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""

    def below(self, count: int) -> int:
        """Return a number from 0 to `count - 1`."""

    def pick(self, values: Sequence[T]) -> T:
        """Return one of the values."""

    def seconds(self, low: float, high: float) -> float:
        """Return a duration between two bounds, as likely of 1 to 10 s as of 10 to 100 s."""


class Seeded:
    """Decisions drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def below(self, count: int) -> int:
        return int(self._random.random() * count)

    def pick(self, values: Sequence[T]) -> T:
        return values[int(self._random.random() * len(values))]

    def seconds(self, low: float, high: float) -> float:
        return float(low * (high / low) ** self._random.random())


class Fixed:
    """The same alternative each time, and no chance but a certain one: for decisions that are not varied."""

    def __init__(self, at: int = 0) -> None:
        self._at = at

    def chance(self, probability: float) -> bool:
        return probability >= 1

    def below(self, count: int) -> int:
        return 0

    def pick(self, values: Sequence[T]) -> T:
        return values[self._at]

    def seconds(self, low: float, high: float) -> float:
        return low


class Enumerated:
    """All combinations of decisions: run a history, then `advance()` to the next, until all are done."""

    def __init__(self) -> None:
        self._prefix: list[tuple[int, int]] = []  # the decision taken, and the number of alternatives
        self._at = 0

    def below(self, count: int) -> int:
        if self._at == len(self._prefix):
            self._prefix.append((0, count))
        taken, known = self._prefix[self._at]
        assert known == count, "a history depends on something other than its decisions"
        self._at += 1
        return taken

    def chance(self, probability: float) -> bool:
        """Return both answers in turn, False first."""
        return probability > 0 and self.below(2) == 1

    def pick(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def seconds(self, low: float, high: float) -> float:
        return low if self.below(2) == 0 else high

    def advance(self) -> bool:
        """Go to the next combination. Returns whether there is one."""
        self._at = 0
        while self._prefix:
            taken, count = self._prefix.pop()
            if taken + 1 < count:
                self._prefix.append((taken + 1, count))
                return True
        return False

    @property
    def decisions(self) -> list[int]:
        """The decisions of the current history."""
        return [taken for taken, _ in self._prefix]
