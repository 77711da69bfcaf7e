"""A few rounds of `make soak`: everything published is in the sink once, or the query says in one sentence why not."""

from pathlib import Path

import pytest

from tests.faults.soak import FAULTS, SoakError, run


@pytest.mark.parametrize("seed", [11])
def test_query_survives_faults_at_random(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After each round nothing is lost, repeated or left unacknowledged."""
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    tally = run(Path("soak-output"), seed, seconds=20, say=said.append)

    assert tally.rounds >= 1
    assert sum(tally.faults.values()) >= 1
    assert tally.published >= 100
    assert (0, 0, 0) == (tally.lost, tally.repeated, tally.unacknowledged), said[-1]
    assert set(tally.faults) <= {fault.__name__ for fault in FAULTS}


def test_lost_message_ends_the_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The comparison can fail: a message that was published and taken away before it was read is told."""
    from tests.faults import soak

    def acknowledge_one(running: soak.Soak) -> None:
        """Publish a message that nobody reads."""
        running.published.append("never sent")

    monkeypatch.setattr(soak, "FAULTS", [acknowledge_one])
    with pytest.raises(SoakError, match="round 1 of seed 13"):
        run(tmp_path, 13, seconds=1, say=lambda _: None)
