"""Avro schema text: accepted schemas, the error message of each refusal, and allowed revisions."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from pubsub_spark.schema.avro import parser
from pubsub_spark.schema.avro.schema_tree import Array, Enum, Fixed, Primitive, Record
from pubsub_spark.schema.definition import IncompatibleSchema, InvalidSchema
from pubsub_spark.schema.schema_types import check_compatible, parse


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields], **more}


def field(type_: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": type_, **more}]}


REFUSED: dict[str, tuple[Any, str]] = {
    "unknown type": (record(("a", "integer")), "Field `a` has the unknown type `integer`"),
    "number": (record(("a", 5)), "Field `a` must be a type's name, an object or a list, not `5`"),
    "no type": ({"name": "R"}, "The schema has no `type`"),
    "no items": (record(("a", {"type": "array"})), "Field `a` has no `items`"),
    "no values": (record(("a", {"type": "map"})), "Field `a` has no `values`"),
    "no fields": ({"type": "record", "name": "R"}, "The schema has no `fields`"),
    "no name": ({"type": "record", "fields": []}, "The schema is of type `record` and needs a `name`"),
    "illegal name": ({"type": "record", "name": "a-b", "fields": []}, "a type with the illegal name `a-b`"),
    "half a surrogate pair": ({"type": "record", "name": "\ud800", "fields": []}, r"the illegal name `\ud800`"),
    "illegal field": (record(("1a", "int")), "Record `R` has a field with the illegal name `1a`"),
    "two fields of a name": (record(("a", "int"), ("a", "int")), "Record `R` has two fields named `a`"),
    "defined twice": (record(("a", {"type": "fixed", "name": "R", "size": 1})), "The type `R` is defined twice"),
    "named int": ({"type": "fixed", "name": "int", "size": 1}, "a type with the name of a primitive, `int`"),
    "used before defined": (record(("a", "Later"), ("b", {"type": "fixed", "name": "Later", "size": 1})), "`Later`"),
    "negative size": ({"type": "fixed", "name": "F", "size": -1}, "must have a `size` of 0 or more, got `-1`"),
    "no symbols": ({"type": "enum", "name": "E"}, "Enum `E` has no `symbols`"),
    "symbol twice": ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "Enum `E` has a symbol twice"),
    "illegal symbol": ({"type": "enum", "name": "E", "symbols": ["a b"]}, "Enum `E` has the illegal symbol `a b`"),
    "unknown default": ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "the default `B`"),
    "union in union": (record(("a", ["int", ["string"]])), "Field `a` is a union that directly contains a union"),
    "branch twice": (record(("a", ["int", {"type": "int"}])), "a union with two branches of type `int`"),
    "object as type": (record(("a", {"type": {"type": "int"}})), "Field `a` must have a name as its `type`"),
    "default of another type": (
        field("int", default="x"),
        "Field `a` has a default that does not fit: the value must be",
    ),
    "default of no branch": (field(["null", "int"], default="x"), "Field `a` has a default that does not fit"),
    "default too large": (field("int", default=2**31), "the value must be a 32-bit integer, is 2147483648"),
    "default that is text for a number": (
        field({"type": "array", "items": "double"}, default=["NaN"]),
        'Field `a` has a default that does not fit: Field `[0]` must be a number, is "NaN"',
    ),
    "unknown order": (
        field("int", order="bogus"),
        'Field `a` must have one of ascending, descending, ignore as its `order`, not `"bogus"`',
    ),
    "no order": (field("int", order=None), "as its `order`, not `null`"),
    "NaN": (field("double", default=float("nan")), "The schema is not JSON: NaN is not a JSON number"),
    "infinity where nothing is read": (
        {"type": "int", "note": [float("-inf")]},
        "The schema is not JSON: -Infinity is not a JSON number",
    ),
    "default of a record": (
        field({"type": "record", "name": "B", "fields": [{"name": "c", "type": "int"}]}, default={}),
        "Field `a` has a default that does not fit: Field `c` is missing",
    ),
}


@pytest.mark.parametrize("situation", REFUSED)
def test_what_is_no_schema_is_refused_with_its_place(situation):
    """An invalid schema is refused with an error message that names the field or the type."""
    declared, sentence = REFUSED[situation]

    with pytest.raises(InvalidSchema) as refused:
        parse("AVRO", json.dumps(declared))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "The schema is not JSON"),
        ("[" * 5000, "nested too deeply"),
        ('{"type":"array","items":' * 200 + '"int"' + "}" * 200, "nested deeper than 100 levels"),
    ],
)
def test_text_that_is_no_tree_is_refused(text, sentence):
    """Schema text that is broken or nested without end is refused."""
    with pytest.raises(InvalidSchema, match=sentence):
        parse("AVRO", text)


def test_schema_that_multiplies_is_refused():
    """A schema of forty records that each use the next twice is refused at once, without a walk."""
    declared: Any = "null"
    for level in range(40):
        again = f"R{level - 1}" if level else "null"
        declared = record(("a", declared), ("b", again)) | {"name": f"R{level}"}

    with pytest.raises(InvalidSchema, match="stands for more than 100000 fields"):
        parse("AVRO", json.dumps(declared))


def test_type_of_schema_that_does_not_exist_is_refused():
    """A schema type that is neither of Pub/Sub's two is refused."""
    with pytest.raises(InvalidSchema, match="AVRO or PROTOCOL_BUFFER, not `THRIFT`"):
        parse("THRIFT", "{}")  # type: ignore[arg-type]


