"""The proto3 JSON mapping, written many messages at a time: the columns that `ptars` would be given, to texts.

Compiled once per schema: what each field does with the values of all messages is decided then, and Python's own loops
do the rest. Schemas with a field whose text is one of its own (Any, Struct, FieldMask, wrappers, durations), or with a
message that only has the shape of a time, are written by `json`, message by message, which says what is right.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from json.encoder import encode_basestring_ascii
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pubsub_spark.codec.protobuf import ptars_schema
from pubsub_spark.codec.protobuf.column_tree import time_node
from pubsub_spark.codec.protobuf.json_text import (
    FLOATING,
    PLAIN_TEXTS,
    base64_text,
    boolean_text,
    enum_text,
    fraction_text,
)
from pubsub_spark.schema.protobuf.descriptors import is_repeated
from pubsub_spark.schema.protobuf.json_mapping import WELL_KNOWN, WRAPPERS

WriteTexts = Callable[[pa.Array], list[str]]


class JsonColumnWriter:
    """The writer of JSON messages of one schema."""

    def __init__(self, message: Descriptor) -> None:
        self._write = _object_writer(message, frozenset())

    def texts(self, columns: dict[str, pa.Array], length: int) -> pa.BinaryArray:
        """The JSON messages of columns, named as those that `ptars` is given."""
        return pa.array(self._write(columns, length), pa.string()).cast(pa.binary())


def compile_writer(message: Descriptor) -> JsonColumnWriter | None:
    """The writer of a schema's JSON messages; None if a field has a text that is not written here."""
    try:
        return JsonColumnWriter(message)
    except _Unwritten:
        return None


class _Unwritten(Exception):  # noqa: N818 (not an error: `json` writes the schema)
    """A field whose text is not written here."""


def _object_writer(message: Descriptor, enclosing: frozenset[str]) -> Callable[[dict[str, pa.Array], int], list[str]]:
    """The writer of objects; absent fields, and zeros of fields without presence, are left out."""
    if message.full_name in (*WELL_KNOWN, *WRAPPERS, *enclosing) or time_node(message):
        raise _Unwritten
    enclosing |= {message.full_name}
    ordered = sorted(message.fields, key=lambda field: field.number)
    fields = [(ptars_schema.field_name(field), _field_writer(field, enclosing)) for field in ordered]

    def write(arrays: dict[str, pa.Array], length: int) -> list[str]:
        columns = [write_field(arrays[name]) for name, write_field in fields if name in arrays]
        if not columns:
            return ["{}"] * length
        return [", ".join(filter(None, texts)).join("{}") for texts in zip(*columns, strict=True)]

    return write


def _field_writer(field: FieldDescriptor, enclosing: frozenset[str]) -> WriteTexts:
    """The writer of a field's name and value; an empty text where it is absent."""
    label = f"{encode_basestring_ascii(field.json_name)}: "
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map_writer(label, field, enclosing)
    if is_repeated(field):
        return _list_writer(label, _value_writer(field, enclosing))
    if field.message_type is not None:
        write_items = _value_writer(field, enclosing)

        def write_messages(array: pa.Array) -> list[str]:
            given = array.is_valid().to_pylist()
            return [label + text if there else "" for there, text in zip(given, write_items(array), strict=True)]

        return write_messages
    text = _text(field)
    if field.has_presence or field.cpp_type in FLOATING:  # whose zeros are nulls, if absent
        return lambda array: ["" if value is None else label + text(value) for value in _objects(array)]
    return lambda array: [label + text(value) if value else "" for value in _objects(array)]


def _value_writer(field: FieldDescriptor, enclosing: frozenset[str]) -> WriteTexts:
    """The writer of values; what it writes for nulls means nothing."""
    if field.message_type is None:
        text = _text(field)
        return lambda array: list(map(text, _objects(array)))
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return _timestamp_texts
    write = _object_writer(field.message_type, enclosing)
    return lambda array: write(
        {array.type.field(place).name: array.field(place) for place in range(array.type.num_fields)}, len(array)
    )


def _list_writer(label: str, write_items: WriteTexts) -> WriteTexts:
    def write(array: pa.ListArray) -> list[str]:
        items = write_items(array.values)
        places = pairwise(array.offsets.to_pylist())
        return [f"{label}[{', '.join(items[first:last])}]" if first < last else "" for first, last in places]

    return write


def _map_writer(label: str, field: FieldDescriptor, enclosing: frozenset[str]) -> WriteTexts:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    write_items = _value_writer(value, enclosing)
    name_of = boolean_text if key.type == FieldDescriptor.TYPE_BOOL else str

    def write(array: pa.ListArray) -> list[str]:
        entries = array.values
        names = [f"{encode_basestring_ascii(name_of(name))}: " for name in _objects(entries.field("key"))]
        pairs = list(zip(names, write_items(entries.field("value")), strict=True))
        texts = []
        for first, last in pairwise(array.offsets.to_pylist()):
            members = dict(pairs[first:last]).items()  # the last value of a key counts
            texts.append(f"{label}{{{', '.join([name + text for name, text in members])}}}" if members else "")
        return texts

    return write


def _objects(array: pa.Array) -> list[Any]:
    """The values of an array; faster than `to_pylist` where none is null."""
    values: list[Any] = array.to_pylist() if array.null_count else array.to_numpy(zero_copy_only=False).tolist()
    return values


def _text(field: FieldDescriptor) -> Callable[[Any], str]:
    """The function that writes one value."""
    if field.type == FieldDescriptor.TYPE_ENUM:
        return enum_text(field)
    return base64_text if field.type == FieldDescriptor.TYPE_BYTES else PLAIN_TEXTS[field.cpp_type]


def _timestamp_texts(array: pa.StructArray) -> list[str]:
    texts = array.field("seconds").cast(pa.timestamp("s")).cast(pa.string()).to_pylist()
    nanos = _objects(array.field("nanos"))
    return [f'"{text[:10]}T{text[11:]}{fraction_text(of)}Z"' for text, of in zip(texts, nanos, strict=True)]
