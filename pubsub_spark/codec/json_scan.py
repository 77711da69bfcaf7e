"""JSON texts one after another, by Python's scanner: the values of those that are JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

WHITESPACE: Final = " \t\n\r"  # around a value; Python's `strip` knows more
# What a text that is no JSON, or that a hook of the scanner refuses, raises.
_REFUSALS: Final = (ValueError, TypeError, LookupError, ArithmeticError, StopIteration, RecursionError)

Scan = Callable[[str, int], tuple[Any, int]]  # `json.scanner.make_scanner`'s: from a place, the value and its end


def scan_each(scan: Scan, texts: Sequence[bytes]) -> tuple[list[int], list[Any]]:
    """The values of the texts that are JSON, and their places."""
    places: list[int] = []
    values: list[Any] = []
    for place, data in enumerate(texts):
        try:
            text = data.decode().strip(WHITESPACE)
            value, end = scan(text, 0)
        except _REFUSALS:
            continue
        if end == len(text):
            places.append(place)
            values.append(value)
    return places, values
