"""The log of the connector in the Python processes of a driver, where Spark sets up no logging."""

from __future__ import annotations

import logging
import sys


def to_stderr() -> None:
    """Write the log of `pubsub_spark`, INFO and up, to the driver's stderr, unless somebody has set up another."""
    log = logging.getLogger("pubsub_spark")
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
