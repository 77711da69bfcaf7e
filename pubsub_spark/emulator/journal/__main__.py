"""`python -m pubsub_spark.emulator.journal DIRECTORY NUMBER` writes the base of row NUMBER; an emulator starts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pubsub_spark.emulator.journal import restoring

_NICENESS = 10  # the emulator comes first

if __name__ == "__main__":
    os.nice(_NICENESS)
    restoring.write_base(Path(sys.argv[1]), int(sys.argv[2]))
