"""The clock of leases: which of the machine's it is."""

import sys
import time

import pytest

from pubsub_spark.read import lease_clock
from pubsub_spark.read.session import Session

_CLOCKS = {"linux": "CLOCK_BOOTTIME"}  # where CLOCK_MONOTONIC stands still while the machine sleeps


def test_clock_goes_on_while_a_machine_sleeps(monkeypatch: pytest.MonkeyPatch):
    """A session measures leases by the clock that an hour of sleep moves by an hour."""
    clock = getattr(time, _CLOCKS.get(sys.platform, "CLOCK_MONOTONIC"))
    monkeypatch.setattr(time, "clock_gettime", {clock: 7.0}.__getitem__)

    assert lease_clock.now() == 7.0
    assert Session.clock is lease_clock.now
