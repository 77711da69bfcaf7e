"""Laws of the Protocol Buffers codec, over generated schemas, messages and bytes.

The oracles are protobuf's own: `FromString` decides if bytes are a message, generated classes' getters return its
fields, `json_format` its JSON. The row reader uses those getters, so it is the reference for the columns.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, reject, settings
from pyspark.sql.pandas.types import to_arrow_schema

from pubsub_spark.codec.json import reader
from pubsub_spark.codec.protobuf.decode import ProtobufDecoder
from pubsub_spark.codec.protobuf.encode import ProtobufEncoder
from pubsub_spark.codec.spark_types import struct_type
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.protobuf import parse, protoc
from pubsub_spark.schema.protobuf.definition import ProtobufDefinition
from pubsub_spark.schema.protobuf.error_locator import locate_error
from tests.properties.protobuf_rows import UnreadableMessage, compile_row_reader
from tests.properties.protobuf_strategies import broken, definitions, odd_json, schemas_and_messages
from tests.unit.codec.protobuf.definitions import read_in_columns

LAW = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(LAW, max_examples=200)


@pytest.fixture(scope="module", autouse=True)
def arrow_reads_small_batches() -> Iterator[None]:
    """The JSON of the few messages of an example is read by Arrow, as that of many is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "MIN_ARROW_ROWS", 1)
        yield


