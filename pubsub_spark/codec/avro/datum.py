"""What a decoded Avro value looks like in Python, and what is said when one does not fit.

| Avro | datum |
|---|---|
| null, boolean, int, long, float, double, string | None, bool, int, int, float, float, str |
| bytes, fixed | bytes |
| enum | the symbol, a str |
| array, map | list, dict |
| record | tuple, in the order of the schema's fields |
| union | tuple (branch index, datum of that branch) |

A datum is what the slow but exact path passes from the encodings (`binary`, `json`) to `resolution`, which turns the
writer's datum into the reader's value. Logical types do not show: a decimal is still its bytes, a date still an int.
"""

from __future__ import annotations

from typing import Any


class Mismatch(ValueError):  # noqa: N818 (a finding, not a failure)
    """A value does not fit its schema; the path is put together while the error travels outwards."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []  # innermost first

    def inside(self, step: str) -> Mismatch:
        """Add the step that led to the value: `.name`, `[3]` or `['key']`."""
        self.steps.append(step)
        return self

    def sentence(self, root: str = "The message") -> str:
        """`Field `legs[3].carrier` is not valid UTF-8`; without a path the subject is `root`."""
        path = "".join(reversed(self.steps)).removeprefix(".")
        return f"Field `{path}` {self.reason}" if path else f"{root} {self.reason}"


def is_int(value: Any, bounds: tuple[int, int]) -> bool:
    """Whether `value` is an integer within `bounds`; a bool is none."""
    return type(value) is int and bounds[0] <= value <= bounds[1]
