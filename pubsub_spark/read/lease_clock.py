"""The clock by which leases are measured, on the driver and in tasks: it goes on while a machine sleeps."""

from __future__ import annotations

import time

# Linux's monotonic clock stands still while the machine sleeps; those of other systems do not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds since some moment before this process began."""
    return time.clock_gettime(_CLOCK)
