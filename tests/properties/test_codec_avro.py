"""Laws of the Avro codec, for schemas and values that hypothesis makes up.

The oracles are fastavro for the meaning of the bytes, and PySpark for the values of a column. The other laws are our
own: the outcome of a message does not depend on its neighbours, and decoded messages can be encoded and decoded again.
"""

from __future__ import annotations

import inspect
import io
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from pubsub_spark.codec.avro import decoder, encoder, value_type
from pubsub_spark.codec.avro.types import variants, widened
from pubsub_spark.codec.json import reader
from pubsub_spark.codec.spark_types import struct_type
from pubsub_spark.schema import avro
from pubsub_spark.schema.avro import batch_check, error_locator, json_encoding
from pubsub_spark.schema.avro.compatibility import unreadable
from pubsub_spark.schema.avro.cursors import MIN_VECTORISED_ROWS
from pubsub_spark.schema.avro.schema_tree import Array, Map, Node, Record, Union
from pubsub_spark.schema.definition import InvalidMessage, InvalidSchema, Mismatch
from tests.properties.avro_strategies import damaged, messages, schemas, values, without_logical, written

RELAXED = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def arrow_reads_small_batches() -> Iterator[None]:
    """The JSON of the few messages of an example is read by Arrow, as that of many is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "MIN_ARROW_ROWS", 1)
        yield


def plain(node: Node, datum: Any) -> Any:
    """Our datum as the generated value."""
    match node:
        case Record(fields=fields):
            return {field.name: plain(field.node, datum[field.name]) for field in fields}
        case Array(items):
            return [plain(items, item) for item in datum]
        case Map(of):
            return {key: plain(of, item) for key, item in datum.items()}
        case Union(branches):
            branch = branches[int(datum[0].rpartition("_")[2])]
            return getattr(branch, "name", branch.kind), plain(branch, datum[1]["value"])
    return datum


def decoded(
    writer: avro.AvroDefinition,
    data: list[bytes],
    encoding: Any = "BINARY",
    reader: avro.AvroDefinition | None = None,
) -> tuple[Any, Any]:
    return decoder(writer, reader or writer, encoding)(pa.array(data, pa.binary()))


def alone(writer: avro.AvroDefinition, data: list[bytes], reader: avro.AvroDefinition | None = None) -> tuple[Any, Any]:
    """The same, three messages at a time: the items of their arrays are too few to be read at once."""
    decode = decoder(writer, reader or writer, "BINARY")
    parts = [decode(pa.array(data[start : start + 3], pa.binary())) for start in range(0, len(data), 3)]
    found, errors = zip(*parts, strict=True)
    return pa.concat_arrays(found), pa.concat_arrays(errors)


def same(left: pa.Array, right: pa.Array) -> bool:
    """Return whether all is equal, NaN included. Dates and timestamps are compared by number: Python's end in 9999."""
    return left.type == right.type and repr(_listed(left)) == repr(_listed(right))


def _listed(array: pa.Array) -> list[Any]:
    type_ = array.type
    if pa.types.is_struct(type_):
        rows = zip(*map(_listed, array.flatten()), strict=True) if type_.num_fields else [()] * len(array)
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        items = _listed(array.values) if pa.types.is_list(type_) else _entries(array)
        ends = array.offsets.to_pylist()
        valid = array.is_valid().to_pylist()
        return [items[ends[row] : ends[row + 1]] if valid[row] else None for row in range(len(array))]
    if pa.types.is_date32(type_) or pa.types.is_timestamp(type_):
        array = array.cast(pa.int32() if pa.types.is_date32(type_) else pa.int64())
    return list(array.to_pylist())


def _entries(array: pa.MapArray) -> list[Any]:
    return list(zip(_listed(array.keys), _listed(array.items), strict=True))


@RELAXED
@given(st.data(), schemas())
def test_datum_is_what_fastavro_wrote(data, declared):
    """Binary messages of fastavro are read as the value that was written."""
    value = data.draw(values(declared))
    definition = avro.parse(json.dumps(declared))

    assert value == plain(definition.root, definition.datum.read(written(declared, value)))


