"""`python -m pubsub_spark.emulator.journal DIRECTORY NUMBER` writes the base of row NUMBER. An emulator starts it.

It ends at once when its standard input, a pipe of the emulator, does, so the next emulator has the directory alone.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from pubsub_spark.emulator.journal import restoring

_NICENESS = 10  # the emulator comes first


def _end_with_the_emulator() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    os.nice(_NICENESS)
    threading.Thread(target=_end_with_the_emulator, daemon=True).start()
    restoring.write_base(Path(sys.argv[1]), int(sys.argv[2]))
