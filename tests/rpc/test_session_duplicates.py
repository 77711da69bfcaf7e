"""`idAttribute` where several tasks pull: of messages with one id there is one row, and always the same one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.read.partitions import Budget, PullPartition
from tests.conftest import Names
from tests.engine import Engine
from tests.rpc.session import LEASE, acked, buffered, die_in_a_batch, run_until

ORDERS = 2000  # each published twice: more than the driver stream buffers, so that tasks pull


@pytest.fixture
def duplicates(query: Engine, emulator: Emulator, names: Names) -> Engine:
    """A started query whose driver stream is full; the second message of each id is for another task than the first."""
    query.options = replace(query.options, id_attribute="order")
    query.budget = Budget(2 * ORDERS, 10**8)  # of which the driver has a thousand, and each task as many
    query.partitions = 3
    query.start()
    query.trigger()
    sent = [
        {"data": f"{n % ORDERS}:{n // ORDERS}".encode(), "attributes": {"order": str(n % ORDERS)}}
        for n in range(2 * ORDERS)
    ]
    emulator.publish(names.topic, *sent)
    buffered(query, query.opened.stream.settings.max_messages)
    return query


def orders(rows: list[str]) -> Counter[str]:
    return Counter(row.partition(":")[0] for row in rows)


EACH = Counter(str(n) for n in range(ORDERS))


def test_each_id_is_one_row_of_several_tasks(duplicates: Engine):
    """In one batch, evaluated three times; the counts are those of the rows."""
    duplicates.trigger(actions=3)
    [rows, *again] = duplicates.evaluations[duplicates.committed - 1]
    run_until(duplicates, ORDERS)
    acked(duplicates, 2 * ORDERS)

    assert [rows, rows] == again
    assert EACH == orders(duplicates.rows)
    assert (ORDERS, ORDERS) == (duplicates.session.counts.messages, duplicates.session.counts.dropped)  # type: ignore[union-attr]


def test_several_tasks_pull(duplicates: Engine):
    """As many as without the option."""
    session, start = duplicates.session, duplicates.offsets[-1]
    assert session is not None
    end = session.latest_offset(start, duplicates.budget)
    partitions = session.partitions(start, end)

    assert [1, 2, 3] == [each.part for each in partitions if isinstance(each, PullPartition)]


@pytest.mark.parametrize("parts", [1, 3])
def test_crash_in_a_batch_repeats_no_id(duplicates: Engine, parts: int):
    """Some parts are staged and have claimed their ids when the driver dies; the others come again in later batches."""
    die_in_a_batch(duplicates, parts)
    duplicates.emulator.advance(LEASE)
    duplicates.start()
    duplicates.trigger(actions=2)
    rows, again = duplicates.evaluations[duplicates.committed - 1]
    run_until(duplicates, ORDERS)
    acked(duplicates, 2 * ORDERS)

    assert rows == again
    assert EACH == orders(duplicates.rows)


def test_ids_of_ten_minutes_survive_restarts(duplicates: Engine, names: Names):
    """What was published again after two restarts is dropped by the driver and by the tasks."""
    run_until(duplicates, ORDERS)
    acked(duplicates, 2 * ORDERS)
    for _ in range(2):
        duplicates.stop()
        duplicates.start()
        duplicates.trigger()
    sent = [{"data": b"again", "attributes": {"order": str(n)}} for n in range(ORDERS)]
    duplicates.emulator.publish(names.topic, *sent, {"data": b"new:0", "attributes": {"order": "new"}})
    run_until(duplicates, ORDERS + 1)
    acked(duplicates, 3 * ORDERS + 1)

    assert EACH + Counter(["new"]) == orders(duplicates.rows)
