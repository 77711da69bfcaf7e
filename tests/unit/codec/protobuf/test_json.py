"""JSON messages read and written many at a time, with `json_format` as the reference for every form."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format

from pubsub_spark.codec.json.reader import UNCOMMON, JsonReader
from pubsub_spark.codec.protobuf import decoder, encoder, value_type
from pubsub_spark.codec.protobuf.decode import ProtobufDecoder
from pubsub_spark.codec.protobuf.encode import ProtobufEncoder
from pubsub_spark.codec.protobuf.json import compile_reader, compile_writer
from pubsub_spark.emulator.page import payloads
from pubsub_spark.errors import DataError
from pubsub_spark.schema.definition import InvalidMessage
from pubsub_spark.schema.protobuf import ProtobufDefinition, parse
from tests.unit.codec.protobuf.definitions import proto2, proto3, read, read_in_columns

ALL_FORMS = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/any.proto";
message M {
  enum E { A = 0; B = 1; }
  message Inner { string s = 1; repeated int64 numbers = 2; }
  int32 i = 1; uint64 big_number = 2; double d = 3; float f = 4; bool b = 5; string s = 6; bytes raw = 7; E e = 8;
  google.protobuf.Timestamp t = 9; google.protobuf.Duration span = 10; google.protobuf.Int64Value w = 11;
  Inner inner = 12; repeated Inner inners = 13; map<int32, Inner> by_number = 14; repeated E es = 15;
  oneof c { string left = 16; int32 right = 17; }
  optional int32 o = 18; google.protobuf.Any any = 19; map<bool, double> flags = 20; repeated double ds = 21;
}"""
COMMON = 100  # messages in the common form around each tested one
DEFINITION = parse(ALL_FORMS)
DECODER = ProtobufDecoder(DEFINITION, "JSON")
WITHOUT_MAPS = parse(
    ALL_FORMS.replace("map<int32, Inner> by_number = 14;", "")
    .replace("google.protobuf.Any any = 19;", "")
    .replace("map<bool, double> flags = 20;", "")
)
BATCH_DECODER = ProtobufDecoder(WITHOUT_MAPS, "JSON")

MEMBERS: list[Any] = [
    *(
        '"i": 1',
        '"i": "-7"',
        '"i": "1,2"',
        '"i": 01',
        '"i": 1e2',
        '"i": true',
        '"i": 2147483648',
        '"i": null',
        '"i": " 1"',
    ),
    *('"bigNumber": "18446744073709551615"', '"big_number": 5', '"bigNumber": -1', '"bigNumber": 1, "big_number": 2'),
    *('"d": -0', '"f": -0', '"ds": [0, -0]'),
    *('"d": 1', '"d": NaN', '"d": "NaN"', '"d": -0.0', '"d": 1e400', '"f": 3.5e38', '"f": 0.1', '"b": 1', '"b": true'),
    *('"s": "a: \\"b\\": c :"', '"s": "x", "s": "y"', '"s": "\\ud800"', '"s": "\\u0000é"', '"s": 1', '"s":"NaN"'),
    *('"raw": "//4="', '"raw": "_-4"', '"e": "B"', '"e": 1', '"e": true', '"e": 7', '"e": "C"', '"e": 1.0'),
    *('"t": "2024-02-29T23:59:59.5Z"', '"t": "2024-02-29T23:59:59.123456789Z"', '"t": "2023-02-29T00:00:00Z"'),
    *('"t": "0000-01-01T00:00:00Z"', '"t": "0001-01-01T00:00:00Z"', '"t": "1970-01-01T00:00:00.Z"', '"t": ""'),
    *('"t": "1970-01-01T00:00:60Z"', '"t": "1970-01-01T01:00:00+01:00"', '"t": "1970-01-01 00:00:00Z"', '"t": 5'),
    *('"t": "1970-01-01T00:00:00.1234567890Z"', '"t": "1970-01-01T00:00:00.-5Z"', '"t": "1970-01-01T00:00:00.5"'),
    *('"span": "-1.5s"', '"span": "1m"', '"w": "3"', '"w": null', '"w": {"value": 3}', '"any": {}', '"any": null'),
    *(
        '"inner": {}',
        '"inner": {"s": "x", "numbers": ["1", 2]}',
        '"inner": {"s": null, "numbers": [null]}',
        '"inner": 1',
    ),
    *('"inners": [{}, {"s": "x"}]', '"inners": [null]', '"inners": {}', '"inners": null', '"es": ["A", 1]'),
    *('"byNumber": {"1": {}, "-2": {"s": "x"}}', '"byNumber": {"01": {}}', '"byNumber": {"1": {}, "1": {}}'),
    *('"byNumber": {"1": null}', '"flags": {"true": 1}', '"flags": {"True": 1}', '"left": "x"', '"right": 0'),
    *('"left": "", "right": 0', '"left": null, "right": 0', '"o": 0', '"nothing": 1', '"ds": [1, 2.5]', '"ds": [NaN]'),
]
TEXTS = [
    *(f"{{{member}}}".encode() for member in MEMBERS),
    *(
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"{}{}",
        b'{"i": 1}, {"i": 2}',
        b"{} NaN",
        b'  {"i": 3}\n',
        b'{"inners": [{',
        b"}]}",
    ),
]


