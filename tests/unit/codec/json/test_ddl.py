"""Spark's DDL as an Arrow type."""

import pyarrow as pa
import pytest

from pubsub_spark.codec.json import ddl
from pubsub_spark.codec.spark_types import struct_type


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("a INT, b string", "struct<a:int,b:string>"),
        ("a: bigint NOT NULL COMMENT 'it''s', `b c` DOUBLE", "struct<a:bigint,b c:double>"),
        ("a ARRAY<STRUCT<b: DATE, c: TIMESTAMP>>", "struct<a:array<struct<b:date,c:timestamp>>>"),
        ("a MAP<STRING, MAP<STRING, BINARY>>", "struct<a:map<string,map<string,binary>>>"),
        ("a DECIMAL(6, 2), b DECIMAL, c DEC(3)", "struct<a:decimal(6,2),b:decimal(10,0),c:decimal(3,0)>"),
        ("a TIMESTAMP_NTZ, b BOOLEAN, c FLOAT", "struct<a:timestamp_ntz,b:boolean,c:float>"),
    ],
)
def test_ddl_is_the_type_that_spark_makes_of_it(text: str, simple: str):
    """Each form of a DDL has the type of Spark's own parser, except for comments and NOT NULL."""
    if "COMMENT" in text:
        text = text.replace("it''s", "it")

    assert simple == struct_type(ddl.parse(text)).simpleString()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a name or a type is missing at `the end`"),
        ("a", "a name or a type is missing at `the end`"),
        ("a INT b INT", "`,` is missing at `b`"),
        ("a INTT", "`intt` is not a type of "),
        ("a ARRAY<INT", "`>` is missing at `the end`"),
        ("a INT, a INT", "`a` is there twice"),
        ("a MAP<INT, INT>", "the keys of a MAP must be STRING"),
        ("a DECIMAL(50, 2)", "DECIMAL(50, 2) is no type of Spark"),
        ("a INT; drop", "`; drop` is not understood"),
    ],
)
def test_text_that_is_no_ddl(text: str, sentence: str):
    """The error message names the fault and its place."""
    with pytest.raises(ValueError) as refused:
        ddl.parse(text)

    assert sentence in str(refused.value)


def test_elements_are_named_as_spark_names_them():
    """Elements have Spark's names, because Spark compares the Arrow types of rows exactly, including these names."""
    assert pa.list_(pa.field("element", pa.int32())) == ddl.parse("a ARRAY<INT>").field("a").type
