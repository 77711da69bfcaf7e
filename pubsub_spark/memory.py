"""Memory settings of processes whose threads pass each other large buffers and which run one task after the other.

glibc has an arena for each thread and keeps freed memory in each: gRPC allocates in one, Arrow in another, we free in a
third. Two arenas hold a third less. Memory freed at their ends returns to the system at once, only to be allocated
again. The page faults, one for each 4 KiB, took a sixth of a task's time. So a process keeps its memory until it ends
(Spark ends a Python worker that was idle for a minute).

PySpark's daemon collects garbage after each task (`gc.collect()` in `pyspark/daemon.py`), which walks every object that
was imported: 60 ms. Frozen objects are not walked. They are freed as before when nothing refers to them.

The emulator's own process does the same: a Pull of a thousand messages took an eighth longer.

All of it is of the whole process, and is set once. Measured with benchmarks/read.py, `memory` and `throughput`, and
with benchmarks/emulator.py.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from functools import lru_cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_MALLOC = {
    _M_ARENA_MAX: 2,
    _M_MMAP_THRESHOLD: 32 * 2**20,  # bytes, the most that glibc accepts
    _M_TRIM_THRESHOLD: 512 * 2**20,
}


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Set malloc to keep freed memory. Call it before the process has many threads. Does nothing without glibc."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for setting, value in _MALLOC.items():
            mallopt(setting, value)


@lru_cache(maxsize=1)
def freeze_imports() -> None:
    """Exempt all objects from garbage collection. Call it after everything that tasks need is imported."""
    gc.freeze()
