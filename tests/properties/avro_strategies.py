"""Avro schemas and values that hypothesis makes up, and their bytes by fastavro."""

from __future__ import annotations

import io
import itertools
import string
from typing import Any

import fastavro
from hypothesis import strategies as st

from pubsub_spark.schema.avro.cursors import MIN_VECTORISED_ROWS

_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
}


_LOGICAL = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
]


@st.composite
def schemas(draw: st.DrawFn, least: int = 0) -> dict[str, Any]:
    """A record of `least` to five fields, with everything that Avro has below it."""
    names = (f"n{number}" for number in itertools.count())
    return _record(draw, names, 3, least)


def _record(draw: st.DrawFn, names: Any, depth: int, least: int) -> dict[str, Any]:
    fields = draw(st.lists(st.sampled_from(string.ascii_lowercase), min_size=least, max_size=5, unique=True))
    return {
        "type": "record",
        "name": next(names),
        "fields": [{"name": name, "type": _type(draw, names, depth - 1, least)} for name in fields],
    }


def _type(draw: st.DrawFn, names: Any, depth: int, least: int, union: bool = True) -> Any:
    kinds = ["primitive", "primitive", "logical", "fixed", "enum"]
    if depth > 0:
        kinds += ["array", "map", "record"] + ["union"] * 2 * union
    match draw(st.sampled_from(kinds)):
        case "primitive":
            return draw(st.sampled_from(sorted(_PRIMITIVES)))
        case "logical":
            return draw(st.sampled_from(_LOGICAL))
        case "fixed":
            size = draw(st.sampled_from([0, 1, 4, 16, 19]))
            fixed = {"type": "fixed", "name": next(names), "size": size}
            decimal = {"logicalType": "decimal", "precision": 2, "scale": 1}
            return fixed | decimal if size and draw(st.booleans()) else fixed
        case "enum":
            symbols = draw(st.lists(st.sampled_from(["A", "B", "C", "_d"]), min_size=1, unique=True))
            return {"type": "enum", "name": next(names), "symbols": symbols}
        case "array":
            return {"type": "array", "items": _type(draw, names, depth - 1, least)}
        case "map":
            return {"type": "map", "values": _type(draw, names, depth - 1, least)}
        case "union":
            branches = [_type(draw, names, depth - 1, least, union=False) for _ in range(draw(st.integers(1, 4)))]
            return list({_tag(branch): branch for branch in branches}.values())
        case _:
            return _record(draw, names, depth, least)


def _tag(declared: Any) -> str:
    return declared if isinstance(declared, str) else str(declared.get("name", declared["type"]))


def values(declared: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of values that fastavro writes with the schema. A union's value is the pair (tag, value), so
    that the branch is certain."""
    if isinstance(declared, str):
        return _PRIMITIVES[declared]
    if isinstance(declared, list):
        return st.one_of([st.tuples(st.just(_tag(branch)), values(branch)) for branch in declared])
    match declared["type"]:
        case "record":
            return st.fixed_dictionaries({field["name"]: values(field["type"]) for field in declared["fields"]})
        case "array":
            return st.lists(values(declared["items"]), max_size=4)
        case "map":
            return st.dictionaries(
                st.text(string.ascii_letters, min_size=1, max_size=3), values(declared["values"]), max_size=4
            )
        case "enum":
            return st.sampled_from(declared["symbols"])
        case "fixed":
            return st.binary(min_size=declared["size"], max_size=declared["size"])
        case primitive:
            return _PRIMITIVES[primitive]


def without_logical(declared: Any) -> Any:
    """Return the schema without its logical types: fastavro then returns the written value, as our datum is."""
    if isinstance(declared, list):
        return [without_logical(item) for item in declared]
    if isinstance(declared, dict):
        return {key: without_logical(item) for key, item in declared.items() if key != "logicalType"}
    return declared


def written(declared: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(without_logical(declared)), value)
    return out.getvalue()


@st.composite
def messages(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    """A schema and enough messages of it to be read at once."""
    declared = draw(schemas())
    some = draw(st.lists(values(declared), min_size=1, max_size=8))
    encoded = [written(declared, value) for value in some]
    return declared, (encoded * MIN_VECTORISED_ROWS)[: MIN_VECTORISED_ROWS + 5]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    """A schema and messages of it. Some are cut, lengthened, overwritten or made up."""
    declared, good = draw(messages())
    for index in draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=8)):
        data = good[index]
        at = draw(st.integers(0, len(data)))
        junk = draw(
            st.binary(max_size=12) | st.sampled_from([b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x01", b"\x80\x00"])
        )
        good[index] = draw(st.sampled_from([data[:at], data + junk, data[:at] + junk + data[at + len(junk) :], junk]))
    return declared, good