@pytest.fixture(scope="module", autouse=True)
def compiler_in_this_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """protoc runs inside the test, on files: a process for each of thousands of texts would take minutes."""
    folder: Path = tmp_path_factory.mktemp("protoc")
    output = folder / "descriptors"

    def compile_in_process(text: str) -> bytes:
        (folder / protoc.SCHEMA_FILE).write_text(text)
        well_known = resources.files("grpc_tools") / "_proto"
        arguments = [f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={output}"]
        assert 0 == grpc_tools_protoc.main(["protoc", *arguments, protoc.SCHEMA_FILE])
        return output.read_bytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_PYTHON_DISABLE_DYNAMIC_STUBS", "1")  # no import hooks
        from grpc_tools import protoc as grpc_tools_protoc

        patch.setattr(protoc, "run_compiler", compile_in_process)
        yield


def slow(decoder: ProtobufDecoder, messages: list[Any]) -> list[Any]:
    """Return the rows that the slow path makes."""
    row = compile_row_reader(decoder.struct)
    return rows(pa.array([row(message) for message in messages], decoder.type))


def rows(value: pa.StructArray) -> list[Any]:
    """Return plain values. The entries of a map, which have no order, are in that of their keys."""

    def plain_value(item: Any) -> Any:
        if isinstance(item, dict):
            return {name: plain_value(member) for name, member in item.items()}
        if isinstance(item, list):
            inner = [plain_value(member) for member in item]
            return sorted(inner, key=lambda pair: pair[0]) if inner and isinstance(inner[0], tuple) else inner
        return tuple(map(plain_value, item)) if isinstance(item, tuple) else item

    return [plain_value(row) for row in value.cast(plain(value.type)).to_pylist()]


def plain(type_: pa.DataType) -> pa.DataType:
    """Return the type with times as numbers: Python's end in the year 9999."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(plain(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(plain(type_.key_type), type_.item_field.with_type(plain(type_.item_type)))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(plain(type_.value_type)))
    return pa.int64() if pa.types.is_temporal(type_) else type_


def writer(definition: ProtobufDefinition, encoding: Encoding, rows_type: pa.StructType) -> ProtobufEncoder:
    """Return the writer, or reject an example that can be read but not written (a required message without fields)."""
    try:
        return ProtobufEncoder(definition, encoding, rows_type)
    except SchemaError:
        reject()


def payloads_of(messages: list[Any]) -> pa.BinaryArray:
    return pa.array([message.SerializeToString() for message in messages], pa.binary())


@LAW
@given(schemas_and_messages())
def test_fast_equals_slow(drawn):
    """The decoded columns hold the values that the message classes' getters return."""
    definition, messages = drawn
    decoder = ProtobufDecoder(definition)

    value, error = decoder.decode(payloads_of(messages))

    value.validate(full=True)
    assert decoder.type == value.type
    assert [None] * len(messages) == error.to_pylist()
    assert slow(decoder, messages) == rows(value)


@LAW
@given(definitions())
def test_the_column_has_the_type_that_spark_makes_of_it(definition):
    """Whatever the schema: Arrow's type is `to_arrow_schema` of Spark's, names and nullability included."""
    type_ = ProtobufDecoder(definition).type

    assert to_arrow_schema(struct_type(type_), timezone="UTC") == pa.schema(list(type_))


@LAW
@given(schemas_and_messages())
def test_what_was_read_is_written_back(drawn):
    """Encoded columns have, by their messages' getters, the rows that they were encoded from."""
    definition, messages = drawn
    decoder = ProtobufDecoder(definition)
    value, _ = decoder.decode(payloads_of(messages))

    written = writer(definition, "BINARY", decoder.type).encode(value)

    assert rows(value) == slow(
        decoder, [definition.message_class.FromString(payload) for payload in written.to_pylist()]
    )


@LAW
@given(schemas_and_messages())
def test_json_and_binary_are_the_same_rows(drawn):
    """A message's JSON, ours or json_format's, reads as its bytes do."""
    definition, messages = drawn
    decoder = ProtobufDecoder(definition)
    value, _ = decoder.decode(payloads_of(messages))
    theirs = pa.array([json_format.MessageToJson(message).encode() for message in messages], pa.binary())
    ours = writer(definition, "JSON", decoder.type).encode(value)

    json_decoder = ProtobufDecoder(definition, "JSON")
    assert rows(value) == rows(json_decoder.decode(theirs)[0])
    assert rows(value) == rows(json_decoder.decode(ours)[0])


@MANY
@given(odd_json())
def test_json_format_is_the_judge_of_json(drawn):
    """The compiled decoder makes the same message of a text as json_format does, or both refuse it."""
    definition, texts = drawn
    for text in texts:
        expected: Any = definition.message_class()
        try:
            json_format.Parse(text, expected)
            expected.SerializePartialToString()
        except Exception:
            expected = None
        try:
            found: Any = definition.json_reader.read(text.encode("utf-8", "surrogatepass"))
        except InvalidMessage:
            found = None

        assert expected == found, text


def judged(decoder: ProtobufDecoder, payload: bytes) -> Any:
    """Return the row that protobuf itself would return, or None if it would not."""
    try:
        message: Any = decoder.definition.message_class.FromString(payload)
        if not message.IsInitialized():
            return None
        return slow(decoder, [message])[0]
    except (DecodeError, UnreadableMessage):
        return None


@MANY
@given(broken())
def test_protobuf_is_the_judge_of_broken_payloads(drawn):
    """Row by row, a value is the one that upb reads, or else a reason, whatever the neighbours are."""
    definition, payloads = drawn
    decoder = ProtobufDecoder(definition)

    value, error = decoder.decode(pa.array(payloads, pa.binary()))

    value.validate(full=True)
    assert repr([judged(decoder, payload) for payload in payloads]) == repr(rows(value))  # a NaN equals no NaN
    assert [row is None for row in rows(value)] == [reason is not None for reason in error.to_pylist()]


@MANY
@given(broken())
def test_a_fault_is_found_where_upb_refuses(drawn):
    """`locate_error` has a sentence for exactly the payloads that upb does not parse."""
    definition, payloads = drawn
    for payload in payloads:
        try:
            definition.message_class.FromString(payload)
            refused = False
        except DecodeError:
            refused = True

        found = locate_error(payload, definition.message)
        if found and "no valid field number" in found and not refused:
            continue  # protobuf 7's upb lets the field number 0 pass, in messages without fields
        assert refused == (found is not None), payload


@LAW
@given(broken())
def test_strict_faults_are_what_is_unknown(drawn):
    """The strict walk finds something wherever protobuf would discard something, and nowhere else."""
    definition, payloads = drawn
    for payload in payloads:
        try:
            message = definition.message_class.FromString(payload)
        except DecodeError:
            continue
        found = message.SerializePartialToString()
        message.DiscardUnknownFields()

        assert (message.SerializePartialToString() != found) == (
            locate_error(payload, definition.message, strict=True) is not None
        )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
def test_every_float_survives(value):
    """NaN, infinity and the negative zero are restored with the same bits."""
    definition = parse('syntax = "proto3"; message M { double d = 1; float f = 2; repeated double ds = 3; }')
    message: Any = definition.message_class(d=value, f=value, ds=[value])
    decoder = ProtobufDecoder(definition)

    rows, _ = decoder.decode(payloads_of([message]))
    [payload] = ProtobufEncoder(definition, "BINARY", decoder.type).encode(rows).to_pylist()

    assert packing.pack("<d", value) == packing.pack("<d", rows[0]["d"].as_py())
    assert message.SerializeToString() == payload


@LAW
@given(odd_json())
def test_json_is_the_same_alone_and_among_many(drawn):
    """Columns read the same from texts, repeated so that they are worth it, as the reader of single messages."""
    definition, texts = drawn
    many = [text.encode("utf-8", "surrogatepass") for text in texts] * 64
    alone = definition.json_reader

    for row, payload in read_in_columns(definition, many).items():
        assert alone.read(many[row]) == definition.message_class.FromString(payload), many[row]


@LAW
@given(odd_json())
def test_a_batch_of_json_is_read_as_each_text_alone(drawn):
    """Each text, repeated so that its batch is worth it, is read by columns as by the reader of single messages."""
    definition, texts = drawn
    alone = definition.json_reader
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")

        read = read_in_columns(definition, [data] * 64)

        assert len(read) in (0, 64)
        for payload in set(read.values()):
            assert alone.read(data) == definition.message_class.FromString(payload), text
