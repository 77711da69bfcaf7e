"""A `.proto` definition: texts that parse, messages that fit, revisions that may follow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pubsub_spark.schema import schema_types
from pubsub_spark.schema.definition import Encoding, IncompatibleSchema, InvalidMessage, InvalidSchema
from pubsub_spark.schema.protobuf import parse
from pubsub_spark.schema.protobuf.protoc import MAX_BYTES

FLIGHT = """
syntax = "proto3";
package air;
message Flight {
  string carrier = 1;
  int32 number = 2;
  message Leg { string origin = 1; string dest = 2; }
  repeated Leg legs = 3;
}
"""
STRICT = """
syntax = "proto2";
message M {
  required int32 a = 1;
  optional string s = 2;
  enum E { X = 1; Y = 2; }
  repeated E es = 3;
  optional M child = 4;
  repeated fixed32 words = 5;
}
"""


def verdict(text: str, data: bytes, encoding: Encoding) -> str | None:
    """Return the reason why validation refuses a message, or None."""
    try:
        parse(text).validate(data, encoding)
    except InvalidMessage as error:
        return str(error)
    return None


def objection(old: str, new: str) -> str | None:
    """Return the reason why a revision is refused, or None."""
    try:
        schema_types.check_compatible(parse(old), parse(new))
    except IncompatibleSchema as error:
        return str(error)
    return None


def test_a_definition_is_asked_for_by_its_type():
    """`codec.schema_types.parse` passes PROTOCOL_BUFFER texts to this codec."""
    parsed = schema_types.parse("PROTOCOL_BUFFER", FLIGHT)

    assert "PROTOCOL_BUFFER" == parsed.type
    assert FLIGHT == parsed.text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'syntax = "proto3";\nmessage M {\n  int32 a = 1\n}',
            'The definition is wrong at line 4, column 1: Expected ";"',
        ),
        ("message M { optional Foo a = 1; }", 'The definition is wrong at line 1, column 22: "Foo" is not defined'),
        ("", "The definition must have exactly one top-level message, it has none"),
        ("message A {} message B {}", "The definition must have exactly one top-level message, it has `A`, `B`"),
        ("message A {} service S {}", "The definition has the service `S`, and may only have a message"),
        (
            "message A { message B { optional group G = 1 {} } }",
            "Field `A.B.g` is a group. Write a nested message instead",
        ),
        (
            'edition = "2023"; message A {}',
            'The definition is of an edition, and Pub/Sub knows only `syntax = "proto2"` and `syntax = "proto3"`',
        ),
        ("message A {}\n\x01", "The definition has a control character at line 2, column 1"),
        ("message A { // \ud800\n}", "The definition has characters that UTF-8 cannot express"),
        ("message A {}" + " " * MAX_BYTES, "The definition is longer than 300,000 bytes"),
    ],
)
def test_what_is_no_definition_is_refused(text, sentence):
    """The error message names the fault and its place."""
    with pytest.raises(InvalidSchema) as refused:
        parse(text)

    assert sentence == str(refused.value)


@pytest.mark.parametrize(
    "name", ["other.proto", "google/protobuf/descriptor.proto", "google/protobuf/../../etc/passwd"]
)
def test_only_well_known_types_are_imported(name):
    """A schema may import well-known types only. Other files are refused, and so are those that let protoc recurse
    through custom options.
    """
    with pytest.raises(InvalidSchema, match=f"^The definition imports `{name}`, and only `google/protobuf/any.proto`"):
        parse(f'import "{name}"; message M {{}}')


@pytest.mark.parametrize(
    "text",
    [
        "message A { optional group G = 1 {" * 5000,
        "option (a) = {" + "a {" * 90_000,
        "message A { optional int32 a = 1 [(x) = {" + "a: [" * 70_000,
        "message A { extend A {" * 10_000,
    ],
)
def test_depth_is_no_harm(text):
    """Nesting that no person wrote is refused, whatever it does to the compiler."""
    with pytest.raises(InvalidSchema):
        parse(text)


def test_a_well_known_import_that_is_not_used_is_no_news(capfd):
    """Nothing is written to standard error, whatever protoc would report there."""
    parsed = parse('import "google/protobuf/timestamp.proto"; message M {}')

    assert "M" == parsed.message.name
    assert ("", "") == capfd.readouterr()


def test_revisions_of_one_message_live_side_by_side():
    """Two definitions of the same name do not meet, because each has its own pool."""
    old, new = parse("message M { optional int32 a = 1; }"), parse("message M { optional string a = 1; }")

    assert 1 == old.message_class(a=1).a
    assert "x" == new.message_class(a="x").a


def test_many_threads_parse_at_once():
    """Each compilation is a process of its own."""
    texts = [f'syntax = "proto3"; message M{n} {{ int32 f{n} = {n + 1}; }}' for n in range(40)]
    with ThreadPoolExecutor(8) as threads:
        parsed = list(threads.map(parse, texts))

    assert [f"M{n}" for n in range(40)] == [one.message.name for one in parsed]


@pytest.mark.parametrize("data", [b"\x08\x01", b"\x08\x01\x12\x00", b"\x08\x01\x1a\x02\x01\x02", b"\x12\x01x\x08\x02"])
def test_a_message_of_the_schema_is_valid(data):
    """A message of the schema is valid, with its fields in any order, packed or not."""
    assert None is verdict(STRICT, data, "BINARY")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "Field `a` is required and missing"),
        (b"\x08\x01\x22\x00", "Field `child.a` is required and missing"),
        (b"\x08", "Field `a` breaks off in a number at byte 1"),
        (b"\x08" + b"\xff" * 10, "Field `a` has a number of more than 10 bytes at byte 1"),
        (b"\x08\x01\x12\x05ab", "Field `s` breaks off: 5 bytes announced at byte 3, 2 there"),
        (b"\x08\x01\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "announced at byte 3, 0 there"),
        (b"\x08\x01\x22\x03\x08\x01\x12", "Field `child.s` breaks off in a number at byte 7"),
        (b"\x08\x01\x2a\x05abcde", "Field `words` has 5 bytes of packed values, no multiple of 4"),
        (b"\x08\x01\x2dab", "Field `words` breaks off: 2 of 4 bytes"),
        (b"\x08\x01\x0c", "The message ends a group that never began, at byte 2"),
        (b"\x08\x01\x3b\x08\x01", "The message does not end the group that it began"),
        (b"\x08\x01\x3b\x44", "The message ends another group than it began, at byte 3"),
        (b"\x08\x01\x07", "The message has no valid field number at byte 2"),
        (b"\x08\x01\x0f", "The message has the unknown wire type 7 at byte 2"),
        (b"\x08\x01" + b"\x3b" * 101 + b"\x3c" * 101, "The message is nested deeper than 100 levels"),
        (b"\x08\x01" + b"\x22\x7f" * 3, "Field `child` breaks off: 127 bytes announced at byte 3, 4 there"),
        (b"\x08\x01\x38\x01", "The message has field number 7, which the schema does not know"),
        (b"\x08\x01\x22\x04\x08\x01\x38\x01", "Field `child` has field number 7, which the schema does not know"),
        (b"\x08\x01\x1a\x02\x01\x05", "Field `es` is 5, which enum `E` does not have"),
        (b"\x08\x01\x15abcd", "Field `s` holds 4 bytes where its type has a length"),
    ],
)
def test_a_payload_that_does_not_fit_is_explained(data, sentence):
    """The reason for a payload that does not fit has path, byte and cause. Validation is strict, so unknown fields
    count.
    """
    assert sentence in str(verdict(STRICT, data, "BINARY"))


def test_the_search_for_a_fault_has_an_end():
    """The search for a fault ends after megabytes of good fields, with a reason that lacks the place."""
    assert "The message is malformed, somewhere behind its first 100,000 numbers" == verdict(
        STRICT, b"\x08\x01" * 2_000_000 + b"\x08", "BINARY"
    )


def test_text_that_is_not_utf8_is_malformed_in_proto3():
    """A proto3 string that is not UTF-8 makes the payload malformed. In proto2 it is accepted."""
    assert "Field `legs.origin` is not valid UTF-8" == verdict(FLIGHT, b"\x1a\x04\x0a\x02\xff\xfe", "BINARY")
    assert None is verdict(STRICT, b"\x08\x01\x12\x02\xff\xfe", "BINARY")


@pytest.mark.parametrize("data", [b"{}", b'{"carrier": "UA", "legs": [{"origin": "JFK"}, {}]}', b'{"number": "12"}'])
def test_json_of_the_schema_is_valid(data):
    """By the proto3 mapping, numbers may be strings, and omitted fields are absent."""
    assert None is verdict(FLIGHT, data, "JSON")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"carrier": 1}',
        b'{"tail": "N1"}',
        b'{"number": 1, "number": 2}',
        b'{"number": 2147483648}',
        b'{"number": 1e400}',
        b'{"number": ' + b"9" * 5000 + b"}",
        b'{"carrier": "\xff"}',
        b'{"legs": {}}',
        b'{"legs": ' + b"[" * 100_000,
        b'{"legs": [{"origin": ' + b'{"a":' * 5000,
        b'{} {"carrier": "UA"}',
    ],
)
def test_json_that_does_not_fit_is_refused(data):
    """JSON is read as strictly as the mapping is. Hostile text also has its error message."""
    sentence = str(verdict(FLIGHT, data, "JSON"))

    assert sentence.startswith("The message ")
    assert 400 > len(sentence)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
@pytest.mark.parametrize(
    ("kind", "text"), [("Value", "{}"), ("Value", '{{"a": [{}]}}'), ("Struct", '{{"a": {}}}'), ("ListValue", "[0, {}]")]
)
def test_value_without_a_finite_number_is_refused(kind, text, number):
    """A Value of `struct.proto` must not be NaN or infinite. The same text in quotes is a string."""
    definition = (
        f'syntax = "proto3"; import "google/protobuf/struct.proto"; message M {{ google.protobuf.{kind} v = 1; }}'
    )

    def data(value: str) -> bytes:
        return f'{{"v": {text.format(value)}}}'.encode()

    assert f"The message does not fit: {number} is not a finite number" == verdict(definition, data(number), "JSON")
    assert None is verdict(definition, data(f'"{number}"'), "JSON")
    assert None is verdict(definition, data("-1e300"), "JSON")


def test_missing_required_fields_are_missed_in_json():
    """JSON without a required field is refused, although json_format does not check it."""
    assert "Field `a` is required and missing" == verdict(STRICT, b'{"s": "x"}', "JSON")


@pytest.mark.parametrize("bad", [0, 3, 999])
def test_the_first_invalid_of_a_request_is_found(bad):
    """Messages are checked all at once, and one by one only if something is wrong."""
    messages = [b"\x08\x01"] * 1000
    messages[bad] = b"\x38\x01"

    assert bad == parse(STRICT).first_invalid(messages, "BINARY")


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_a_request_without_invalid_messages_has_no_first(encoding):
    """The first invalid message is None if there are no messages, or only valid ones."""
    good = {"BINARY": b"\x08\x01", "JSON": b'{"a": 1}'}[encoding]

    assert None is parse(STRICT).first_invalid([], encoding)
    assert None is parse(STRICT).first_invalid([good] * 3, encoding)
    assert 1 == parse(STRICT).first_invalid([good, b"\x00"], encoding)


BASE = """
  string name = 1;
  optional int32 count = 2;
  repeated string tags = 3;
  map<string, int32> sizes = 4;
  Kind kind = 5;
  Part part = 6;
  oneof choice { string left = 7; string right = 8; }
  enum Kind { UNKNOWN = 0; OTHER = 1; }
  message Part { int32 id = 1; string label = 2; }
