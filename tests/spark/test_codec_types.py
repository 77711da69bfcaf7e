"""The Avro table of docs/types.md against Spark's own `SchemaConverters`, which `from_avro` uses."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "types.md"
AVRO = DOCS.read_text().partition("## Avro")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `([\"\[{].*?)` \| `([^`]+)` \|(.*)$", AVRO, re.MULTILINE)


def test_types_are_those_of_from_avro(spark):
    """Every row of the table is right, except those with a documented difference."""
    jvm = spark._jvm
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters

    def converted(avro: str) -> str:
        schema = jvm.org.apache.avro.Schema.Parser().parse(avro)
        return str(converters.toSqlType(schema).dataType().simpleString())

    agreed = [
        (avro, ours) for avro, ours, note in ROWS if "Spark 4.3 has" not in note and "as timestamp-nanos" not in note
    ]
    assert len(ROWS) - 3 == len(agreed)
    assert agreed == [(avro, converted(avro)) for avro, _ in agreed]