def test_names_are_looked_up_in_their_namespace():
    """A short name refers to its neighbour, a full name to itself, and a record's namespace applies inside it."""
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    declared = record(("a", inner), ("b", "E"), ("c", "x.y.E"), namespace="x.y")

    root = parser.parse(json.dumps(declared))

    assert isinstance(root, Record)
    assert "x.y.R" == root.name
    assert {"x.y.E"} == {field.node.name for field in root.fields if isinstance(field.node, Enum)}
    assert 1 == len({id(field.node) for field in root.fields})


def test_a_name_with_dots_is_full_already():
    """A name with dots is a full name. The namespace attribute is not put in front of it."""
    node = parser.parse(
        json.dumps({"type": "fixed", "name": "p.F", "namespace": "q", "size": 2, "aliases": ["Old", "r.Old"]})
    )

    assert isinstance(node, Fixed)
    assert ("p.F", ("p.Old", "r.Old")) == (node.name, node.aliases)


@pytest.mark.parametrize(
    ("name", "namespace", "full"),
    [
        ("F", None, "outer.F"),
        ("F", "", "F"),
        (".F", "ignored", "F"),
        ("F", ".x", ".x.F"),
        ("F", "a..b", "a..b.F"),
        ("F", "com.acme$Inner", "com.acme$Inner.F"),
        ("a-b.1.F", None, "a-b.1.F"),
        ("F", "été 日本", "été 日本.F"),
        ("Größe_٣", None, "outer.Größe_٣"),
    ],
)
def test_name_that_java_accepts_is_read(name, namespace, full):
    """A name may have letters of any script, a namespace any characters. A null namespace is the enclosing one."""
    fixed = {"type": "fixed", "name": name, "namespace": namespace, "size": 1}

    root = parser.parse(json.dumps(record(("a", fixed), ("b", full), namespace="outer")))

    assert isinstance(root, Record)
    first, second = (field.node for field in root.fields)
    assert isinstance(first, Fixed)
    assert first is second
    assert full == first.name


@pytest.mark.parametrize("name", ["", "a.", "1a", "٣", "a-b", "a b", "½", "Ⅷ", "a\u0300", "\ud800.F", "\x00.F"])
def test_name_that_java_refuses_is_refused(name):
    """A name with characters other than letters, digits and underscores is refused. So is a namespace without text."""
    with pytest.raises(InvalidSchema, match="illegal name"):
        parser.parse(json.dumps({"type": "fixed", "name": name, "size": 1}))


@pytest.mark.parametrize(
    "declared",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 12},
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", "logicalType": "decimal", "precision": 0},
        {"type": "long", "logicalType": "decimal", "precision": 10},
        {"type": "string", "logicalType": "date"},
        {"type": "int", "logicalType": "no-such-type"},
        {"type": "int", "logicalType": 7},
        {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 10},
        {"type": "fixed", "name": "F", "size": 11, "logicalType": "duration"},
    ],
)
def test_logical_type_that_does_not_fit_is_ignored(declared):
    """By the specification, readers fall back to the underlying type."""
    node = parser.parse(json.dumps(declared))

    assert isinstance(node, Primitive | Fixed)
    assert node.logical is None


def test_defaults_are_parsed_as_what_they_stand_for():
    """The default of bytes is read from text, and that of a union by the first branch that fits."""
    root = parser.parse(json.dumps(field(["null", "int", "bytes"], default="\u00ff")))
    array = parser.parse(json.dumps(field({"type": "array", "items": "double"}, default=[1])))

    assert isinstance(root, Record)
    assert isinstance(array, Record)
    assert isinstance(array.fields[0].node, Array)
    assert (("union0_2", {"value": b"\xff"}), [1.0]) == (root.fields[0].default, array.fields[0].default)


