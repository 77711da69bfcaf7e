"""The nodes of a compiled plan are values: they print, and compare."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from pubsub_spark.bound import Bound


def _scaled(by: int, number: int, /, *, plus: int = 0) -> int:
    return by * number + plus


def _summed(parts, number: int) -> int:
    return sum(part(number) for part in parts)


def test_call_has_the_bound_arguments_first():
    """It is called as a `partial` is."""
    assert Bound(_summed, (Bound(_scaled, 2), Bound(_scaled, 3, plus=1)))(5) == 26


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (Bound(_scaled, 2, plus=3), "scaled(2, plus=3)"),
        (Bound(_summed, (Bound(_scaled, 2), _scaled)), "summed((scaled(2), scaled))"),
        (Bound(_summed, (_scaled,)), "summed((scaled,))"),
        (Bound(_summed, ()), "summed(())"),
        (Bound(_scaled, "a", np.float32, pa.int8()), "scaled('a', float32, DataType(int8))"),
    ],
)
def test_text_is_the_call(bound: Bound[int], text: str):
    """A plan prints as the tree of its calls."""
    assert repr(bound) == text


def test_equal_are_the_same_function_and_equal_arguments():
    """Arrow arrays among the arguments are also compared."""
    assert Bound(_summed, (Bound(_scaled, 2), pa.array([1]))) == Bound(_summed, (Bound(_scaled, 2), pa.array([1])))


@pytest.mark.parametrize(
    "other",
    [
        Bound(_scaled, 3, plus=1),
        Bound(_scaled, 2, plus=2),
        Bound(_scaled, 2),
        Bound(_summed, 2, plus=1),
        partial(_scaled, 2, plus=1),
        "scaled(2, plus=1)",
    ],
)
def test_unequal_are_others(other: object):
    """Each part distinguishes."""
    assert Bound(_scaled, 2, plus=1) != other
