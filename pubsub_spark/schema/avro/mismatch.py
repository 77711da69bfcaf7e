"""The finding that a value does not fit its schema, with the path of the faulty field."""

from __future__ import annotations


class Mismatch(ValueError):  # noqa: N818 (a finding, not a failure)
    """A value does not fit its schema; the path is put together while the error travels outwards."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []  # innermost first

    def inside(self, step: str) -> Mismatch:
        """The same finding, one step further out: `.name`, `[3]` or `['key']` led to the value."""
        self.steps.append(step)
        return self

    def sentence(self, root: str = "The message") -> str:
        """`Field `legs[3].carrier` is not valid UTF-8`; without a path the subject is `root`."""
        path = "".join(reversed(self.steps)).removeprefix(".")
        return f"Field `{path}` {self.reason}" if path else f"{root} {self.reason}"


class Unresolvable(Mismatch):
    """Nothing that was written with the one schema can be read with the other."""
