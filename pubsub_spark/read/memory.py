"""How a process keeps memory whose threads hand each other large buffers, and which runs one task after the other.

glibc gives each thread an arena of its own, and keeps in each what was once freed there: gRPC allocates in one, Arrow
in another, we free in a third. Two arenas hold a third less and are faster, because their pages are in use already.

PySpark's daemon collects garbage after each task (`gc.collect()` in `pyspark/daemon.py`), which walks every object that
was imported: 60 ms. Frozen objects are not walked; they are freed as before when nothing refers to them.

Both are settings of the process, made once (benchmarks/read.py memory and throughput).
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from functools import lru_cache

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 2


@lru_cache(maxsize=1)
def share_arenas() -> None:
    """Before the process has many threads; nothing where the C library is not glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


@lru_cache(maxsize=1)
def freeze_imports() -> None:
    """After everything that tasks need is imported."""
    gc.freeze()
