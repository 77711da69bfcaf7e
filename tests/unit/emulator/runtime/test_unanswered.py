"""Deliveries wait for the responses of the Publishes that were pending when their messages were taken."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from pubsub_spark.emulator.runtime import unanswered
from pubsub_spark.emulator.runtime.unanswered import Answer, Unanswered

TOPIC = "projects/p/topics/t"


@pytest.fixture
def pending() -> Unanswered:
    return Unanswered()


def test_no_barrier_without_a_pending_response(pending):
    """A topic without pending responses delays nothing, whatever is pending on another."""
    answer = Answer()
    pending.add(answer, TOPIC)
    pending.add(Answer(), "projects/p/topics/other")

    pending.written(answer)

    assert pending.barrier(TOPIC) is None


def test_barrier_opens_with_the_last_response(pending):
    """It opens when all responses were written that were pending at its creation. It does not wait for later ones."""
    first, second = Answer(), Answer()
    for each in (first, second):
        pending.add(each, TOPIC)
    barrier = pending.barrier(TOPIC)
    pending.add(Answer(), TOPIC)

    pending.written(second)
    assert not barrier.opened.done()
    pending.written(first)

    assert barrier.opened.done()


def test_cancelled_delivery_disturbs_nobody(pending):
    """The end of one waiting delivery leaves the response pending for another."""
    answer = Answer()
    pending.add(answer, TOPIC)
    one, other = pending.barrier(TOPIC), pending.barrier(TOPIC)

    async def leave() -> None:
        await asyncio.wait_for(one.passed(), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    assert not other.opened.done()
    pending.written(answer)
    assert other.opened.done()


@pytest.mark.parametrize("on_a_thread", [False, True])
def test_response_that_nobody_reads_is_waited_for_once(pending, monkeypatch, on_a_thread):
    """After a moment the response counts as written, so the next delivery does not wait for it."""
    monkeypatch.setattr(unanswered, "MAX_SECONDS", 0.01)
    pending.add(Answer(), TOPIC)
    barrier = pending.barrier(TOPIC)

    if on_a_thread:
        with ThreadPoolExecutor() as pool:
            pool.submit(barrier.wait).result()
    else:
        asyncio.run(barrier.passed())

    assert pending.barrier(TOPIC) is None