"""


def revision(*edits: tuple[str, str], name: str = "M") -> str:
    body = BASE
    for old, new in edits:
        assert old in body
        body = body.replace(old, new)
    return f'syntax = "proto3"; package p; message {name} {{ {body} }}'


@pytest.mark.parametrize(
    "edit",
    [
        ("string name = 1;", "string name = 1; int64 added = 20;"),
        ("string name = 1;", "string name = 1; optional Part added = 20;"),
        ("string name = 1;", ""),
        ("optional int32 count = 2;", "reserved 2;"),
        ("int32 id = 1;", "int32 id = 1; string more = 3;"),
        ("string label = 2;", ""),
        ("OTHER = 1;", "OTHER = 1; THIRD = 2;"),
        ("string right = 8;", ""),
        ("message Part {", "message New { int32 x = 1; } message Part {"),
    ],
)
def test_optional_fields_come_and_go(edit):
    """A revision may add and remove optional fields, including nested ones, and add values to an enum."""
    assert None is objection(revision(), revision(edit))


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (("string name = 1;", "string title = 1;"), "Field `name` changes its name from `name` to `title`"),
        (("string name = 1;", "bytes name = 1;"), "Field `name` changes its type from `string` to `bytes`"),
        (("string name = 1;", "string name = 20;"), "Field `name` changes its number from 1 to 20"),
        (
            ("string name = 1;", "optional string name = 1;"),
            "Field `name` changes its label from `optional` to `explicitly optional`",
        ),
        (
            ("string name = 1;", "repeated string name = 1;"),
            "Field `name` changes its label from `optional` to `repeated`",
        ),
        (("string name = 1;", "string name = 1; repeated int32 more = 20;"), "Field `more` is repeated and is added"),
        (("repeated string tags = 3;", ""), "Field `tags` is repeated and is removed"),
        (
            ("map<string, int32>", "map<string, int64>"),
            "Field `SizesEntry.value` changes its type from `int32` to `int64`",
        ),
        (("int32 id = 1;", "int64 id = 1;"), "Field `Part.id` changes its type from `int32` to `int64`"),
        (("OTHER = 1;", ""), "Enum `Kind` loses its value `OTHER`"),
        (("OTHER = 1;", "OTHER = 2;"), "Enum `Kind` changes the number of `OTHER` from 1 to 2"),
        (("oneof choice { string left = 7;", "string left = 7; oneof choice {"), "Field `left` changes its oneof"),
        (("string name = 1;", 'string name = 1 [json_name = "n"];'), "Field `name` changes its JSON name"),
    ],
)
def test_other_edits_are_refused(edit, sentence):
    """Pub/Sub's rule is narrower than the wire's: existing fields must not change."""
    said = str(objection(revision(), revision(edit)))

    assert said.startswith(sentence)
    assert said.endswith(". A new revision may only add and remove optional fields")


def test_the_message_may_be_renamed():
    """Renaming the message changes no field, though types of fields are named after it."""
    assert None is objection(revision(), revision(name="Renamed"))


def test_the_syntax_stays():
    """A change of syntax is refused, because it changes the meaning of an absent field."""
    said = str(objection("message M {}", 'syntax = "proto3"; message M {}'))

    assert said.startswith("The syntax changes from proto2 to proto3")


@pytest.mark.parametrize(("old", "new"), [("", "required int32 a = 1;"), ("required int32 a = 1;", "")])
def test_required_fields_neither_come_nor_go(old, new):
    """A revision may not add or remove a required field, because messages of the other one would be malformed."""
    said = str(objection(f"message M {{ {old} }}", f"message M {{ {new} }}"))

    assert said.startswith("Field `a` is required and is")


def test_a_schema_keeps_its_type():
    """An Avro revision cannot follow a Protocol Buffers one."""
    avro = schema_types.parse("AVRO", '{"type": "record", "name": "M", "fields": []}')
    with pytest.raises(IncompatibleSchema):
        schema_types.check_compatible(parse("message M {}"), avro)