def expected(text: bytes, definition: ProtobufDefinition = DEFINITION) -> Any:
    """Return the message that `json_format` reads from a text, or None."""
    message: Any = definition.message_class()
    try:
        if not text.decode().strip().startswith("{"):
            return None
        json_format.Parse(text.decode(), message)
        message.SerializeToString()
    except Exception:
        return None
    return message


@pytest.mark.parametrize("text", TEXTS)
def test_what_columns_read_is_what_json_format_reads(text):
    """A text among others is read as json_format reads it, or left to the reader of single messages."""
    texts = [b'{"i": %d, "s": "x", "inner": {"s": "y"}, "t": "2024-01-01T00:00:00Z"}' % n for n in range(COMMON)]
    texts[50] = text

    by_row = read_in_columns(DEFINITION, texts)

    assert set(range(COMMON)) - {50} <= by_row.keys()
    for row, payload in by_row.items():
        assert expected(texts[row]) == DEFINITION.message_class.FromString(payload)


def batch_reader() -> JsonReader:
    return compile_reader(WITHOUT_MAPS)


@pytest.mark.parametrize("text", TEXTS)
def test_what_arrow_reads_is_what_json_format_reads(text):
    """With a schema without maps, a batch is read as json_format reads its texts, or not at all."""
    message = expected(text, WITHOUT_MAPS)
    texts = pa.array([b'{"s": "before"}', *[text] * COMMON, b'{"s": "behind"}'], pa.binary())

    value, error = BATCH_DECODER.decode(texts)
    try:
        column = batch_reader().by_arrow(texts)
    except UNCOMMON:
        pass
    else:
        assert message is not None
        assert {message.SerializeToString(deterministic=True)} == {
            WITHOUT_MAPS.message_class.FromString(payload).SerializeToString(deterministic=True)
            for payload in batch_reader().write(column).to_pylist()[1:-1]
        }

    assert [message is None] * COMMON == error.is_valid().to_pylist()[1:-1]
    assert ["before", "behind"] == [value[0].as_py()["s"], value[-1].as_py()["s"]]


def test_common_forms_are_read_by_arrow():
    """Every kind of field is read in one batch, whether present or absent."""
    texts = [
        b'{"i": -7, "bigNumber": "18446744073709551615", "d": 1, "f": 0.5, "b": true, "s": "a\\n\\u00e9:"}',
        b'{"e": "B", "t": "2024-02-29T23:59:59.5Z", "span": "-1.5s", "w": "3", "inner": {"s": "x", "numbers": ["1"]}}',
        b'{"inners": [{}, {"numbers": ["-1", "2"]}], "es": ["A", "B"], "left": "", "o": 0, "ds": [1, 2.5]}',
        b'{"raw": "//4="}',
        b'{ "right" : 0 , "inner" : { }, "inners" : null, "s": null}',
        b"{}",
    ]

    column = batch_reader().by_arrow(pa.array(texts, pa.binary()))

    assert len(texts) == len(column)
    value, error = BATCH_DECODER.decode(pa.array(texts * 20, pa.binary()))
    assert error.null_count == len(texts) * 20
    messages: list[Any] = [expected(text, WITHOUT_MAPS) for text in texts]
    binary = pa.array([message.SerializeToString() for message in messages], pa.binary())
    alone, _ = ProtobufDecoder(WITHOUT_MAPS).decode(binary)
    assert alone.to_pylist() * 20 == value.to_pylist()


