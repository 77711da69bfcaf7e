"""JSON schemas, Spark's and others', as an Arrow type."""

import json
from typing import Any

import pytest
from pyspark.sql import types as spark

from pubsub_spark.codec.json import json_schema
from pubsub_spark.codec.spark_types import struct_type


def test_json_of_spark():
    """The JSON of a Spark schema is the same schema, if every field may be null."""
    schema = spark.StructType(
        [
            spark.StructField("a", spark.IntegerType()),
            spark.StructField("b", spark.ArrayType(spark.StructType([spark.StructField("c", spark.DateType())]))),
            spark.StructField("d", spark.MapType(spark.StringType(), spark.DecimalType(6, 2))),
        ]
    )

    assert (
        schema.simpleString().replace("integer", "int")
        == struct_type(json_schema.parse(json.loads(schema.json().replace('"integer"', '"int"')))).simpleString()
    )


def test_json_schema():
    """JSON Schema's types, formats and containers become columns."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": ["string", "null"]},
            "c": {"type": "string", "format": "date-time"},
            "d": {"type": "array", "items": {"type": "object", "properties": {"e": {"type": "boolean"}}}},
            "f": {"type": "object", "additionalProperties": {"type": "number"}},
            "g": {"type": "string", "contentEncoding": "base64"},
        },
    }
    simple = "struct<a:bigint,b:string,c:timestamp,d:array<struct<e:boolean>>,f:map<string,double>,g:binary>"

    assert simple == struct_type(json_schema.parse(schema)).simpleString()


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ([], "a JSON schema is an object"),
        ({"type": "string"}, "not of an object with `properties`"),
        ({"type": "object", "properties": {"a": {"$ref": "#/x"}}}, "`a` has no one type"),
        ({"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}, "`a` has no one type"),
        ({"type": "struct", "fields": [{"name": "a", "type": "interval"}]}, "`a` has the type `interval`"),
    ],
)
def test_schema_that_is_no_columns(schema: Any, sentence: str):
    """The error names the part that has no column type."""
    with pytest.raises(ValueError, match=sentence.replace("$", r"\$")):
        json_schema.parse(schema)
