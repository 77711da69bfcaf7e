"""Hostile payloads: each is refused with an error message, soon and in little memory, and its neighbours are read.

Every payload is decoded among few messages and among many.
"""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from pubsub_spark.codec.avro import decoder
from pubsub_spark.codec.avro.columns import batches
from pubsub_spark.schema import avro
from pubsub_spark.schema.avro.cursors import MIN_VECTORISED_ROWS
from pubsub_spark.schema.definition import InvalidMessage


def zigzag(number: int) -> bytes:
    """Return an Avro long."""
    rest = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def of(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{place}", "type": type_} for place, type_ in enumerate(types)]
    return {"type": "record", "name": "R", "fields": fields}


ARRAY = {"type": "array", "items": "long"}
MAP = {"type": "map", "values": "long"}
NULLS = {"type": "array", "items": "null"}
EMPTY = {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 8}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}

# situation: (schema, a good message, a bad one, the reason)
PAYLOADS: dict[str, tuple[Any, bytes, bytes, str]] = {
    "empty": (of("int"), b"\x02", b"", "Field `f0` is cut off: the message ends inside a number"),
    "trailing": (of("int"), b"\x02", b"\x02\x00", "The message has 1 bytes after its end"),
    "cut varint": (of("int"), b"\x02", b"\x80", "Field `f0` is cut off: the message ends inside a number"),
    "cut float": (of("float"), bytes(4), bytes(3), "Field `f0` is cut off: the message ends inside a float"),
    "cut double": (of("double"), bytes(8), bytes(7), "Field `f0` is cut off: the message ends inside a double"),
    "cut fixed": (of(FIXED), bytes(8), bytes(7), "Field `f0` is cut off: the message ends inside 8 fixed bytes"),
    "cut boolean": (of("boolean"), b"\x01", b"", "Field `f0` is cut off: the message ends inside a boolean"),
    "boolean of 2": (of("boolean"), b"\x01", b"\x02", "Field `f0` is a boolean of value 2, neither 0 nor 1"),
    "int of 33 bits": (
        of("int"),
        b"\x02",
        zigzag(2**31),
        "Field `f0` is an int of value 2147483648, more than 32 bits",
    ),
    "varint of 65 bits": (of("long"), b"\x02", b"\xff" * 9 + b"\x02", "Field `f0` has a number of more than 64 bits"),
    "varint of 11 bytes": (of("long"), b"\x02", b"\x80" * 10 + b"\x00", "Field `f0` has a number of more than 64 bits"),
    "varint without end": (of("long"), b"\x02", b"\xff" * 5000, "Field `f0` has a number of more than 64 bits"),
    "string too long": (
        of("string"),
        b"\x02a",
        b"\x04a",
        "Field `f0` has the length 2, but the message ends after 1 bytes",
    ),
    "string of 2^62": (
        of("string", "string"),
        b"\x02a\x02b",
        zigzag(2**62) + b"a",
        f"Field `f0` has the length {2**62}, but the message ends after 1 bytes",
    ),
    "string of -1": (of("string"), b"\x02a", b"\x01a", "Field `f0` has the length -1"),
    "string of -2^63": (of("string"), b"\x02a", zigzag(-(2**63)) + b"a", f"Field `f0` has the length {-(2**63)}"),
    "bad UTF-8": (of("string"), b"\x04ok", b"\x04\xc3\x28", "Field `f0` is not valid UTF-8"),
    "surrogate in UTF-8": (of("string"), b"\x04ok", b"\x06\xed\xa0\x80", "Field `f0` is not valid UTF-8"),
    "branch 7": (
        of(["null", "int"]),
        b"\x00",
        zigzag(7) + b"\x02",
        "Field `f0` has the union branch 7, but there are 2",
    ),
    "branch -1": (of(["null", "int"]), b"\x00", b"\x01", "Field `f0` has the union branch -1, but there are 2"),
    "symbol 2": (of(ENUM), b"\x02", b"\x04", "Field `f0` has the symbol 2, but enum `E` has 2"),
    "array of 2^60": (
        of(ARRAY),
        b"\x02\x02\x00",
        zigzag(2**60) + b"\x02",
        f"Field `f0` has a block of {2**60} items, but the message ends after 1 bytes",
    ),
    "array of -2^63": (
        of(ARRAY),
        b"\x02\x02\x00",
        zigzag(-(2**63)) + b"\x00\x02",
        f"Field `f0` has a block of {2**63} items, but the message ends after 1 bytes",
    ),
    "array without end": (
        of(ARRAY),
        b"\x02\x02\x00",
        b"\x02\x02",
        "Field `f0` is cut off: the message ends inside a number",
    ),
    "block of -1 bytes": (
        of(ARRAY),
        b"\x01\x02\x02\x00",
        b"\x01\x01\x02\x00",
        "Field `f0` has a block of -1 bytes, but the message ends after 2",
    ),
    "block longer than the message": (
        of(ARRAY),
        b"\x01\x02\x02\x00",
        b"\x01\x7e\x02\x00",
        "Field `f0` has a block of 63 bytes, but the message ends after 2",
    ),
    "item in an array": (
        of({"type": "array", "items": "string"}),
        b"\x02\x02a\x00",
        b"\x04\x02a\x02\xff\x00",
        "Field `f0[1]` is not valid UTF-8",
    ),
    "value in a map": (
        of({"type": "map", "values": ["null", "boolean"]}),
        b"\x02\x02k\x00\x00",
        b"\x02\x02k\x02\x05\x00",
        "Field `f0['k']` is a boolean of value 5, neither 0 nor 1",
    ),
    "map of 2^60": (
        of(MAP),
        b"\x02\x02k\x02\x00",
        zigzag(2**60) + b"\x02k\x02\x00",
        f"Field `f0` has a block of {2**60} items, but the message ends after 4 bytes",
    ),
    "2^60 nulls": (
        of(NULLS),
        b"\x02\x00",
        zigzag(2**60) + b"\x00",
        "Field `f0` has more than 10000 items of no bytes",
    ),
    "2^60 empty records": (
        of(EMPTY),
        b"\x02\x00",
        zigzag(2**60) + b"\x00",
        "Field `f0` has more than 10000 items of no bytes",
    ),
    "many arrays of thousands of nulls": (
        of({"type": "array", "items": NULLS}),
        b"\x02\x02\x00\x00",
        zigzag(1000) + (zigzag(9_999) + b"\x00") * 1000 + b"\x00",
        "Field `f0[1]` has more than 10000 items of no bytes",
    ),
    "decimal of no bytes": (of(DECIMAL), b"\x02\x01", b"\x00", "Field `f0` is a decimal of no bytes"),
    "decimal of 17 bytes": (
        of(DECIMAL),
        b"\x02\x01",
        b"\x22\x01" + bytes(16),
        "Field `f0` is a decimal of more than 5 digits",
    ),
    "decimal of 6 digits": (
        of(DECIMAL),
        b"\x02\x01",
        b"\x06\x01\x86\xa0",
        "Field `f0` is a decimal of more than 5 digits",
    ),
    "timestamp of the year 300 million": (
        of(MILLIS),
        b"\x02",
        zigzag(2**62),
        f"Field `f0` is a timestamp of value {2**62}, beyond Spark's range",
    ),
}