@pytest.mark.parametrize(
    "texts",
    [
        [b'{"inners": [{"s": "a"}', b"{}]}", b"{}{}"],
        [b'{"s": "}', b'{", "left": "}', b'{"}', b"{}{}{}"],
        [b'{"inner": {}', b"{}", b"{}}{}"],
        [b'{"i": 1', b',"b": true}', b"{}{}"],
        [b"", b"{}{}"],
        [b'\xef\xbb\xbf{"i": 1}'],
        [b'{"s": "\xff"}'],
    ],
)
def test_texts_that_are_objects_only_together_are_refused(texts):
    """Arrow reads a stream, so an equal number of objects and texts does not mean one object in each text."""
    with pytest.raises(UNCOMMON):
        batch_reader().by_arrow(pa.array(texts, pa.binary()))


def test_a_part_of_a_batch_is_read_like_a_whole():
    """The texts of a slice are read, although their bytes begin somewhere in their buffer."""
    texts = pa.array([b"not JSON", b'{"i": 1}', b'{"i": 2}', b"}"], pa.binary())

    column = batch_reader().by_arrow(texts.slice(1, 2))

    assert [1, 2] == column.field(0).to_pylist()


@pytest.mark.parametrize(
    ("first", "texts"),
    [
        (3, [b'{"inners": [{"s": "a"}', b"{}]}", b'{"i": 1}, NaN, {"i": 2}']),
        (3, [b'{"inners": [{"s": "a"}', b"{}]}", b'{"i": 1}, {"i": 2}']),
        (3, [b'{"i": 1}, NaN, {"i": 2}']),
        (3, [b'{"i": NaN}', b"NaN", b"", b'{"i": 1} {"i": 2}']),
        (COMMON - 1, [b'{"i": 1}]']),
        (COMMON - 2, [b'{"i": 1}]', b"[1"]),
        (0, [b"]", b"[1]"]),
    ],
)
def test_a_text_that_is_no_value_alone_is_malformed(first, texts):
    """Texts are parsed together. Those that are values only together are malformed, whatever their number."""
    common = [b'{"s": "%d"}' % n for n in range(COMMON)]
    common[first : first + len(texts)] = texts

    value, error = DECODER.decode(pa.array(common, pa.binary()))

    malformed = list(range(first, first + len(texts)))
    assert malformed == [row for row, reason in enumerate(error.to_pylist()) if reason is not None]
    assert all(str(row) == value[row].as_py()["s"] for row in range(COMMON) if row not in malformed)


def test_a_text_with_a_separator_in_a_string_is_read():
    texts = [b'{"s": ",NaN,"}' if row == 5 else b'{"s": "%d"}' % row for row in range(COMMON)]

    value, error = DECODER.decode(pa.array(texts, pa.binary()))

    assert COMMON == error.null_count
    assert ",NaN," == value[5].as_py()["s"]


def test_common_forms_are_read_in_columns():
    """Messages in the common form are all read by columns, however many there are."""
    texts = [b'{"bigNumber": "%d", "t": "2024-01-01T00:00:00.5Z", "es": ["A"], "left": "a:b"}' % n for n in range(1000)]

    by_row = read_in_columns(DEFINITION, texts)

    assert list(range(1000)) == list(by_row)
    message: Any = DEFINITION.message_class.FromString(by_row[999])
    assert 999 == message.big_number


def compact(text: str) -> bytes:
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")).encode()


def test_columns_are_written_as_json_format_writes_them():
    """The JSON of rows is the JSON that json_format writes for their messages, in the same order and with the same
    text.
    """
    definition = DEFINITION
    fields: list[dict[str, Any]] = [
        *({}, {"i": 1, "d": -0.0, "f": 0.1, "b": True, "s": 'é"\n', "raw": b"\xff", "e": 1}, {"o": 0}),
        {"big_number": 2**64 - 1, "t": {"seconds": -1, "nanos": 120_000_000}, "inner": {}, "right": 0},
        {"t": {"seconds": -62_135_596_800, "nanos": 1000}, "inners": [{}, {"s": "x", "numbers": [0, 2**62]}]},
        {"by_number": {7: {"s": "x"}}, "flags": {True: float("inf")}, "es": [0, 1], "ds": [0.0, float("nan")]},
        {"t": {"seconds": 253_402_300_799, "nanos": 999_999_000}, "left": ""},
        {"span": {"seconds": -1, "nanos": -500_000_000}, "w": {"value": 0}, "any": {}},
    ]
    messages: list[Any] = [definition.message_class(**row) for row in fields]
    decoder = ProtobufDecoder(definition)
    value, _ = decoder.decode(pa.array([message.SerializeToString() for message in messages], pa.binary()))

    written = ProtobufEncoder(definition, "JSON", decoder.type).encode(value).to_pylist()

    assert [compact(json_format.MessageToJson(message, indent=None)) for message in messages] == written


