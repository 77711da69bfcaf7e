"""The compiled reader of a pair of schemas, and the check of one, as the values that they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pubsub_spark.codec.avro.columns import compile_columns
from pubsub_spark.schema import avro
from pubsub_spark.schema.avro.batch_check import compile_check

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}


def enum(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": symbols}


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields]}


def parse(schema: Any) -> avro.schema_tree.Node:
    return avro.parse(json.dumps(schema)).root


PLANS = {
    "int to long": ("int", "long", "integers(True, 1, 1, DataType(int64), ())"),
    "long to double": ("long", "double", "cast(integers(False, 1, 1, DataType(int64), ()), DataType(double))"),
    "milliseconds": (MILLIS, MILLIS, "integers(False, 1000, 1, TimestampType(timestamp[us, tz=UTC]), ())"),
    "microseconds to milliseconds": (MICROS, MILLIS, "integers(False, 1, 1, TimestampType(timestamp[us, tz=UTC]), ())"),
    "decimal": (DECIMAL, DECIMAL, "decimals(segments(None), Decimal128Type(decimal128(5, 2)), ())"),
    "bytes to string": ("bytes", "string", "strings(())"),
    "a symbol fewer": (enum("A", "B"), enum("A"), "symbols(('A', 'B'), ('A', None), 'E', ())"),
    "nulls only": ({"type": "array", "items": "null"}, {"type": "array", "items": "null"}, (
        "lists_of_equals(ListType(list<element: null>), nulls(DataType(null)), 1)"
    )),
    "a branch without a reader": (["null", "string", "boolean"], ["null", "string"], (
        "branches(DataType(string), (None, strings(None), refused(DataType(string), "
        "\"was written as `boolean`, and the reader's union has no branch for it\", ())))"
    )),
    "into a union": ("boolean", ["string", "boolean"], (
        "member(StructType(struct<member0: string, member1: bool>), 1, booleans)"
    )),
    "a field fewer": (record(("id", "long"), ("gone", enum("A"))), record(("id", "long")), (
        "structs(StructType(struct<id: int64 not null>), "
        "(((0, integers(False, 1, 1, DataType(int64), ('.id',))),), index(1)), ())"
    )),
}  # fmt: skip


@pytest.mark.parametrize("situation", PLANS)
def test_plan_prints(situation: str):
    """The plan names the function and the parameters of each part."""
    writer, reader, text = PLANS[situation]

    assert repr(compile_columns(parse(writer), parse(reader)).read) == text


def test_plans_compare():
    """Plans of one pair of schemas are equal, the default of a field included. Another reader's plan differs."""
    old = parse(record(("id", "int")))
    ones, twos = (
        parse({**record(("id", "int")), "fields": [{"name": "more", "type": "int", "default": default}]})
        for default in (1, 2)
    )

    assert compile_columns(old, ones) == compile_columns(old, ones) != compile_columns(old, twos)


def test_check_prints_and_compares():
    """The check of a request's messages is also such a plan."""
    node = parse(record(("id", "int"), ("f", {"type": "fixed", "name": "F", "size": 2}), ("u", ["null", "string"])))

    assert repr(compile_check(node)) == "in_order((int, fixed(2), branches((in_order(()), string))))"
    assert compile_check(node) == compile_check(node) != compile_check(parse("int"))