@pytest.mark.parametrize("count", [2, MIN_VECTORISED_ROWS + 6, 5000], ids=["few", "many", "thousands"])
@pytest.mark.parametrize("situation", PAYLOADS)
def test_bad_payload_is_refused_and_its_neighbours_are_read(situation, count):
    """First, last and in between: bad payloads have the reason and no value, all others a value and no reason."""
    declared, good, bad, reason = PAYLOADS[situation]
    definition = avro.parse(json.dumps(declared))
    decode = decoder(definition, definition, "BINARY")
    data = [good] * count
    places = sorted({0, count // 2, count - 1})
    for place in places:
        data[place] = bad

    values, errors = decode(pa.array(data, pa.binary()))

    values.validate(full=True)
    assert {reason} == set(errors.to_pylist()) - {None}
    assert places == [place for place, error in enumerate(errors.to_pylist()) if error]
    assert places == [place for place, valid in enumerate(values.is_valid().to_pylist()) if not valid]


@pytest.mark.parametrize("situation", PAYLOADS)
def test_validate_refuses_what_no_message_can_be(situation):
    """Publish refuses the same bytes with the same error message. It accepts a value that only Spark cannot hold."""
    declared, good, bad, reason = PAYLOADS[situation]
    definition = avro.parse(json.dumps(declared))

    definition.validate(good, "BINARY")
    if "decimal" in reason or "timestamp" in reason:
        definition.validate(bad, "BINARY")
    else:
        with pytest.raises(InvalidMessage) as refused:
            definition.validate(bad, "BINARY")
        assert reason == str(refused.value)


@pytest.mark.parametrize("count", [1, MIN_VECTORISED_ROWS + 6], ids=["one", "many"])
@pytest.mark.parametrize(
    "declared", [of(ARRAY), of(MAP), of(NULLS), of("string"), of({"type": "array", "items": ARRAY})]
)
def test_hostile_lengths_take_no_memory(declared, count):
    """With counts and lengths of 2^60 in ten kilobytes, memory stays in proportion to the received bytes."""
    definition = avro.parse(json.dumps(declared))
    decode = decoder(definition, definition, "BINARY")
    data = pa.array([zigzag(2**60) + b"\x02" * 10_000] * count, pa.binary())
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 50 * data.nbytes + 10_000_000
    assert pa.total_allocated_bytes() - before < 10 * data.nbytes + 1_000_000


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_depth_ends_in_a_sentence(encoding):
    """A list nested a hundred thousand deep is refused instead of crashing."""
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    definition = avro.parse(json.dumps(node))
    deep = {"BINARY": b"\x02" * 100_000 + b"\x00", "JSON": b'{"next":{"Node":' * 100_000}[encoding]

    with pytest.raises(InvalidMessage, match="nested too deeply"):
        definition.validate(deep, encoding)


def test_one_long_array_does_not_hold_up_the_batch():
    """A message with 200,000 items among short ones is decoded apart. The batch takes about its time alone."""
    definition = avro.parse(json.dumps(of(ARRAY)))
    decode = decoder(definition, definition, "BINARY")
    long = zigzag(200_000) + b"\x02" * 200_000 + b"\x00"
    alone = _seconds(lambda: decode(pa.array([long], pa.binary())))

    values: list[Any] = []
    together = _seconds(lambda: values.append(decode(pa.array([b"\x02\x02\x00"] * 5000 + [long], pa.binary()))))

    assert 200_000 == len(values[0][0][5000]["f0"])
    assert together < 5 * alone + 0.5


def _seconds(run: Any) -> float:
    start = time.process_time()  # of this process alone: the machine may be busy
    run()
    return time.process_time() - start


def test_large_messages_are_decoded_some_at_a_time():
    """Forty megabytes in 40 messages are decoded in batches of bytes instead of messages, and all of it arrives."""
    data = pa.array([zigzag(2**20) + bytes([97 + number % 26]) * 2**20 for number in range(40)], pa.binary())
    definition = avro.parse(json.dumps(of("string")))

    assert [(0, 15), (15, 30), (30, 40)] == batches(data)
    values, errors = decoder(definition, definition, "BINARY")(data)
    assert 40 == errors.null_count
    assert [2**20] * 40 == [len(value["f0"]) for value in values.to_pylist()]


# situation: (schema, JSON text, the reason)
TEXTS: dict[str, tuple[Any, bytes, str]] = {
    "not JSON": (of("int"), b"{", "The message is not JSON: Expecting property name"),
    "empty": (of("int"), b"", "The message is not JSON"),
    "bad UTF-8": (of("int"), b"\xff", "The message is not valid UTF-8"),
    "trailing": (of("int"), b'{"f0":1}x', "The message is not JSON: Extra data"),
    "not an object": (of("int"), b"[1]", "The message must be an object, the record `R`, is [1]"),
    "missing field": (of("int"), b"{}", "Field `f0` is missing"),
    "unknown field": (of("int"), b'{"f0":1,"z":2}', "The message has the unknown field `z`"),
    "int of 33 bits": (of("int"), b'{"f0":2147483648}', "Field `f0` must be a 32-bit integer, is 2147483648"),
    "float for int": (of("int"), b'{"f0":1.0}', "Field `f0` must be a 32-bit integer, is 1.0"),
    "bool for int": (of("int"), b'{"f0":true}', "Field `f0` must be a 32-bit integer, is true"),
    "string for double": (of("double"), b'{"f0":"1"}', 'Field `f0` must be a number, is "1"'),
    "NaN literal": (of("double"), b'{"f0":NaN}', "The message is not JSON: NaN is not a JSON number"),
    "5000 digits": (of("long"), b'{"f0":' + b"9" * 5000 + b"}", "The message is not JSON: Exceeds the limit"),
    "untagged union": (
        of(["null", "int"]),
        b'{"f0":1}',
        "Field `f0` must be null or an object tagged with one of int, is 1",
    ),
    "wrong tag": (
        of(["null", "int"]),
        b'{"f0":{"long":1}}',
        'Field `f0` must be null or an object tagged with one of int, is {"long": 1}',
    ),
    "bytes above U+00FF": (of("bytes"), '{"f0":"€"}'.encode(), "Field `f0` is a string that stands for bytes but has"),
    "fixed too short": (of(FIXED), b'{"f0":"abc"}', "Field `f0` must have 8 bytes, has 3"),
    "half a surrogate pair": (of("string"), b'{"f0":"\\ud800"}', "Field `f0` has half of a surrogate pair"),
    "half a surrogate pair in an unknown field": (
        of("int"),
        b'{"f0":1,"\\ud800":2}',
        r"The message has the unknown field `\ud800`",
    ),
    "unknown symbol": (of(ENUM), b'{"f0":"C"}', 'Field `f0` must be a symbol of enum `E`, is "C"'),
    "item in an array": (of(ARRAY), b'{"f0":[1,null]}', "Field `f0[1]` must be a 64-bit integer, is null"),
    "value in a map": (of(MAP), b'{"f0":{"k":"x"}}', "Field `f0['k']` must be a 64-bit integer, is \"x\""),
}


@pytest.mark.parametrize("situation", TEXTS)
def test_bad_json_is_refused_with_its_path(situation):
    """JSON text that is not a message is refused with an error message that names the field."""
    declared, text, reason = TEXTS[situation]
    definition = avro.parse(json.dumps(declared))

    with pytest.raises(InvalidMessage) as refused:
        definition.validate(text, "JSON")
    _, errors = decoder(definition, definition, "JSON")(pa.array([text], pa.binary()))

    assert str(refused.value).startswith(reason)
    assert [str(refused.value)] == errors.to_pylist()


@pytest.mark.parametrize("type_", ["float", "double"])
def test_number_beyond_all_floats_is_infinite(type_):
    """An integer of 309 digits or more, with or without a point, is infinity, because Python has no such float."""
    definition = avro.parse(json.dumps(of(type_, type_)))
    digits = b"9" * 400

    text = b'{"f0":%s,"f1":-%s.0}' % (digits, digits)
    values, _ = decoder(definition, definition, "JSON")(pa.array([text, text.replace(b".0", b"")], pa.binary()))
    assert [{"f0": math.inf, "f1": -math.inf}] * 2 == values.to_pylist()


@pytest.mark.parametrize("count", [1, MIN_VECTORISED_ROWS + 6], ids=["one", "many"])
def test_reason_has_the_whole_path(count):
    """The path of a value that does not fit its column includes item and key, in long and short arrays."""
    inner = {"type": "map", "values": {"type": "array", "items": DECIMAL}}
    definition = avro.parse(json.dumps(of({"type": "array", "items": inner})))
    decode = decoder(definition, definition, "BINARY")
    good, bad = b"\x02\x01", b"\x06\x01\x86\xa0"
    arrays = [good * 1, good * 40 + bad]
    maps = b"".join(b"\x02\x02k" + zigzag(1 + 40 * place) + array + b"\x00\x00" for place, array in enumerate(arrays))

    values, errors = decode(pa.array([b"\x04" + maps + b"\x00"] * count, pa.binary()))

    assert count == values.null_count
    assert ["Field `f0[1]['k'][40]` is a decimal of more than 5 digits"] * count == errors.to_pylist()


@pytest.mark.parametrize("count", [1, MIN_VECTORISED_ROWS + 6], ids=["one", "many"])
def test_of_two_entries_with_one_key_the_last_counts(count):
    """As in Java, the last value counts, even if the first does not fit the column. It is an error if the last does not
    fit.
    """
    definition = avro.parse(json.dumps(of({"type": "map", "values": DECIMAL})))
    decode = decoder(definition, definition, "BINARY")
    good, bad = b"\x02k\x02\x01", b"\x02k\x06\x01\x86\xa0"

    values, errors = decode(pa.array([b"\x04" + bad + good + b"\x00", b"\x04" + good + bad + b"\x00"] * count))

    assert [{"f0": [("k", 1)]}, None] * count == values.to_pylist()
    assert [None, "Field `f0['k']` is a decimal of more than 5 digits"] * count == errors.to_pylist()


@pytest.mark.parametrize("precision", [1, 18, 19, 28, 29, 37, 38])
def test_a_decimal_has_no_more_digits_than_its_type(precision):
    """The largest number of either sign is read, and the next one is refused."""
    most = 10**precision - 1
    definition = avro.parse(json.dumps(of(DECIMAL | {"precision": precision})))
    numbers = [most, -most, most + 1, -most - 1, 2**127 - 1, -(2**127)]
    messages = [zigzag(16) + number.to_bytes(16, "big", signed=True) for number in numbers]

    values, errors = decoder(definition, definition, "BINARY")(pa.array(messages))

    assert [most, -most] == [int(value["f0"]) for value in values.to_pylist() if value]
    assert [None, None] + [f"Field `f0` is a decimal of more than {precision} digits"] * 4 == errors.to_pylist()


def test_decimal_may_go_on_with_its_sign():
    """A number of one byte may take twenty bytes, because the specification sets no limit."""
    definition = avro.parse(json.dumps(of(DECIMAL)))
    data = [zigzag(20) + bytes(19) + b"\x07", zigzag(20) + b"\xff" * 19 + b"\xf9", zigzag(20) + b"\x01" + bytes(19)]

    values, errors = decoder(definition, definition, "BINARY")(pa.array(data, pa.binary()))
    assert [{"f0": 7}, {"f0": -7}, None] == values.to_pylist()
    assert [None, None, "Field `f0` is a decimal of more than 5 digits"] == errors.to_pylist()


def test_hidden_encodings_are_read():
    """Valid but rare encodings are read: overlong varints, blocks with a size, several blocks, floats by name."""
    definition = avro.parse(json.dumps(of(ARRAY, "double")))
    decode = decoder(definition, definition, "BINARY")
    unusual = b"\x82\x00\x02" + b"\x03\x04\x04\x06" + b"\x00" + bytes(8)

    for count in (1, MIN_VECTORISED_ROWS + 6):
        values, errors = decode(pa.array([unusual] * count, pa.binary()))
        assert [{"f0": [1, 2, 3], "f1": 0.0}] * count == values.to_pylist()
        assert count == errors.null_count

    as_json = decoder(definition, definition, "JSON")
    values, errors = as_json(pa.array([b'{"f1":"-Infinity","f0":[]}'], pa.binary()))
    assert [{"f0": [], "f1": float("-inf")}] == values.to_pylist()


def test_key_that_comes_twice_counts_once():
    """The last entry of a key wins, wherever the message is decoded."""
    definition = avro.parse(json.dumps(of(MAP)))
    decode = decoder(definition, definition, "BINARY")
    twice = b"\x04\x02k\x02\x02k\x04\x00"

    for count in (1, MIN_VECTORISED_ROWS + 6):
        values, _ = decode(pa.array([twice] * count, pa.binary()))
        assert [{"f0": [("k", 2)]}] * count == values.to_pylist()