def test_json_has_the_forms_of_the_mapping():
    """All forms of the JSON mapping are read: both spellings, numbers in strings, base64, enum numbers."""
    text = proto3(
        "int64 big_number = 1; bytes b = 2; enum E { A = 0; B = 1; } repeated E es = 3; "
        "google.protobuf.Timestamp t = 4; google.protobuf.Duration d = 5; google.protobuf.BoolValue w = 6; "
        "google.protobuf.Struct s = 7; map<int32, string> m = 8; double x = 9; google.protobuf.FieldMask f = 10;"
    )
    row = {
        "big_number": 2**63 - 1,
        "b": b"\xff\xfe",
        "es": ["B", "B", "UNKNOWN_ENUM_VALUE_E_7"],
        "t": dt.datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=dt.UTC),
        "d": dt.timedelta(seconds=-1, microseconds=-500_000),
        "w": {"value": True},
        "s": '{"a": [1.0, null]}',
        "m": [(-1, "x")],
        "x": float("-inf"),
        "f": {"paths": ["a.b_c", "d"]},
    }
    payload = (
        b'{"bigNumber": "9223372036854775807", "b": "//4=", "es": ["B", 1, 7], "t": "2024-02-29T12:00:00.123456Z", '
        b'"d": "-1.5s", "w": true, "s": {"a": [1, null]}, "m": {"-1": "x"}, "x": "-Infinity", "f": "a.bC,d"}'
    )

    assert [row, row] == read(text, payload, payload.replace(b"bigNumber", b"big_number"), encoding="JSON")


@pytest.mark.parametrize(
    ("body", "text", "row"),
    [
        ("float f = 1;", b'{"f": 3.4028235e38}', {"f": 3.4028234663852886e38}),
        ("M f = 1; int32 i = 2;", b'{"i": "3"}', None),
        ("int32 snake_case = 1; int32 i = 2;", b'{"snakeCase": null, "i": 1e2}', {"snake_case": 0, "i": 100}),
        ("oneof c { int32 a = 1; int32 b = 2; }", b'{"a": 1, "b": null}', {"a": 1, "b": None}),
        ("google.protobuf.Value f = 1;", b'{"f": null}', {"f": "null"}),
        ("map<bool, string> f = 1;", b'{"f": {"true": "x"}}', {"f": [(True, "x")]}),
        (
            "google.protobuf.Timestamp f = 1;",
            b'{"f": "1970-01-01T01:00:00+01:00"}',
            {"f": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)},
        ),
    ],
)
def test_json_in_usual_and_unusual_forms(body, text, row):
    """JSON in the common forms is read by the compiled reader, in any other form by json_format."""
    definition = parse(proto3(body))
    if row is None:
        assert 3 == getattr(definition.json_reader.read(text), "i")  # noqa: B009 (its class is made at run time)
    else:
        assert [row] == read(definition.text, text, encoding="JSON")


def test_json_that_does_not_fit_says_why():
    """JSON that does not fit has its reason in its row, whatever the schema requires of the others."""
    rows = read(proto2("required int32 a = 1;"), b'{"a": 1}', b"{}", b'{"a": "x"}', b"\xff", b"", encoding="JSON")

    assert {"a": 1} == rows[0]
    assert "Field `a` is required and missing" == rows[1]
    assert rows[2].startswith("The message does not fit: Failed to parse")
    assert "The message is not valid UTF-8, and JSON is" == rows[3]
    assert "The message is not a JSON object" == rows[4]


def test_a_map_has_the_same_order_each_time():
    """A map's entries have the same order in each row, however the payload orders them."""
    definition = parse(proto3("map<string, int32> m = 1;"))
    message: Any = definition.message_class(m={f"k{n}": n for n in range(50)})
    shuffled: Any = definition.message_class(m={f"k{n}": n for n in reversed(range(50))})

    one, other = read(definition.text, message.SerializeToString(), shuffled.SerializeToString())

    assert one == other


