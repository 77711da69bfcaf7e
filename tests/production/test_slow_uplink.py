"""Acks over a slow uplink, in real time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from tests import engine
from tests.conftest import Names
from tests.engine import Engine
from tests.faults.proxy import Proxy
from tests.rpc.conftest import Client

_ACKS = 6000


def ids_sent(emulator: Emulator, names: Names) -> tuple[int, int]:
    """Return how many ids of acks and of lease extensions the service has received."""
    records = emulator.messages(names.subscription)
    return sum(record.acks for record in records), sum(record.modacks for record in records)


@pytest.mark.production
@pytest.mark.parametrize("rate", [30_000, 60_000, 250_000])
def test_acks_take_the_time_of_their_bytes(emulator: Emulator, names: Names, tmp_path: Path, rate: int):
    """Each id is received once, and once more if its lease is extended before. All are within 1.5 times their time.

    After a quarter of the lease the extensions share the link with the acks: at 30 KB/s before half of these are sent.
    """
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    emulator.publish(names.topic, "of which the id is looked at")
    client = Client(emulator.endpoint)
    [held] = client.ask("Subscriber/Pull", subscription=names.subscription, max_messages=1).received_messages
    client.ask("Subscriber/Acknowledge", subscription=names.subscription, ack_ids=[held.ack_id])
    client.channel.close()
    id_bytes = len(held.ack_id) + 3  # with tag and length
    texts = [f"m{number}" for number in range(_ACKS)]
    with Proxy(emulator.port) as proxy:
        options = ReadOptions(
            subscription_id=names.subscription, endpoint=proxy.endpoint, idle_timeout=0.3, max_fetch_period=0.5
        )
        query = Engine(emulator, options, str(tmp_path), budget=Budget(10_000, 10**8))
        emulator.publish(names.topic, *texts)
        query.start()
        engine.until(lambda: query.trigger() and len(query.rows) >= len(texts), "all rows", 60.0)
        acks_before, extended_before = ids_sent(emulator, names)
        proxy.throttle(rate)
        began = time.monotonic()
        query.trigger()
        longest = 2 * _ACKS * id_bytes / rate
        engine.until(lambda: emulator.backlog(names.subscription) == 0, "all acked", 1.5 * longest + 30)
        took = time.monotonic() - began
        acks, extended = ids_sent(emulator, names)
        proxy.heal()
        query.stop()

    assert _ACKS == acks - acks_before
    assert extended - extended_before <= _ACKS
    volume = (_ACKS + extended - extended_before) * id_bytes
    assert took < 1.5 * volume / rate + 1.0, f"{took:.1f} s for {volume:,} bytes at {rate:,} B/s"
