"""The log of a problem that lasts: a line when it begins, when it becomes another one, and when it is over."""

from __future__ import annotations

import logging
import re

_log = logging.getLogger("pubsub_spark.emulator")

# Behind it stands what a library or a server says, with times and names that differ at each attempt.
_DETAILS = re.compile(r": | \(")


class ProblemLog:
    """The problem that one resource has now, if it has one; `what` it is not doing as long as it has."""

    def __init__(self, resource: str, what: str) -> None:
        self._resource = resource
        self._what = what
        self._present = ""

    def occurred(self, sentence: str, error: Exception | None = None) -> None:
        """Say what is wrong, unless it was said; `error` is one that nobody expected, and is written with its place."""
        problem = _DETAILS.split(sentence, 1)[0]
        if problem != self._present:
            _log.warning("%s is not %s now: %s", self._resource, self._what, sentence, exc_info=error)
        self._present = problem

    def ended(self) -> None:
        """Say that it is over, if there was one."""
        if self._present:
            _log.warning("%s is %s again.", self._resource, self._what)
        self._present = ""
