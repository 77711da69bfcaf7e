"""The schema types and encodings that Pub/Sub has, each with the number in Pub/Sub's enum and its implementation.

To add a schema type: its name in `SchemaType`, its row in `SCHEMA_TYPES`, and two packages of one name, which are
imported when the type is first used:

    schema.NAME    `parse(text)` and `check_compatible(old, new)`: see `schema.definition`
    codec.NAME     `value_type`, `decoder`, `encoder`: see `codec.registry.Codec`
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, cast

from pubsub_spark.schema.definition import Definition, Encoding, IncompatibleSchema, InvalidSchema

SchemaType = Literal["AVRO", "PROTOCOL_BUFFER"]


class _Row(NamedTuple):
    """The number in the enum `Schema.Type`, and the name of the packages that implement the type."""

    number: int
    package: str


SCHEMA_TYPES: Final[dict[SchemaType, _Row]] = {
    "PROTOCOL_BUFFER": _Row(1, "protobuf"),
    "AVRO": _Row(2, "avro"),
}
SCHEMA_TYPE_NUMBERS: Final[dict[str, int]] = {name: row.number for name, row in SCHEMA_TYPES.items()}
SCHEMA_TYPES_BY_NUMBER: Final[dict[int, SchemaType]] = {row.number: name for name, row in SCHEMA_TYPES.items()}

# The numbers in the enum `Encoding`
ENCODINGS_BY_NUMBER: Final[dict[int, Encoding]] = {1: "JSON", 2: "BINARY"}
ENCODING_NUMBERS: Final[dict[str, int]] = {name: number for number, name in ENCODINGS_BY_NUMBER.items()}


def parse(type: SchemaType, text: str) -> Definition:  # noqa: A002 (Pub/Sub's name for it)
    """Raises InvalidSchema if `text` is not a schema of that type."""
    if type not in SCHEMA_TYPES:
        raise InvalidSchema(f"A schema's type is {' or '.join(sorted(SCHEMA_TYPES))}, not `{type}`")
    return cast("Definition", _definitions(type).parse(text))


def check_compatible(old: Definition, new: Definition) -> None:
    """Raise IncompatibleSchema unless `new` may be committed as a revision after `old`."""
    if old.type != new.type:
        raise IncompatibleSchema(f"A revision keeps its schema's type: {old.type} cannot become {new.type}")
    _definitions(cast("SchemaType", old.type)).check_compatible(old, new)


def _definitions(type: SchemaType) -> Any:  # noqa: A002
    return import_module(f"pubsub_spark.schema.{SCHEMA_TYPES[type].package}")
