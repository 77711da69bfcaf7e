"""The owner of a staging area: the later run wins, whatever the clock and the store do."""

from pathlib import Path
from typing import Any

import obstore
import pytest

from pubsub_spark.read import owner
from pubsub_spark.read.staging import Staging
from tests.unit.read.service import SUBSCRIPTION


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path), SUBSCRIPTION, "stream")


def test_later_run_takes_over(staging: Staging):
    """The error of the earlier run names the stream, the subscription and the process of the later one."""
    first = owner.claim(staging, 1000.0)
    assert owner.taken_over(first) is None
    second = owner.claim(staging, 2000.0)

    assert owner.taken_over(second) is None
    assert f"taken over stream stream of `{SUBSCRIPTION}` (process " in str(owner.taken_over(first))
    assert "since 1970-01-01T00:33:20+00:00" in str(owner.taken_over(first))
    assert [second.epoch] == staging.epochs()


def test_clock_that_went_back(staging: Staging):
    """An epoch is larger than those before it, also where the clock went back."""
    first = owner.claim(staging, 2000.0)
    second = owner.claim(staging, 1000.0)

    assert owner.taken_over(first) is not None
    assert owner.taken_over(second) is None


def test_two_claims_in_one_moment(staging: Staging, monkeypatch: pytest.MonkeyPatch):
    """Two runs that both saw no owner claim two epochs: one creates the file, and the other the next."""
    monkeypatch.setattr(Staging, "epochs", lambda _: [])
    first, second = owner.claim(staging, 1000.0), owner.claim(staging, 1000.0)
    monkeypatch.undo()

    assert first.epoch + 1 == second.epoch
    assert owner.taken_over(first) is not None
    assert owner.taken_over(second) is None


def test_removed_files_end_no_run(staging: Staging):
    """A cleaner that removes the owner's file ends nobody, and the next run still has a larger epoch."""
    first = owner.claim(staging, 1000.0)
    staging.delete_owner(first.epoch)
    assert owner.taken_over(first) is None
    owner.claim(staging, 1001.0)

    assert owner.taken_over(first) is not None


def test_check_is_one_listing(staging: Staging, monkeypatch: pytest.MonkeyPatch):
    """Each batch and each pulled part pays one call of the store for it."""
    mine = owner.claim(staging)
    calls: list[str] = []
    for name in ("get", "put", "head", "list", "delete", "list_with_delimiter"):
        call = getattr(obstore, name)

        def counted(*given: Any, name: str = name, call: Any = call, **settings: Any) -> Any:
            calls.append(name)
            return call(*given, **settings)

        monkeypatch.setattr(obstore, name, counted)
    owner.taken_over(mine)

    assert ["list"] == calls