# fastavro's JSON encoder fails on a record without fields and writes infinities as Python does, which is not JSON.
@RELAXED
@given(st.data(), schemas(least=1))
def test_datum_is_what_fastavro_wrote_as_json(data, declared):
    """JSON messages of fastavro are read as the value that was written."""
    value = data.draw(values(declared))
    assume(_finite(value))
    definition = avro.parse(json.dumps(declared))
    out = io.StringIO()
    fastavro.json_writer(out, fastavro.parse_schema(without_logical(declared)), [value])
    assert value == plain(definition.root, definition.read_json(out.getvalue().encode()))


@RELAXED
@given(st.data(), schemas(least=1))
def test_fastavro_reads_our_json(data, declared):
    """The JSON that we write, fastavro reads back as the value."""
    value = data.draw(values(declared))
    assume(_finite(value))
    definition = avro.parse(json.dumps(declared))
    text = json_encoding.write_message(definition.root, definition.datum.read(written(declared, value)))

    parsed = fastavro.parse_schema(without_logical(declared))
    [read] = fastavro.json_reader(io.StringIO(text.decode()), parsed)
    assert written(declared, value) == _rewritten(parsed, read, definition)


def _rewritten(parsed: Any, read: Any, definition: avro.AvroDefinition) -> bytes:
    """Return the bytes written again, by way of our JSON reader: fastavro drops the branch of a union while reading."""
    assume(not _has_choice(definition.root))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, read)
    return out.getvalue()


def _has_choice(node: Node) -> bool:
    match node:
        case Union():
            return True
        case Record(fields=fields):
            return any(_has_choice(field.node) for field in fields)
        case Array(inner) | Map(inner):
            return _has_choice(inner)
    return False


def _finite(value: Any) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(map(_finite, value.values()))
        case list() | tuple():
            return all(map(_finite, value))
    return True


@RELAXED
@given(schemas())
def test_column_is_what_spark_expects(declared):
    """The Arrow type of a column is the one that PySpark derives from its Spark type."""
    found = value_type(avro.parse(json.dumps(declared)))

    # PySpark 4.0 has no such parameter: its timestamps are in UTC.
    zone: Any = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    expected = to_arrow_schema(struct_type(found), **zone)
    assert expected.equals(pa.schema(list(found)), check_metadata=True)


def row(node: Node, datum: Any) -> Any:
    """Return the column's value of a datum of fastavro's, without logical types in the schema."""
    match node:
        case Record(fields=fields):
            return {field.name: row(field.node, datum[field.name]) for field in fields}
        case Array(items):
            return [row(items, item) for item in datum]
        case Map(of):
            return [(key, row(of, item)) for key, item in datum.items()]
        case Union(branches):
            chosen = branches[int(datum[0].rpartition("_")[2])]
            value = row(chosen, datum[1]["value"])
            if chosen.kind == "null" or widened(node) or len(variants(node)) == 1:
                return value
            return {
                f"member{place}": value if branch is chosen else None for place, branch in enumerate(variants(node))
            }
    return datum


@settings(RELAXED, max_examples=150)
@given(messages())
def test_rows_are_what_fastavro_reads(made):
    """Good messages: the values are those that fastavro reads, one message at a time."""
    declared, data = without_logical(made[0]), made[1]
    definition = avro.parse(json.dumps(declared))

    found, errors = decoded(definition, data)

    assert len(data) == errors.null_count
    assert [row(definition.root, definition.datum.read(message)) for message in data] == found.to_pylist()


@RELAXED
@given(messages())
def test_many_messages_are_read_as_few_are(made):
    """Good messages: the values do not depend on their number, nor do the reasons of values beyond Spark's range."""
    declared, data = made
    definition = avro.parse(json.dumps(declared))

    expected, reasons = alone(definition, data)
    found, errors = decoded(definition, data)

    found.validate(full=True)
    assert same(expected, found)
    assert reasons.to_pylist() == errors.to_pylist()


@settings(RELAXED, max_examples=200)
@given(damaged())
def test_many_messages_are_refused_as_few_are(made):
    """Any bytes: many messages and few agree message by message, on values and on reasons."""
    declared, data = made
    definition = avro.parse(json.dumps(declared))

    expected, reasons = alone(definition, data)
    found, errors = decoded(definition, data)

    found.validate(full=True)
    assert same(expected, found)
    assert reasons.to_pylist() == errors.to_pylist()


