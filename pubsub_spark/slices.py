"""Size-bounded slices of a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


def slices(
    offsets: npt.NDArray[np.integer[Any]], max_entries: int, max_bytes: int, group_starts: Iterable[int] = ()
) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each slice: at most `max_entries` entries and `max_bytes` bytes. A larger entry is a
    slice by itself.

    offsets: where each entry begins in memory, and the end of the last. group_starts: entries, ascending, before
    which a slice ends.
    """
    start = 0
    for group_end in (*group_starts, len(offsets) - 1):
        while start < group_end:
            window = offsets[start : min(start + max_entries, group_end) + 1]
            fitting = int(np.searchsorted(window, int(window[0]) + max_bytes, side="right")) - 1
            end = start + max(1, fitting)
            yield start, end
            start = end
