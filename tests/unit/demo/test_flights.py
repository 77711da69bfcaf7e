"""The flights file, its Avro schema, and the totals that are compared."""

import io
import json

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pubsub_spark.demo import flights


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights.read()


def test_file_is_whole(table: pa.Table):
    """The package ships a year of flights. `NA` is null, also for a plane without a number."""
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
