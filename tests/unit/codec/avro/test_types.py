"""The type table of docs/types.md, row by row, and types that Spark does not have."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pubsub_spark.codec.avro.types import column_of, value_type
from pubsub_spark.codec.spark_types import spark_type, struct_type
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.avro import parser, schema_tree

# PySpark 4.0 has no such parameter: its timestamps are in UTC.
ZONE: Any = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
DOCS = Path(__file__).parents[4] / "docs" / "types.md"
AVRO = DOCS.read_text().partition("## Avro")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `(?P<avro>[\"\[{].*?)` \| `(?P<spark>[^`]+)` \|", AVRO, re.MULTILINE)


def node(declared: object) -> schema_tree.Node:
    return parser.parse(json.dumps(declared))


def test_the_table_is_read():
    """The pattern finds the rows of all three tables."""
    assert 34 == len(ROWS)


@pytest.mark.parametrize(("avro", "spark"), ROWS)
def test_type_is_as_documented(avro, spark):
    """Each schema in the tables has the documented column type."""
    assert spark == spark_type(column_of(parser.parse(avro)).type).simpleString()


@pytest.mark.parametrize(("avro", "spark"), ROWS)
def test_arrow_type_is_the_one_spark_makes(avro, spark):
    """PySpark derives the same Arrow type from the Spark type, nullability and inner names included."""
    found = value_type(node({"type": "record", "name": "Root", "fields": [{"name": "a", "type": json.loads(avro)}]}))

    assert to_arrow_schema(struct_type(found), **ZONE).equals(pa.schema(list(found)), check_metadata=True)


@pytest.mark.parametrize(
    ("declared", "nullable"),
    [
        ("int", False),
        ("null", True),
        (["null", "int"], True),
        (["int", "null"], True),
        (["int", "long"], False),
        (["int", "null", "long"], True),
        (["int", "string"], False),
        (["int", "string", "null"], True),
        (["null"], True),
    ],
)
def test_only_null_makes_a_column_nullable(declared, nullable):
    """Only a union with null is nullable, whatever its other types."""
    assert nullable == column_of(node(declared)).nullable


def test_elements_and_values_are_nullable_by_their_own_union():
    """Nullability is kept inside arrays and maps."""
    of = column_of(node({"type": "array", "items": ["null", {"type": "map", "values": "int"}]})).type

    assert of.value_field.nullable
    assert not of.value_type.item_field.nullable


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("long", "struct<value:bigint>"),
        (["null", "string"], "struct<value:string>"),
        (["int", "string"], "struct<member0:int,member1:string>"),
        (["null", {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}], "struct<a:int>"),
    ],
)
def test_value_is_always_a_struct(declared, expected):
    """A root that is not a struct is wrapped."""
    assert expected == struct_type(value_type(node(declared))).simpleString()


def test_recursion_is_refused_with_its_path():
    """A list of lists without end is refused with its path, because Spark has no type for it."""
    inner = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    tree = {"type": "record", "name": "Root", "fields": [{"name": "heads", "type": {"type": "array", "items": inner}}]}

    with pytest.raises(SchemaError, match=re.escape("field `heads[].next` contains its own record `Node`")):
        value_type(node(tree))


def test_decimal_of_39_digits_is_refused_with_its_path():
    """A decimal of 39 digits is refused with its path, because Spark's end at 38."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 39}

    with pytest.raises(SchemaError, match="Field `price` is a decimal of 39 digits"):
        value_type(node({"type": "record", "name": "R", "fields": [{"name": "price", "type": price}]}))


def test_a_schema_that_multiplies_is_refused():
    """Fifteen records that each use the next twice would be 65,000 columns. They are refused without expanding."""
    declared: object = "int"
    for level in range(15):
        fields = [{"name": "a", "type": declared}, {"name": "b", "type": f"R{level - 1}" if level else "int"}]
        declared = {"type": "record", "name": f"R{level}", "fields": fields}

    with pytest.raises(SchemaError, match="more than 30000 fields"):
        value_type(node(declared))
