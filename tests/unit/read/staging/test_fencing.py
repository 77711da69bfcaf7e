"""Fencing: the later run wins, whatever the clock and the store do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.read.staging import fencing
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import Store, open_store
from tests.unit.read.service import SUBSCRIPTION


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")


def test_later_run_takes_over(staging: Staging):
    """The error of the earlier run names the stream, the subscription and the process of the later one."""
    first = fencing.claim(staging, 1000.0)
    assert fencing.taken_over(first) is None
    second = fencing.claim(staging, 2000.0)

    assert fencing.taken_over(second) is None
    assert f"taken over stream stream of `{SUBSCRIPTION}` (process " in str(fencing.taken_over(first))
    assert "since 1970-01-01T00:33:20+00:00" in str(fencing.taken_over(first))
    assert [second.epoch] == staging.epochs()


def test_clock_that_went_back(staging: Staging):
    """An epoch is larger than those before it, also where the clock went back."""
    first = fencing.claim(staging, 2000.0)
    second = fencing.claim(staging, 1000.0)

    assert fencing.taken_over(first) is not None
    assert fencing.taken_over(second) is None


class Blind(Store):
    """A store whose listings are too early to have anything."""

    def list(self, prefix: str) -> dict[str, int]:
        return {}


def test_two_claims_in_one_moment(staging: Staging, tmp_path: Path):
    """Two runs that both saw no owner claim two epochs: one creates the file, and the other the next."""
    blind = replace(staging, store=Blind(str(tmp_path)))
    first, second = (replace(fencing.claim(blind, 1000.0), store=staging.store) for _ in range(2))

    assert first.epoch + 1 == second.epoch
    assert fencing.taken_over(first) is not None
    assert fencing.taken_over(second) is None


def test_removed_files_end_no_run(staging: Staging):
    """A cleaner that removes the owner's file ends no run, and the next run still has a larger epoch."""
    first = fencing.claim(staging, 1000.0)
    staging.delete_file(f"owners/{first.epoch}")
    assert fencing.taken_over(first) is None
    fencing.claim(staging, 1001.0)

    assert fencing.taken_over(first) is not None


def test_run_in_the_successor_of_a_stream_takes_over(staging: Staging):
    """All files of a stream were removed while a run lives. The next run owns another stream."""
    first = fencing.claim(staging, 1000.0)
    staging.delete_file(f"owners/{first.epoch}")
    assert "other" == staging.successor("other")

    assert "taken over stream stream of" in str(fencing.taken_over(first))


@pytest.mark.parametrize("content", [b"", b'{"host": "a'])
def test_damaged_file_of_an_owner(staging: Staging, content: bytes):
    """Its name identifies the owner of the area. Its content is only for the error."""
    first = fencing.claim(staging, 1000.0)
    staging.create(f"owners/{first.epoch + 1}", [content])

    assert "(process unknown on `unknown`, since unknown)" in str(fencing.taken_over(first))


class Counting(Store):
    """A store that counts its calls."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not name.startswith("_") and callable(value):
            calls.append(name)
        return value


calls: list[str] = []


def test_check_is_one_listing(staging: Staging, tmp_path: Path):
    """Each batch and each pulled part pays one call of the store for it."""
    mine = replace(fencing.claim(staging, 1000.0), store=Counting(str(tmp_path)))
    calls.clear()
    fencing.taken_over(mine)

    assert ["list", "entries"] == calls
