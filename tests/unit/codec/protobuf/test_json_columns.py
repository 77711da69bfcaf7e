"""JSON messages read and written many at a time, with `json_format` as the judge of every form."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format

from pubsub_spark.codec.protobuf import json_batches
from pubsub_spark.codec.protobuf.column_tree import build_column_tree
from pubsub_spark.codec.protobuf.decode import ProtobufDecoder
from pubsub_spark.codec.protobuf.encode import ProtobufEncoder
from pubsub_spark.codec.protobuf.json_columns import JsonColumnReader, compile_reader
from pubsub_spark.schema.protobuf import ProtobufDefinition, parse
from pubsub_spark.schema.protobuf.json_mapping import UNCOMMON

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
COMMON = 100  # messages in the common form beside each one that is looked at
DEFINITION = parse(ALL_FORMS)
DECODER = ProtobufDecoder(DEFINITION)
WITHOUT_MAPS = parse(
    ALL_FORMS.replace("map<int32, Inner> by_number = 14;", "")
    .replace("google.protobuf.Any any = 19;", "")
    .replace("map<bool, double> flags = 20;", "")
)
BATCH_DECODER = ProtobufDecoder(WITHOUT_MAPS)

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
    """What `json_format` reads of a text: the message, or None."""
    message: Any = definition.message_class()
    try:
        if not text.decode().strip().startswith("{"):
            return None
        json_format.Parse(text.decode(), message)
        message.SerializeToString()
    except Exception:
        return None
    return message


def column_reader() -> JsonColumnReader:
    reader = compile_reader(DEFINITION.message)
    assert reader is not None
    return reader


@pytest.mark.parametrize("text", TEXTS)
def test_what_columns_read_is_what_json_format_reads(text):
    """A text among others is read as json_format reads it, or left to the reader of single messages."""
    texts = [b'{"i": %d, "s": "x", "inner": {"s": "y"}, "t": "2024-01-01T00:00:00Z"}' % n for n in range(COMMON)]
    texts[50] = text

    rows, payloads = column_reader().binary(pa.array(texts, pa.binary()))

    assert payloads.null_count == 0
    read = dict(zip(rows, payloads.to_pylist(), strict=True))
    assert set(range(COMMON)) - {50} <= read.keys()
    for row, payload in read.items():
        assert expected(texts[row]) == DEFINITION.message_class.FromString(payload)


def batch_reader() -> json_batches.JsonBatchReader:
    reader = json_batches.compile_reader(build_column_tree(WITHOUT_MAPS.message), WITHOUT_MAPS.message)
    assert reader is not None
    return reader


@pytest.mark.parametrize("text", TEXTS)
def test_what_arrow_reads_is_what_json_format_reads(text):
    """Of a schema without maps: a batch is read as json_format reads its texts, or not at all."""
    message = expected(text, WITHOUT_MAPS)
    columns = compile_reader(WITHOUT_MAPS.message)
    assert columns is not None
    texts = pa.array([b'{"s": "before"}', *[text] * COMMON, b'{"s": "behind"}'], pa.binary())

    value, error = BATCH_DECODER.decode(texts, "JSON")
    try:
        batch_reader().read(texts)
    except UNCOMMON:
        read: list[int] = []
    else:
        read, payloads = columns.binary(texts)
        assert message is not None
        assert {message.SerializeToString(deterministic=True)} == {
            WITHOUT_MAPS.message_class.FromString(payload).SerializeToString(deterministic=True)
            for payload in payloads.to_pylist()[1:-1]
        }

    assert len(read) in (0, len(texts))
    assert [message is None] * COMMON == error.is_valid().to_pylist()[1:-1]
    assert ["before", "behind"] == [value[0].as_py()["s"], value[-1].as_py()["s"]]


def test_common_forms_are_read_by_arrow():
    """Every kind of field, given and absent, in one batch."""
    texts = [
        b'{"i": -7, "bigNumber": "18446744073709551615", "d": 1, "f": 0.5, "b": true, "s": "a\\n\\u00e9:"}',
        b'{"e": "B", "t": "2024-02-29T23:59:59.5Z", "span": "-1.5s", "w": "3", "inner": {"s": "x", "numbers": ["1"]}}',
        b'{"inners": [{}, {"numbers": ["-1", "2"]}], "es": ["A", "B"], "left": "", "o": 0, "ds": [1, 2.5]}',
        b'{"raw": "//4="}',
        b'{ "right" : 0 , "inner" : { }, "inners" : null, "s": null}',
        b"{}",
    ]

    column = batch_reader().read(pa.array(texts, pa.binary()))

    assert len(texts) == len(column)
    value, error = BATCH_DECODER.decode(pa.array(texts * 20, pa.binary()), "JSON")
    assert error.null_count == len(texts) * 20
    messages: list[Any] = [expected(text, WITHOUT_MAPS) for text in texts]
    alone = BATCH_DECODER.decode(pa.array([message.SerializeToString() for message in messages], pa.binary())).value
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
    """Arrow reads a stream: as many objects as texts are not yet one in each."""
    with pytest.raises(UNCOMMON):
        batch_reader().read(pa.array(texts, pa.binary()))


def test_a_part_of_a_batch_is_read_like_a_whole():
    """Texts of a slice, whose bytes begin somewhere in their buffer."""
    texts = pa.array([b"not JSON", b'{"i": 1}', b'{"i": 2}', b"}"], pa.binary())

    column = batch_reader().read(texts.slice(1, 2))

    assert [1, 2] == column.field(0).to_pylist()


def test_a_text_that_goes_on_in_the_next_is_none():
    """Two texts that are one value only together are malformed both, however many others make up for their number."""
    texts = [b'{"s": "%d"}' % n for n in range(COMMON)]
    texts[3:6] = [b'{"inners": [{"s": "a"}', b"{}]}", b'{"i": 1}, NaN, {"i": 2}']

    value, error = DECODER.decode(pa.array(texts, pa.binary()), "JSON")

    assert [3, 4, 5] == [row for row, reason in enumerate(error.to_pylist()) if reason is not None]
    assert "6" == value[6].as_py()["s"]


def test_common_forms_are_read_in_columns():
    """Messages in the common form are all read by columns, as many as there are."""
    texts = [b'{"bigNumber": "%d", "t": "2024-01-01T00:00:00.5Z", "es": ["A"], "left": "a:b"}' % n for n in range(1000)]

    rows, payloads = column_reader().binary(pa.array(texts, pa.binary()))

    assert list(range(1000)) == rows
    assert (
        DEFINITION.message_class(big_number=999).big_number
        == DEFINITION.message_class.FromString(payloads[999].as_py()).big_number
    )


def test_columns_are_written_as_json_format_writes_them():
    """The texts of rows are those that json_format writes for their messages, on one line."""
    text = ALL_FORMS.replace("google.protobuf.Any any = 19;", "").replace("google.protobuf.Int64Value w = 11;", "")
    definition = parse(text.replace("google.protobuf.Duration span = 10;", ""))
    fields: list[dict[str, Any]] = [
        *({}, {"i": 1, "d": -0.0, "f": 0.1, "b": True, "s": 'é"\n', "raw": b"\xff", "e": 1}, {"o": 0}),
        {"big_number": 2**64 - 1, "t": {"seconds": -1, "nanos": 120_000_000}, "inner": {}, "right": 0},
        {"t": {"seconds": -62_135_596_800, "nanos": 1000}, "inners": [{}, {"s": "x", "numbers": [0, 2**62]}]},
        {"by_number": {7: {"s": "x"}}, "flags": {True: float("inf")}, "es": [0, 1], "ds": [0.0, float("nan")]},
        {"t": {"seconds": 253_402_300_799, "nanos": 999_999_000}, "left": ""},
    ]
    messages: list[Any] = [definition.message_class(**row) for row in fields]
    decoder = ProtobufDecoder(definition)
    value = decoder.decode(pa.array([message.SerializeToString() for message in messages], pa.binary())).value
    encoder = ProtobufEncoder(definition, "JSON", decoder.type)
    assert encoder._json_texts is not None

    written = encoder.encode(value).to_pylist()

    assert [json_format.MessageToJson(message, indent=None).encode() for message in messages] == written