@st.composite
def evolved(draw: st.DrawFn, declared: Any) -> Any:
    """The next revision: fields dropped, moved, added with a default, promoted, made optional."""
    match declared:
        case {"type": "record"}:
            fields = [
                {"name": field["name"], "type": draw(evolved(field["type"]))}
                for field in declared["fields"]
                if draw(st.integers(0, 5))
            ]
            if draw(st.booleans()):
                fields.append({"name": "added", "type": "int", "default": 1})
            return declared | {"fields": draw(st.permutations(fields))}
        case {"type": "array"}:
            return declared | {"items": draw(evolved(declared["items"]))}
        case {"type": "map"}:
            return declared | {"values": draw(evolved(declared["values"]))}
        case {"type": "enum"}:
            return declared | {"symbols": draw(st.permutations(["A", "D"])), "default": "D"}
        case list():
            return (
                draw(st.permutations(declared))
                if draw(st.booleans())
                else [*declared, {"type": "array", "items": "long"}]
            )
        case str() if draw(st.booleans()):
            wider = draw(
                st.sampled_from(
                    {"int": ["long", "float", "double"], "long": ["float", "double"]}.get(declared, [declared])
                )
            )
            return ["null", wider] if wider != "null" and draw(st.booleans()) else wider
    return declared


@settings(RELAXED, max_examples=150)
@given(st.data(), damaged())
def test_many_messages_are_resolved_as_few_are(data, made):
    """Written with one revision, read as another, damaged or not: the outcome does not depend on the number."""
    declared, messages = made
    later = data.draw(evolved(declared))
    try:
        writer, reader = avro.parse(json.dumps(declared)), avro.parse(json.dumps(later))
    except InvalidSchema:
        assume(False)  # a type that others refer to by name was in a dropped field, or a union got a branch twice

    expected, reasons = alone(writer, messages, reader)
    found, errors = decoded(writer, messages, reader=reader)

    found.validate(full=True)
    assert same(expected, found)
    assert reasons.to_pylist() == errors.to_pylist()


@RELAXED
@given(st.data(), schemas())
def test_what_may_be_committed_can_be_read(data, declared):
    """A revision that the compatibility check accepts reads every message of the other, except values beyond Spark."""
    later = data.draw(evolved(declared))
    try:
        writer, reader = avro.parse(json.dumps(declared)), avro.parse(json.dumps(later))
    except InvalidSchema:
        assume(False)
    assume(unreadable(writer.root, reader.root) is None)
    value = data.draw(values(declared))

    _, errors = decoded(writer, [written(declared, value)], reader=reader)

    reason = errors[0].as_py() or ""
    beyond_spark = ("digits", "no bytes", "beyond Spark's range", "not valid UTF-8")
    assert not reason or any(word in reason for word in beyond_spark)


@RELAXED
@given(damaged())
def test_first_invalid_is_the_first_that_validate_refuses(made):
    """Looking at a whole request finds the same message as looking at each in turn."""
    declared, data = made
    definition = avro.parse(json.dumps(declared))

    def refused(message: bytes) -> bool:
        try:
            definition.validate(message, "BINARY")
        except InvalidMessage:
            return True
        return False

    expected = next((index for index, message in enumerate(data) if refused(message)), None)
    assert expected == definition.first_invalid(data, "BINARY")