def test_json_is_that_of_the_mapping():
    """JSON has names in camel case, 64-bit numbers in strings, times as text, and no defaults."""
    definition = parse(
        proto3(
            "int64 big_number = 1; google.protobuf.Timestamp at = 2; enum E { A = 0; B = 1; } E e = 3; string s = 4;"
        )
    )
    rows = pa.array(
        [{"big_number": 2**60, "at": dt.datetime(2024, 1, 1, 0, 0, 0, 1000, tzinfo=dt.UTC), "e": "B", "s": ""}, {}],
        value_type(definition),
    )

    full, empty = encoder(definition, "JSON", rows.type, False)(rows).to_pylist()

    assert {"bigNumber": "1152921504606846976", "at": "2024-01-01T00:00:00.001Z", "e": "B"} == json.loads(full)
    assert {} == json.loads(empty)


def written_as_json(text: str, **fields: Any) -> Any:
    """Return the JSON of a message, through its columns."""
    definition = parse(text)
    payload = definition.message_class(**fields).SerializeToString()
    rows, _ = decoder(definition, definition, "BINARY")(pa.array([payload], pa.binary()))
    [written] = encoder(definition, "JSON", rows.type, False)(rows).to_pylist()
    return json.loads(written)


@pytest.mark.parametrize(
    ("field", "value", "written"),
    [
        ("int64 f = 1;", -5, "-5"),
        ("uint64 f = 1;", 2**64 - 1, "18446744073709551615"),
        ("fixed32 f = 1;", 7, 7),
        ("float f = 1;", 0.1, 0.1),
        ("float f = 1;", 3.4028234663852886e38, 3.4028234663852886e38),
        ("double f = 1;", float("-inf"), "-Infinity"),
        ("float f = 1;", float("nan"), "NaN"),
        ("bytes f = 1;", b"\xff\xfe", "//4="),
        ("string f = 1;", "€\n", "€\n"),
        ("enum E { A = 0; B = 1; } repeated E f = 1;", [1, 0], ["B", "A"]),
        ("map<bool, int64> f = 1;", {True: 1}, {"true": "1"}),
        ("map<uint32, bytes> f = 1;", {5: b""}, {"5": ""}),
        ("optional int32 f = 1;", 0, 0),
        ("N f = 1; message N { optional bool snake_case = 1; }", {"snake_case": False}, {"snakeCase": False}),
        ("google.protobuf.Duration f = 1;", {"seconds": -1, "nanos": -500_000_000}, "-1.500s"),
    ],
)
def test_values_have_their_json_forms(field, value, written):
    """Numbers of 64 bits are strings, bytes are base64, and values without a JSON number are words."""
    assert {"f": written} == written_as_json(proto3(field), f=value)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("Double", [0.0, -0.0, 1e300, float("nan")]),
        ("Float", [0.0, 0.1, float("-inf"), 1e-30]),
        ("Int64", [0, -(2**63)]),
        ("UInt64", [0, 2**64 - 1]),
        ("Int32", [0, -1]),
        ("UInt32", [0, 2**32 - 1]),
        ("Bool", [False, True]),
        ("String", ["", 'é"']),
        ("Bytes", [b"", b"\xff"]),
    ],
)
def test_wrappers_have_the_json_of_their_values(kind, values):
    """Wrappers alone, in a list and in a map have the form that `json_format` writes."""
    wrapper = f"google.protobuf.{kind}Value"
    text = proto3(f"{wrapper} f = 1; repeated {wrapper} g = 2; map<string, {wrapper}> h = 3; {wrapper} absent = 4;")
    wrapped = [{"value": value} for value in values]
    for one in wrapped:
        fields: dict[str, Any] = {"f": one, "g": wrapped, "h": {"a": one}}
        message: Any = parse(text).message_class(**fields)

        assert json_format.MessageToDict(message) == written_as_json(text, **fields)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_float_of_a_wrapper_is_read_back(sign):
    """The largest float is read back. `json_format` itself writes a larger number, which it refuses to read."""
    text = proto3("google.protobuf.FloatValue f = 1;")
    largest = sign * 3.4028234663852886e38

    written = written_as_json(text, f={"value": largest})

    assert {"f": largest} == written
    message: Any = json_format.ParseDict(written, parse(text).message_class())
    assert largest == message.f.value


def test_a_wrapper_without_its_column_is_its_default():
    """A struct without fields is a wrapper of zero, and null is absent."""
    definition = parse(proto3("google.protobuf.Int64Value f = 1;"))
    rows = pa.array([{"f": {}}, {"f": None}], pa.struct([("f", pa.struct([]))]))

    assert [b'{"f":"0"}', b"{}"] == encoder(definition, "JSON", rows.type, False)(rows).to_pylist()


