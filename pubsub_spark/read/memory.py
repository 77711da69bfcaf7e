"""How the C library keeps memory, in a process whose threads hand each other large buffers.

glibc gives each thread an arena of its own, and keeps in each what was once freed there: gRPC allocates in one, Arrow
in another, we free in a third. Two arenas hold a third less and are faster, because their pages are in use already
(benchmarks/read.py memory and throughput).
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import lru_cache

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 2


@lru_cache(maxsize=1)
def share_arenas() -> None:
    """Once per process, before it has many threads; nothing where the C library is not glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
