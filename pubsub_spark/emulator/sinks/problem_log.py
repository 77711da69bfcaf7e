"""The log of a lasting problem."""

from __future__ import annotations

import logging
import re

_log = logging.getLogger("pubsub_spark.emulator")

# After it comes the text of a library or a server, with times and names that differ at each attempt.
_DETAILS = re.compile(r": | \(")


class ProblemLog:
    """The present problem of one resource, if any, and the `work` that it prevents.

    One line is logged when it begins, when it changes, and when it is over.
    """

    def __init__(self, resource: str, work: str) -> None:
        self._resource = resource
        self._work = work
        self._present = ""

    def occurred(self, sentence: str, error: Exception | None = None) -> None:
        """Log the problem unless it is already logged. An unexpected `error` is logged with its traceback."""
        problem = _DETAILS.split(sentence, 1)[0]
        if problem != self._present:
            _log.warning("%s is not %s now: %s", self._resource, self._work, sentence, exc_info=error)
        self._present = problem

    def ended(self) -> None:
        if self._present:
            _log.warning("%s is %s again.", self._resource, self._work)
        self._present = ""