@pytest.mark.parametrize("kind", ["Timestamp", "Duration"])
@pytest.mark.parametrize("fields", ["int64 seconds = 1; int32 nanos = 2;", "int64 seconds = 7; int32 nanos = 3;"])
def test_a_message_of_the_shape_of_a_time_is_an_object_in_json(kind, fields):
    """A user's own message with the shape of a time keeps its fields in JSON. Only Google's own times are texts."""
    text = proto3(f"message {kind} {{ {fields} }} repeated {kind} f = 1; map<string, {kind}> g = 2;")
    time = {"seconds": 5, "nanos": 7_000}

    written = {"seconds": "5", "nanos": 7_000}
    assert {"f": [written], "g": {"a": written}} == written_as_json(text, f=[time], g={"a": time})


def test_a_value_without_a_json_form_names_its_row():
    """The error for a value without a JSON form, an Any of unknown type, names its row."""
    definition = parse(
        'syntax = "proto3"; import "google/protobuf/any.proto"; message M { google.protobuf.Any f = 1; }'
    )
    rows = pa.array([{"f": None}, {"f": {"type_url": "x/y", "value": b"z"}}], value_type(definition))

    with pytest.raises(DataError, match=r"^Row 1: column `f` has no JSON form: "):
        encoder(definition, "JSON", rows.type, False)(rows)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"t": {"seconds": 0, "nanos": 0}, "d": -0.0, "f": 0.1},
        {"t": {"seconds": -62_135_596_800, "nanos": 1000}, "d": float("nan"), "f": float("-inf")},
        {"t": {"seconds": 253_402_300_799, "nanos": 999_999_000}, "o": 0, "b": b"\xff", "s": 'é"\n'},
        {"t": {"seconds": -1, "nanos": 120_000_000}, "m": {True: "x"}, "r": [0, 2], "u": 2**64 - 1},
    ],
)
def test_the_text_of_json_is_that_of_json_format(fields):
    """Each field has the text that `json_format` writes on one line."""
    definition = parse(
        """syntax = "proto3"; import "google/protobuf/timestamp.proto";
        message M {
          enum E { A = 0; B = 2; }
          google.protobuf.Timestamp t = 9; double d = 2; float f = 3; optional int32 o = 4; bytes b = 5; string s = 6;
          map<bool, string> m = 7; repeated E r = 8; uint64 u = 1;
        }"""
    )
    message: Any = definition.message_class(**fields)
    rows, _ = decoder(definition, definition, "BINARY")(pa.array([message.SerializeToString()], pa.binary()))

    [written] = encoder(definition, "JSON", rows.type, False)(rows).to_pylist()

    assert compact(json_format.MessageToJson(message, indent=None)) == written


ANY = """syntax = "proto3"; package p; import "google/protobuf/any.proto"; message M {
  message N { int32 HasField = 1; google.protobuf.Any any = 2; }
  google.protobuf.Any f = 1; repeated google.protobuf.Any fs = 2; map<string, google.protobuf.Any> named = 3; }"""
