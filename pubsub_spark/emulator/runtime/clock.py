"""The emulator's clock: the machine's time and the seconds that `advance` has added. It goes back only on `restart`."""

from __future__ import annotations

import time


class Clock:
    """Seconds since the epoch."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._epoch = time.time() - time.monotonic()

    def now(self) -> float:
        return self._epoch + time.monotonic()

    @property
    def ahead(self) -> float:
        """The lead over the machine's clock, in seconds."""
        return self.now() - time.time()

    def advance_to(self, moment: float) -> None:
        """Do nothing if the clock is already later."""
        self._epoch = max(self._epoch, moment - time.monotonic())
