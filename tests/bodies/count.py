"""The outcomes of the cases of a body: they agree, differ as documented, were left out, or are unexplained."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Count:
    """The outcomes of a body.

    body, judge: the words of the table. differences: the cases that differ, by the sentence that documents them.
    left_out: those that cannot be asked. unexplained: those that differ and should not, with the reason.
    """

    body: str
    judge: str
    agree: int = 0
    differences: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    unexplained: list[str] = field(default_factory=list)

    def check(self, agrees: bool, case: object) -> None:
        """Count a case that agrees or should."""
        if agrees:
            self.agree += 1
        else:
            self.unexplained.append(str(case))