@pytest.mark.parametrize(
    ("branches", "default", "chosen"),
    [
        (["null", "int"], 5, ("union0_1", {"value": 5})),
        (["double", "string"], "NaN", ("union0_1", {"value": "NaN"})),
        (["int", "long"], 2**31, ("union0_1", {"value": 2**31})),
        (["long", "double"], 1, ("union0_0", {"value": 1})),
        (["bytes", "string"], "\u0100", ("union0_1", {"value": "\u0100"})),
    ],
)
def test_default_of_a_union_is_of_the_first_branch_that_it_fits(branches, default, chosen):
    """Avro 1.12: "Default values for union fields correspond to the first schema that matches in the union"."""
    root = parser.parse(json.dumps(field(branches, default=default)))

    assert isinstance(root, Record)
    assert chosen == root.fields[0].default


@pytest.mark.parametrize("kind", ["float", "double"])
def test_default_of_a_number_may_be_infinite_in_words(kind):
    """A default without a JSON number is a string, as Java's Avro writes it."""
    root = parser.parse(json.dumps(field(kind, default="-Infinity", order="DESCENDING")))

    assert isinstance(root, Record)
    assert float("-inf") == root.fields[0].default


TAKEN: dict[str, tuple[Any, Any]] = {
    "same": (record(("a", "int")), record(("a", "int"))),
    "default added": (
        record(("a", "int")),
        record(("a", "int"), ("b", "int"))
        | {"fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 1}]},
    ),
    "documentation added": (record(("a", "int")), record(("a", "int"), doc="of an int")),
    "union's branches reordered": (record(("a", ["int", "string"])), record(("a", ["string", "int"]))),
    "recursive": (
        record(("next", ["null", "R"])),
        record(("next", ["null", "R"]), doc="a list"),
    ),
    "string and bytes": (record(("a", "string")), record(("a", "bytes"))),
}


@pytest.mark.parametrize("situation", TAKEN)
def test_revision_that_each_can_read_is_taken(situation):
    """A revision is accepted if the old one can read the new and the new the old."""
    old, new = (parse("AVRO", json.dumps(declared)) for declared in TAKEN[situation])

    check_compatible(old, new)
    check_compatible(new, old)


E1, E2 = ({"type": "enum", "name": "E", "symbols": symbols} for symbols in (["A"], ["A", "B"]))
BROKEN: dict[str, tuple[Any, Any, str]] = {
    "field added": (
        record(("a", "int")),
        record(("a", "int"), ("b", "int")),
        "The new revision cannot read messages of the old one: Field `b` has no default",
    ),
    "field removed": (
        record(("a", "int"), ("b", "int")),
        record(("a", "int")),
        "The old revision cannot read messages of the new one: Field `b` has no default",
    ),
    "widened": (
        record(("a", "int")),
        record(("a", "long")),
        "The old revision cannot read messages of the new one: Field `a` was written as `long`",
    ),
    "made nullable": (
        record(("a", "int")),
        record(("a", ["null", "int"])),
        "The old revision cannot read messages of the new one: Field `a` was written as `null`",
    ),
    "symbol added": (record(("a", E1)), record(("a", E2)), "Field `a` may hold the symbol `B`"),
    "renamed": (record(("a", "int")), record(("a", "int")) | {"name": "S"}, "The schema was written as record `R`"),
    "fixed of another size": (
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "F", "size": 8},
        "The schema was written with 4 fixed bytes and is read with 8",
    ),
    "inside": (
        record(("a", {"type": "array", "items": {"type": "map", "values": "int"}})),
        record(("a", {"type": "array", "items": {"type": "map", "values": "string"}})),
        "Field `a[]{}` was written as `int` and cannot be read as `string`",
    ),
    "branch added": (record(("a", ["int", "string"])), record(("a", ["int", "string", "boolean"])), "`boolean`"),
}


@pytest.mark.parametrize("situation", BROKEN)
def test_revision_that_one_cannot_read_is_refused(situation):
    """The error message says which of the two cannot read the other, where and why."""
    old, new, sentence = BROKEN[situation]

    with pytest.raises(IncompatibleSchema) as refused:
        check_compatible(parse("AVRO", json.dumps(old)), parse("AVRO", json.dumps(new)))
    assert sentence in str(refused.value)


def test_definitions_need_no_spark():
    """The emulator parses, validates and compares schemas without PySpark."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from pubsub_spark.schema.schema_types import check_compatible, parse\n"
        "schema = parse('AVRO', '\"int\"'); check_compatible(schema, schema); schema.validate(b'\\x02', 'BINARY')\n"
        "print(schema.first_invalid([b'\\x02'] * 50 + [b''], 'BINARY'))"
    )

    assert "50\n" == subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
