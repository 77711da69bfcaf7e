"""Where a column is cut, so that no piece has too many entries or bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


def cuts(offsets: npt.NDArray[np.integer[Any]], most: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Start and end of each piece: at most `most` entries and, unless it is one entry, `most_bytes` bytes.

    offsets: where each entry begins in memory, and the end of the last.
    """
    start, count = 0, len(offsets) - 1
    while start < count:
        piece = offsets[start : start + most + 1]
        fits = int(np.searchsorted(piece, int(piece[0]) + most_bytes, side="right")) - 1
        end = start + max(1, fits)
        yield start, end
        start = end