def _logical(type_: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": logical, **more}


# -128, -32768, ... fit exactly. fastavro writes them with a byte more than Java's BigInteger.toByteArray and we do.
_PADDED_BY_FASTAVRO = frozenset(-(1 << (8 * size - 1)) for size in range(1, 17))


def _decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    numbers = st.integers(-most, most).filter(lambda number: number not in _PADDED_BY_FASTAVRO)
    return numbers.map(lambda number: Decimal(f"{number}E-{scale}"))


_INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
_MILLIS = _INSTANTS.map(lambda instant: instant.replace(microsecond=instant.microsecond // 1000 * 1000))
# name: (type, values as fastavro and Arrow both have them)
MEANINGS: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "price": (_logical("bytes", "decimal", precision=10, scale=2), _decimals(10, 2)),
    "large": (_logical("bytes", "decimal", precision=38, scale=10), _decimals(38, 10)),
    "small": (_logical("fixed", "decimal", name="Small", size=2, precision=4), _decimals(4, 0)),
    "wide": (_logical("fixed", "decimal", name="Wide", size=20, precision=30, scale=5), _decimals(30, 5)),
    "day": (_logical("int", "date"), st.dates()),
    "micros": (_logical("long", "timestamp-micros"), _INSTANTS.map(lambda instant: instant.replace(tzinfo=UTC))),
    "millis": (_logical("long", "timestamp-millis"), _MILLIS.map(lambda instant: instant.replace(tzinfo=UTC))),
    "local_micros": (_logical("long", "local-timestamp-micros"), _INSTANTS),
    "local_millis": (_logical("long", "local-timestamp-millis"), _MILLIS),
}


@pytest.mark.parametrize("number", sorted(_PADDED_BY_FASTAVRO, reverse=True)[:15])
def test_decimal_takes_no_byte_too_many(number: int):
    """A number that just fits is written as short as Java does, and both forms are read."""
    declared = _logical("bytes", "decimal", precision=38, scale=0)
    definition = avro.parse(json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": declared}]}))
    size = (number.bit_length() + 7) // 8
    forms = [bytes([2 * length]) + number.to_bytes(length, "big", signed=True) for length in (size, size + 1)]

    found, _ = decoded(definition, forms)

    assert [{"n": Decimal(number)}] * 2 == found.to_pylist()
    assert [forms[0]] * 2 == encoder(definition, "BINARY", found.type, False)(found).to_pylist()


@RELAXED
@given(
    st.lists(st.fixed_dictionaries({name: values for name, (_, values) in MEANINGS.items()}), min_size=1, max_size=9)
)
def test_logical_types_mean_what_fastavro_says(rows):
    """Decimals, dates and timestamps: fastavro's bytes are these values, and these values are fastavro's bytes."""
    fields = [{"name": name, "type": type_} for name, (type_, _) in MEANINGS.items()]
    declared = {"type": "record", "name": "R", "fields": fields}
    definition, parsed = avro.parse(json.dumps(declared)), fastavro.parse_schema(declared)
    data = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        data.append(out.getvalue())
    rows, data = (
        (rows * MIN_VECTORISED_ROWS)[: MIN_VECTORISED_ROWS + 3],
        (data * MIN_VECTORISED_ROWS)[: MIN_VECTORISED_ROWS + 3],
    )

    found, _ = decoded(definition, data)

    assert rows == found.to_pylist() == alone(definition, data)[0].to_pylist()
    assert data == encoder(definition, "BINARY", found.type, False)(found).to_pylist()


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
@RELAXED
@given(made=messages())
def test_decoded_columns_encode_to_themselves(encoding, made):
    """Decode, encode, decode: the same columns, in either encoding."""
    declared, data = made
    definition = avro.parse(json.dumps(declared))
    column, errors = decoded(definition, data)
    column = column.filter(errors.is_null())

    encode = encoder(definition, encoding, column.type, False)
    again, reasons = decoded(definition, encode(column).to_pylist(), encoding)

    assert same(column, again)
    assert reasons.null_count == len(reasons)


@RELAXED
@given(messages())
def test_rows_sliced_off_encode_as_they_would_alone(made):
    """A slice of an Arrow array, whose buffers begin elsewhere, encodes to the same messages."""
    declared, data = made
    definition = avro.parse(json.dumps(declared))
    column, errors = decoded(definition, data)
    column = column.filter(errors.is_null())
    encode = encoder(definition, "BINARY", column.type, False)

    assert encode(column).to_pylist()[1:5] == encode(column.slice(1, 4)).to_pylist()


@RELAXED
@given(damaged())
def test_messages_are_checked_together_as_one_by_one(made):
    """The check of many messages suspects those, and only those, that the strict walk over one message refuses."""
    declared, data = made
    root = avro.parse(json.dumps(declared)).root

    assert [row for row, message in enumerate(data) if not _fits(root, message)] == batch_check.suspects(
        root, batch_check.compile_check(root), data
    )


def _fits(root: Node, message: bytes) -> bool:
    try:
        error_locator.check(root, message)
    except Mismatch:
        return False
    return True
