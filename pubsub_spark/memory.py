"""Memory settings of processes whose threads pass each other large buffers and which run one task after the other.

glibc has an arena for each thread and keeps freed memory in each. Two arenas hold a third less. Freed memory returned
to the system at once is soon allocated again, and the page faults took a sixth of a task's time. So a process keeps its
memory until it ends (Spark ends a Python worker that was idle for a minute).

PySpark's daemon collects garbage after each task (`gc.collect()` in `pyspark/daemon.py`), which walks every object that
was imported: 60 ms. Frozen objects are not walked.

The emulator's own process runs for hours, so it returns what it has freed when it is idle again (`release_when_idle`).

Measured with benchmarks/read.py, `memory` and `throughput`, and with benchmarks/emulator.py.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from contextlib import suppress
from functools import lru_cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_MALLOC = {
    _M_ARENA_MAX: 2,
    _M_MMAP_THRESHOLD: 32 * 2**20,  # bytes, the most that glibc accepts
    _M_TRIM_THRESHOLD: 512 * 2**20,
}
_IDLE_SECONDS, _IDLE_SHARE = 2.0, 0.05  # so little processor time in so long is idle
_BUSY_SECONDS = 0.2  # of processor time since the last release: less leaves nothing to return


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Set malloc to keep freed memory. Call it before the process has many threads. Does nothing without glibc."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for setting, value in _MALLOC.items():
            mallopt(setting, value)


def release_when_idle() -> None:
    """Start a thread that returns freed memory to the system when the process is idle again."""
    threading.Thread(target=_release_when_idle, name="release-memory", daemon=True).start()


def _release_when_idle() -> None:
    released = before = time.process_time()
    while True:
        time.sleep(_IDLE_SECONDS)
        now = time.process_time()
        if now - before < _IDLE_SECONDS * _IDLE_SHARE and now - released > _BUSY_SECONDS:
            gc.collect()
            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
            released = now = time.process_time()
        before = now


@lru_cache(maxsize=1)
def freeze_imports() -> None:
    """Exempt all objects from garbage collection. Call it after the imports of tasks."""
    gc.freeze()
