"""The log in Spark's Python processes: its handler, and its level by the option `logLevel`."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from pubsub_spark import logs

LOG = logging.getLogger("pubsub_spark")


@contextmanager
def process(*root_handlers: logging.Handler) -> Iterator[io.StringIO]:
    """Yield the stderr of a process with these root handlers. No fixture, because pytest adds its handlers later."""
    stream, level = io.StringIO(), LOG.level
    with (
        mock.patch.object(sys, "stderr", stream),
        mock.patch.object(LOG, "handlers", []),
        mock.patch.object(logging.getLogger(), "handlers", [*root_handlers]),
    ):
        yield stream
    LOG.setLevel(level)


def said(stream: io.StringIO) -> list[str]:
    """Return the levels of the lines that are written when each level has one."""
    stream.truncate(0)
    stream.seek(0)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        LOG.getChild("read").log(level, "a line")
    return [line.split()[2] for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (None, ["INFO", "WARNING", "ERROR"]),
        ("DEBUG", ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ("WARN", ["WARNING", "ERROR"]),
        ("OFF", []),
    ],
)
def test_level(level: str | None, expected: list[str]):
    """INFO and up by default."""
    with process() as stderr:
        logs.to_stderr(level)
        logs.to_stderr(level)  # another task of the same process

        assert expected == said(stderr)


def test_level_of_an_earlier_query_is_forgotten():
    """A Python process serves the tasks of several queries, one after the other."""
    with process() as stderr:
        logs.to_stderr("ERROR")
        logs.to_stderr(None)

        assert ["INFO", "WARNING", "ERROR"] == said(stderr)


def test_logging_that_is_set_up_stays():
    """Only the option changes its level."""
    own = io.StringIO()
    handler = logging.StreamHandler(own)
    handler.setFormatter(logging.Formatter("own - %(levelname)s"))
    with process(handler) as stderr:
        LOG.setLevel(logging.ERROR)
        logs.to_stderr(None)
        assert ["ERROR"] == said(own)

        logs.to_stderr("WARN")
        assert ["WARNING", "ERROR"] == said(own)
        assert "" == stderr.getvalue()