N = {"@type": "type.googleapis.com/p.M.N", "HasField": 7}
IN_ANY = [
    N,
    {"@type": "p.example/p.M", "f": N},
    {"@type": "type.googleapis.com/p.M.N", "any": {"@type": "x/google.protobuf.Any", "value": N}},
    {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1.500s"},  # of a file that is not imported
    {"@type": "type.googleapis.com/google.protobuf.Int64Value", "value": "5"},
    {"@type": "type.googleapis.com/google.protobuf.Value", "value": {"a": [None, True]}},
    {},
]


@pytest.mark.parametrize("type_name", ["@type", "\\u0040\\u0074ype"])
def test_an_any_has_one_binary_form(type_name: str):
    """Not the one of this process's maps: a replay in another process has the same rows."""
    definition = parse(ANY.replace("int32 HasField = 1;", "map<string, int32> HasField = 1;"))
    names = [f"k{n}" for n in range(9)]
    inner = {"@type": "type.googleapis.com/p.M.N", "HasField": dict.fromkeys(names[::-1], 1)}
    nested = inner | {"any": inner}
    text = json.dumps({"f": nested, "fs": [nested], "named": {"k": nested}}).replace("@type", type_name).encode()
    rows, _ = decoder(definition, definition, "JSON")(pa.array([text], pa.binary()))
    [row] = rows.to_pylist()

    for value in (row["f"]["value"], row["fs"][0]["value"], dict(row["named"])["k"]["value"]):
        places = [at for name in names for at in (value.index(name.encode()), value.rindex(name.encode()))]
        assert sorted(places[::2]) == places[::2]
        assert sorted(places[1::2]) == places[1::2]
        assert places[::2] != places[1::2]


@pytest.mark.parametrize("value", IN_ANY)
def test_an_any_is_of_a_type_of_the_schema(value):
    """The JSON of an Any is read, validated and written again. So is its binary form on the emulator's page."""
    definition = parse(ANY)
    message = {"f": value, "fs": [value, value], "named": {"k": value}}
    text = json.dumps(message).encode()

    definition.validate(text, "JSON")
    rows, reasons = decoder(definition, definition, "JSON")(pa.array([text] * 3, pa.binary()))
    assert [None] * 3 == reasons.to_pylist()
    written = encoder(definition, "JSON", rows.type, False)(rows).to_pylist()
    assert [message] * 3 == [json.loads(text) for text in written]
    [payload, *_] = encoder(definition, "BINARY", rows.type, False)(rows).to_pylist()
    assert definition.read(payload, "BINARY") == definition.read(text, "JSON")
    shown = payloads.decoded(payload, payloads.SchemaOfMessage("1", definition, "BINARY"))
    assert value.get("@type") == shown["f"].get("@type")


@pytest.mark.parametrize(
    "value",
    [
        {"@type": "type.googleapis.com/p.Unknown"},
        {"@type": "type.googleapis.com/google.protobuf.FileDescriptorProto"},  # which this process has imported
        {"@type": "type.googleapis.com/p.M.N", "HasField": "x"},
        {"@type": "type.googleapis.com/p.M.N", "unknown": 1},
        {"HasField": 1},
    ],
)
def test_an_any_of_another_type_is_malformed(value):
    """A type that this process has imported is still unknown if the schema does not have it."""
    text = json.dumps({"f": value}).encode()

    with pytest.raises(InvalidMessage):
        parse(ANY).validate(text, "JSON")
    [reason] = read(ANY, text, encoding="JSON")
    assert "The message does not fit" in reason


def test_an_any_without_a_required_field_is_malformed():
    """In JSON the message in an Any must be complete. In rows it is bytes, and their error names the row."""
    text = """syntax = "proto2"; import "google/protobuf/any.proto"; message M {
      message N { required int32 i = 1; } optional google.protobuf.Any f = 1; }"""
    definition = parse(text)

    with pytest.raises(InvalidMessage):
        definition.validate(b'{"f": {"@type": "x/M.N"}}', "JSON")
    rows = pa.array([{"f": {"type_url": "x/M.N", "value": b"\xff"}}], value_type(definition))
    with pytest.raises(DataError, match=r"^Row 0: column `f` has no JSON form: "):
        encoder(definition, "JSON", rows.type, False)(rows)


def test_plans_print_and_compare():
    """The reader says how each field is read, and the writer how it is written."""
    one, other = (
        parse(proto3(f"int64 id = 1; repeated bytes parts = 2; E e = 3; enum E {{ A = 0; {more} }}"))
        for more in ("", "B = 1;")
    )

    assert repr(compile_reader(one).plan) == (
        "Then(plan=Objects(fields=((('id',), Leaf(json_type=DataType(string), of=integers(DataType(int64), True))), "
        "(('parts',), Lists(item=Then(plan=Leaf(json_type=DataType(string), "
        "of=texts(each_text(a2b_base64(strict_mode=True), DataType(binary)))), of=without_nulls()))), "
        "(('e',), Leaf(json_type=DataType(string), of=enum_numbers({'A': 0})))), "
        "build=structs(('f1', 'f2', 'f3'), ()), size=None, unknown_names=False), of=without_nulls())"
    )
    assert repr(compile_writer(one)) == (
        "objects_text((('f1', 'id', unless_zero(quoted)), ('f2', 'parts', lists(base64)), "
        "('f3', 'e', unless_zero(enum_names({0: 'A'})))))"
    )
    assert compile_reader(one).plan == compile_reader(one).plan != compile_reader(other).plan
    assert compile_writer(one) == compile_writer(one) != compile_writer(other)
