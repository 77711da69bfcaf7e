"""The table of schema types: its entries, and the imports that its use brings into a process."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest
from google.pubsub_v1 import types

from pubsub_spark.codec.registry import codec_of
from pubsub_spark.schema.definition import Encoding, InvalidSchema
from pubsub_spark.schema.schema_types import (
    ENCODINGS_BY_NUMBER,
    SCHEMA_TYPES,
    SCHEMA_TYPES_BY_NUMBER,
    SchemaType,
    parse,
)

SMALL = {
    "AVRO": '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}',
    "PROTOCOL_BUFFER": "message M { optional int64 a = 1; }",
}


def test_table_has_each_schema_type_and_encoding_of_the_service():
    """Names and numbers are those of Google's client library, except the unspecified ones."""
    assert {number: types.Schema.Type(number).name for number in SCHEMA_TYPES_BY_NUMBER} == SCHEMA_TYPES_BY_NUMBER
    assert {number: types.Encoding(number).name for number in ENCODINGS_BY_NUMBER} == ENCODINGS_BY_NUMBER
    assert set(get_args(SchemaType)) == set(SCHEMA_TYPES)
    assert set(get_args(Encoding)) == set(ENCODINGS_BY_NUMBER.values())


def test_unknown_schema_type_is_refused():
    """The error message lists the known types."""
    with pytest.raises(InvalidSchema, match=r"^A schema's type is AVRO or PROTOCOL_BUFFER, not `THRIFT`$"):
        parse("THRIFT", "")  # type: ignore[arg-type]


@pytest.mark.parametrize("schema_type", SCHEMA_TYPES)
def test_packages_of_a_schema_type_offer_what_is_asked_of_it(schema_type):
    """Each package has a definition of its type, and the three functions of a codec."""
    assert schema_type == parse(schema_type, SMALL[schema_type]).type
    assert all(callable(getattr(codec_of(schema_type), name)) for name in ("value_type", "decoder", "encoder"))


@pytest.mark.parametrize("schema_type", SCHEMA_TYPES)
def test_definitions_load_neither_codec_nor_arrow(schema_type):
    """The emulator parses, validates and compares schemas in a process without PySpark and without columns."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from pubsub_spark.schema.schema_types import check_compatible, parse\n"
        f"schema = parse({schema_type!r}, {SMALL[schema_type]!r}); check_compatible(schema, schema)\n"
        "schema.first_invalid([b''] * 50, 'BINARY')\n"
        "print(sorted(m for m in sys.modules if m.startswith(('pubsub_spark.read', 'pubsub_spark.codec', 'pyarrow'))))"
    )

    assert "[]\n" == subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
