"""The log of the connector in Spark's Python processes, where Spark sets up no logging.

Spark passes `setLogLevel` to none of these processes (measured with Spark 4.3). So the option `logLevel` sets the
level, in Spark's words.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "OFF": logging.CRITICAL + 1,
}


class _StderrHandler(logging.StreamHandler[TextIO]):
    """The handler that `to_stderr` adds."""


def to_stderr(level: str | None) -> None:
    """Write the log of `pubsub_spark` to this process's stderr, unless another is set up.

    level: a name of LEVELS. None means INFO, or the level that is already set up.
    """
    log = logging.getLogger("pubsub_spark")
    if not log.handlers and not logging.getLogger().handlers:
        handler = _StderrHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
    if level is not None or any(isinstance(handler, _StderrHandler) for handler in log.handlers):
        log.setLevel(LEVELS[level or "INFO"])
