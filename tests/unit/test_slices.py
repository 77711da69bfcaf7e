"""Size-bounded slices: within their limits, without a gap, and as few as there can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.slices import slices


@given(
    st.lists(st.integers(0, 50), max_size=60),
    st.integers(1, 10),
    st.integers(1, 100),
    st.sets(st.integers(0, 60), max_size=5),
)
def test_slices_are_within_their_limits_and_leave_nothing_out(
    sizes: list[int], max_entries: int, max_bytes: int, starts: set[int]
):
    """Each entry is in exactly one slice, and one more entry would break a limit or belong to another group."""
    group_starts = sorted(start for start in starts if start <= len(sizes))
    made = list(slices(np.cumsum([0, *sizes]), max_entries, max_bytes, group_starts))

    assert list(range(len(sizes))) == [entry for start, end in made for entry in range(start, end)]
    for start, end in made:
        assert end - start == 1 or (end - start <= max_entries and sum(sizes[start:end]) <= max_bytes)
        assert not any(start < group_start < end for group_start in group_starts)
        more = sizes[start : end + 1]
        assert end == len(sizes) or end in group_starts or end - start == max_entries or sum(more) > max_bytes, (
            "a slice that could be larger"
        )


@pytest.mark.parametrize("first", [0, 7])
def test_offsets_may_begin_anywhere(first: int):
    """The offsets of a part of an Arrow column do not begin at 0."""
    assert [(0, 2), (2, 3)] == list(slices(np.array([0, 2, 4, 6]) + first, 10, 4))
