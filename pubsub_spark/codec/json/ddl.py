"""Spark's DDL of a struct as an Arrow type: `carrier STRING, delay INT, legs ARRAY<STRUCT<to: STRING>>`.

Spark's own parser is in the JVM, which the Python process that plans a read cannot call.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

SCALARS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*(?:\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\))?")
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+(?:\s*\([^()]*\))?|[<>(),:])")


def parse(text: str) -> pa.StructType:
    """Raises ValueError with an error message."""
    return pa.struct(_Parser(text).fields(end=None))


def scalar(name: str) -> pa.DataType | None:
    """Return None if `name` is not a scalar type. Raises ValueError if a decimal is too long."""
    if (match := _DECIMAL.fullmatch(name)) is None:
        return SCALARS.get(name)
    precision, scale = int(match[1] or 10), int(match[2] or 0)
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise ValueError(f"DECIMAL({precision}, {scale}) is no type of Spark: 1 to 38 digits, of them the fraction's")
    return pa.decimal128(precision, scale)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position, text = 0, text.strip()
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                raise ValueError(f"`{text[position : position + 20]}` is not understood")
            self._tokens.append(token[1])
            position = token.end()
        self._next = 0

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, expected: str | None = None) -> str:
        token = self._peek()
        if token is None or (expected is not None and token.lower() != expected):
            raise ValueError(
                f"{f'`{expected}`' if expected else 'a name or a type'} is missing at `{token or 'the end'}`"
            )
        self._next += 1
        return token

    def _skip(self, word: str) -> bool:
        if (self._peek() or "").lower() != word:
            return False
        self._next += 1
        return True

    def fields(self, end: str | None) -> list[pa.Field]:
        """Return the fields up to a token, which is not consumed. None is the end of the text."""
        fields: list[pa.Field] = []
        while True:
            token = self._take()
            name = token[1:-1].replace("``", "`") if token.startswith("`") else token
            if not (token.startswith("`") or re.fullmatch(r"\w+", token)):
                raise ValueError(f"a name is missing at `{token}`")
            if name in (field.name for field in fields):
                raise ValueError(f"`{name}` is there twice")
            self._skip(":")
            fields.append(pa.field(name, self._type()))
            if self._skip("not"):  # a payload that lacks it is accepted all the same, as by `from_json`
                self._take("null")
            if self._skip("comment"):
                self._take()
            if self._peek() == end:
                return fields
            self._take(",")

    def _type(self) -> pa.DataType:
        name = self._take().lower()
        if name in ("struct", "array", "map"):
            self._take("<")
            type_ = self._nested(name)
            self._take(">")
            return type_
        if (type_ := scalar(name)) is None:
            raise ValueError(f"`{name}` is not a type of {', '.join(sorted(SCALARS))}, decimal, struct, array and map")
        return type_

    def _nested(self, name: str) -> pa.DataType:
        if name == "struct":
            return pa.struct(self.fields(end=">"))
        if name == "array":
            return pa.list_(pa.field("element", self._type()))
        if not pa.types.is_string(key := self._type()):
            raise ValueError("the keys of a MAP must be STRING, as those of JSON are")
        self._take(",")
        return pa.map_(key, self._type())
