"""The demo's parts that need neither Spark nor Pub/Sub: the file, its schema, its totals, the proof, the picture."""

import io
import json
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rich.console import Console

from pubsub_spark.demo import flights, picture, report, run
from pubsub_spark.errors import ServiceError


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights.read()


def test_file_is_whole(table: pa.Table):
    """The package ships a year of flights; `NA` is null, also for a plane without a number."""
    assert 336_776 == table.num_rows
    assert flights.COLUMNS == table.schema
    assert 2512 == table["tailnum"].null_count
    assert 8255 == table["dep_time"].null_count


def test_schema_takes_every_kind_of_flight(table: pa.Table):
    """Flights with and without nulls go through the Avro schema and come back as they were."""
    schema = fastavro.parse_schema(json.loads(flights.avro_schema()))
    kinds = pa.concat_tables([table.slice(0, 2), table.filter(pc.is_null(table["tailnum"])).slice(0, 2)]).to_pylist()

    for flight in kinds:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, schema, flight)
        data.seek(0)
        assert flight == fastavro.schemaless_reader(data, schema, schema)


def test_totals_see_one_changed_cell(table: pa.Table):
    """A single wrong delay, a lost flight or a doubled one changes the totals."""
    few = table.slice(0, 100)
    late = few["dep_delay"].to_pylist()
    late[7] += 1
    changed = few.set_column(
        few.schema.get_field_index("dep_delay"), flights.COLUMNS.field("dep_delay"), pa.array(late, pa.int32())
    )

    assert flights.totals(few) != flights.totals(changed)
    assert flights.totals(few) != flights.totals(few.slice(1))
    assert 99 == flights.totals(pa.concat_tables([few.slice(0, 99), few.slice(0, 1)]))["distinct ids"]


@pytest.mark.parametrize(("found", "verdict"), [(2, True), (3, False)])
def test_proof_shows_both_sides(found: int, verdict: bool):
    """Equal totals are a proof; different ones are named."""
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


@pytest.mark.parametrize("endpoint", ["nonsense", "127.0.0.1:1", ""])
def test_endpoint_where_nothing_listens_is_said_at_once(endpoint: str, tmp_path: Path):
    """Before Spark starts, and before anything is written."""
    with pytest.raises(ServiceError, match=f"No Pub/Sub answers at `{endpoint}`; start an emulator there"):
        run(endpoint, tmp_path / "output", None, Console())
    assert not (tmp_path / "output").exists()
