"""The log of calls: the end of each, and a bounded size."""

from __future__ import annotations

import asyncio

import pytest

from pubsub_spark.emulator.api.errors import not_found
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.recent_calls import RecentCalls

CONTEXT = RpcContext("/google.pubsub.v1.Publisher/Publish", (), "127.0.0.1:5")


def ending(error: BaseException | None = None):
    async def proceed():
        if error is not None:
            raise error
        return b"answer"

    return proceed


def test_calls_are_logged_with_their_end():
    """A success is OK, an error has its code and message, and a call abandoned by its client is CANCELLED."""
    log = RecentCalls(lambda: 5.0)

    assert b"answer" == asyncio.run(log(CONTEXT, ending()))
    for error in (not_found("projects/p/topics/news"), asyncio.CancelledError(), OSError()):
        with pytest.raises(type(error)):
            asyncio.run(log(CONTEXT, ending(error)))

    assert ["OK", "NOT_FOUND", "CANCELLED", "INTERNAL"] == [each.status for each in log.calls]
    assert "Resource not found (resource=news)." == log.calls[1].sentence
    assert {("Publish", "127.0.0.1:5", 5.0)} == {(each.rpc, each.peer, each.began) for each in log.calls}
    assert 8 == log.changes


def test_oldest_calls_go():
    """The log keeps only the latest calls."""
    log = RecentCalls(lambda: 5.0, most=2)
    for _ in range(3):
        asyncio.run(log(CONTEXT, ending()))

    assert 2 == len(log.calls)
