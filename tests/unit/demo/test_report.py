"""The demo's terminal output and picture: the proof, and the table."""

import io
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from pubsub_spark.demo import picture, report


@pytest.mark.parametrize(("found", "verdict"), [(2, True), (3, False)])
def test_proof_shows_both_sides(found: int, verdict: bool):
    """Equal totals are a proof. Different ones are named."""
    console = Console(record=True, width=100, file=io.StringIO())

    assert verdict is report.print_proof(console, {"rows": 2, "distinct ids": 2}, {"rows": found, "distinct ids": 2})
    assert ("NOT EQUAL: rows" in console.export_text()) is not verdict


def test_table_and_picture_have_every_carrier(tmp_path: Path):
    """A carrier that flies at one hour only has empty cells, in print and in the picture."""
    departures = pa.table(
        {
            "carrier": ["AA", "AA", "HA"],
            "hour": [6, 7, 9],
            "departures": [2512, 3299, 843],
            "mean_delay": [-1.2, 0, 23.0],
        }
    )
    console = Console(record=True, width=80, file=io.StringIO())

    report.print_departures(console, departures)
    picture.draw(departures, tmp_path / "departures.png")

    printed = console.export_text()
    assert "06 2512" in printed
    assert "09      843" in printed
    assert (tmp_path / "departures.png").read_bytes().startswith(b"\x89PNG")
