"""Functions bound to their first arguments: the nodes of a compiled plan."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Bound(partial[T]):
    """A `partial` that prints as its call, and equals another one of the same function and equal arguments."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment] # as of the Arrow arrays among the arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bound) and self._parts == other._parts

    def __repr__(self) -> str:
        named = [f"{name}={_text(value)}" for name, value in self.keywords.items()]
        return f"{_text(self.func)}({', '.join([*map(_text, self.args), *named])})"

    @property
    def _parts(self) -> tuple[object, ...]:
        return self.func, self.args, self.keywords


def _text(value: object) -> str:
    if type(value) is tuple:
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    return str(getattr(value, "__name__", None) or repr(value)).removeprefix("_")
