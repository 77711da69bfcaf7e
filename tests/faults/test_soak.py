"""A round of `make soak`: everything published is in the sink once, or the query reports an error of ours."""

import types
from pathlib import Path
from typing import Any

import pytest

from tests.faults.processes import GROWTH, MOST, Usage, excesses
from tests.faults.soak import FAULTS, SETTINGS, Soak, SoakError, is_possible, run, setting_of
from tests.faults.tally import Tally, by_kill, reason


@pytest.mark.long
def test_query_survives_faults_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After a round nothing is lost, repeated or left unacknowledged."""
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    tally = run(Path("soak-output"), seed=0, seconds=10, say=said.append)

    assert tally.rounds >= 1
    assert sum(tally.faults.values()) >= 1
    assert tally.published >= 100
    assert (0, 0, 0) == (tally.lost, tally.repeated, tally.unacknowledged), said[-1]
    assert set(tally.faults) <= {fault.__name__ for fault in FAULTS}


def _soak(folder: Path, tally: Tally, texts: list[str], backlog: int = 0) -> Soak:
    """Return a soak that published `a`, with these rows and so many unacknowledged messages, without processes."""
    nothing: Any = None
    application: Any = types.SimpleNamespace(
        emulator=types.SimpleNamespace(backlog=lambda _: backlog),
        names=types.SimpleNamespace(subscription="s"),
        process=None,
        texts=lambda: texts,
    )
    running = Soak(folder, tally, nothing, nothing, application)
    running.published.append("a")
    return running


@pytest.mark.parametrize(
    ("texts", "backlog", "expected"), [([], 0, (1, 0, 0)), (["a", "a"], 0, (0, 1, 0)), (["a"], 1, (0, 0, 1))]
)
def test_wrong_round_ends_the_soak(tmp_path: Path, texts: list[str], backlog: int, expected: tuple[int, int, int]):
    """The comparison can fail: a message that is lost, read twice or not acknowledged is reported."""
    tally = Tally(13, rounds=1)
    with pytest.raises(SoakError, match="round 1 of seed 13"):
        _soak(tmp_path, tally, texts, backlog).compare()

    assert expected == (tally.lost, tally.repeated, tally.unacknowledged)


def test_clean_round_erases_no_loss(tmp_path: Path):
    """Another start that continues a tally keeps the losses of an earlier one."""
    path = tmp_path / "tally.json"
    path.write_text('{"seed": 7, "lost": 1, "repeated": 2, "unacknowledged": 3}')
    tally = Tally.read(path, seed=7)
    _soak(tmp_path, tally, ["a"]).compare()

    assert (1, 2, 3) == (tally.lost, tally.repeated, tally.unacknowledged)


_TRIED_AGAIN = "WARN TaskSetManager: Lost task 0.0: pubsub_spark.errors.StagingError: no room\n"
_ENDED = 'Traceback (most recent call last):\n  File "/a/tests/spark/driver.py", line 75, in main\n'


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (_TRIED_AGAIN, None),
        (_TRIED_AGAIN + _ENDED + "Py4JNetworkError: Answer from Java side is empty\n", None),
        (_TRIED_AGAIN + _ENDED + "StreamingQueryException: pubsub_spark.errors.ServiceError: gone\n", "ServiceError"),
    ],
)
def test_reason_is_the_error_that_ended_the_driver(log: str, expected: str | None):
    """A task's failure that was tried again explains no end of a query."""
    assert expected == reason(log)


@pytest.mark.parametrize(
    ("end", "expected"), [(": pubsub_spark.errors.StagingError: gone", "StagingError"), ("", "kill_source")]
)
def test_kill_excuses_no_sentence(end: str, expected: str, tmp_path: Path):
    """A query that ends with an error of ours counts by it, whatever was killed before. Its log is kept."""
    nothing: Any = None
    ended = types.SimpleNamespace(returncode=1)
    application: Any = types.SimpleNamespace(emulator=nothing, log=tmp_path / "driver.log", process=ended)
    application.log.write_text(_ENDED + end)
    running = Soak(tmp_path, Tally(7), nothing, nothing, application)
    running.killed = "kill_source"
    running.record_end()

    assert {expected: 1} == running.tally.failures
    assert _ENDED + end == (tmp_path / f"ended-0-{expected}.log").read_text()


@pytest.mark.parametrize(
    ("code", "fault", "expected"),
    [
        (-9, "kill_driver", "kill_driver"),
        (1, "kill_driver", None),
        (-9, "kill_source", None),
        (-9, None, None),
        (1, None, None),
    ],
)
def test_kill_explains_its_own_end_only(code: int, fault: str | None, expected: str | None):
    """A driver that was not the one killed, or that ended in another way, has an end without a reason."""
    assert expected == by_kill(_ENDED, code, fault)


def test_process_that_grows_is_told():
    """Threads, files and memory of a round are compared with those of the round before, and with the limits."""
    before = {"source worker": Usage(1, 12, 16, 200)}
    leaking = Usage(1, 12 + GROWTH["source worker"].threads + 1, 16, MOST["source worker"].megabytes + 1)

    found = excesses({"source worker": leaking}, before)

    assert [] == excesses(before, {}) == excesses(before, before)
    assert ["threads", "megabytes"] == [sentence.split()[3].rstrip(",") for sentence in found]
    assert 1 == len(excesses({"source worker": leaking}, {"source worker": leaking}))


def test_each_setting_and_fault_has_its_turn():
    """A soak of some seeds or of many rounds meets every fault in a setting that it affects."""
    assert set(SETTINGS) == {setting_of(seed, 0) for seed in range(4)} == {setting_of(7, n) for n in range(20)}
    assert all(any(is_possible(fault, setting) for setting in SETTINGS) for fault in FAULTS)
