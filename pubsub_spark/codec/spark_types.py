"""Spark types made from Arrow types: the inverse of `to_arrow_type(timezone="UTC")`, with every nullability kept.

Early versions of PySpark's `from_arrow_type` forget whether elements and values may be null.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark

_SCALARS: Final[dict[pa.DataType, spark.DataType]] = {
    pa.null(): spark.NullType(),
    pa.bool_(): spark.BooleanType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.binary(): spark.BinaryType(),
    pa.string(): spark.StringType(),
    pa.date32(): spark.DateType(),
    pa.timestamp("us", tz="UTC"): spark.TimestampType(),
    pa.timestamp("us"): spark.TimestampNTZType(),
    pa.duration("us"): spark.DayTimeIntervalType(),
}


def spark_type(arrow: pa.DataType) -> spark.DataType:
    if pa.types.is_struct(arrow):
        return struct_type(arrow)
    if pa.types.is_map(arrow):
        return spark.MapType(spark_type(arrow.key_type), spark_type(arrow.item_type), arrow.item_field.nullable)
    if pa.types.is_list(arrow):
        return spark.ArrayType(spark_type(arrow.value_type), arrow.value_field.nullable)
    if pa.types.is_decimal(arrow):
        return spark.DecimalType(arrow.precision, arrow.scale)
    return _SCALARS[arrow]


def type_name(arrow: pa.DataType) -> str:
    """Return Spark's name of a type, or Arrow's if Spark has none."""
    try:
        return spark_type(arrow).simpleString()
    except KeyError:
        return str(arrow)


def struct_type(arrow: pa.StructType) -> spark.StructType:
    return spark.StructType([spark.StructField(field.name, spark_type(field.type), field.nullable) for field in arrow])
