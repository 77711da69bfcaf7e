"""JSON payloads as values, and the reason for each payload without a value."""

import datetime
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.codec.json import JsonSchema
from pubsub_spark.errors import SchemaError

SCHEMA = JsonSchema(
    "s STRING, i INT, l BIGINT, d DOUBLE, m DECIMAL(6, 2), b BOOLEAN, x BINARY, day DATE, at TIMESTAMP, "
    "many ARRAY<STRUCT<a: INT>>, map MAP<STRING, INT>"
)


def decode(payload: bytes) -> tuple[dict[str, object] | None, str | None]:
    values, errors = SCHEMA.decode(pa.array([payload]))
    return values[0].as_py(), errors[0].as_py()


def test_values_of_every_type():
    """Each type has its value. Missing fields are null, and fields without a column are left out."""
    value, error = decode(
        b'{"s": "\xc3\xa9", "i": -1, "l": 9e3, "d": 1, "m": 1.005, "b": true, "x": "AAE=", "day": "2026-01-31", '
        b'"at": "2026-01-31T12:00:00+02:00", "many": [{"a": 1}, null], "map": {"k": 1}, "more": {}}'
    )

    assert error is None
    assert {
        "s": "é",
        "i": -1,
        "l": 9000,
        "d": 1.0,
        "m": Decimal("1.00"),
        "b": True,
        "x": b"\x00\x01",
        "day": datetime.date(2026, 1, 31),
        "at": datetime.datetime(2026, 1, 31, 10, tzinfo=datetime.UTC),
        "many": [{"a": 1}, None],
        "map": [("k", 1)],
    } == value
    assert ({"a": None}, None) == (lambda v, e: (v[0].as_py(), e[0].as_py()))(
        *JsonSchema("a INT").decode(pa.array([b"{}"]))
    )


@pytest.mark.parametrize("columns", ["a STRING", "a INT", "a MAP<STRING, STRING>", "other STRING"])
@pytest.mark.parametrize("around", [1, 30, 200])
def test_nesting_has_a_limit(columns: str, around: int):
    """The payloads around it, the stack and the column change nothing: a replay has the same rows."""
    nested = [
        b'{"a": %b%b, "text": "%b"}' % (b"[" * levels, b"]" * levels, b"[{" * 300) for levels in (199, 200, 10**5)
    ]
    others = [b'{"a": null}'] * around
    payloads = pa.array([b"[" * 500, *others, *nested], pa.binary())
    _, errors = JsonSchema(columns).decode(payloads.slice(1))

    too_deep = "The payload is not JSON: it is nested more than 200 levels deep"
    assert [None] * around == errors.to_pylist()[:around]
    assert too_deep != errors[around].as_py()
    assert [too_deep] * 2 == errors.to_pylist()[-2:]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"i": "1"}', '`i` must be an integer of 32 bits, is "1"'),
        (b'{"i": 2147483648}', "`i` must be an integer of 32 bits, is 2147483648"),
        (b'{"i": true}', "`i` must be an integer of 32 bits, is true"),
        (b'{"l": 1.5}', '`l` must be an integer of 64 bits, is "1.5"'),
        (b'{"l": 1e999999999}', "`l` must be an integer of 64 bits"),
        (b'{"m": 9999.999}', "`m` must be a decimal of 6 digits"),
        (b'{"x": "?"}', '`x` must be base64, is "?"'),
        (b'{"day": 1}', "`day` must be a date such as 2026-01-31, is 1"),
        (b'{"many": [{"a": 1}, {"a": "x"}]}', '`many[1].a` must be an integer of 32 bits, is "x"'),
        (b'{"map": {"k": []}}', "`map.k` must be an integer of 32 bits, is []"),
        (b"[1]", "The payload is JSON, but no object"),
        (b"", "The payload is not JSON: "),
        (b'{"d": NaN}', "The payload is not JSON: NaN is not a JSON number"),
        (b"\xff", "The payload is not JSON: "),
        (b'{"i": "\\ud800"}', "`i` must be an integer of 32 bits"),
        (b"[" * 100_000, "The payload is not JSON: "),
        (b'{"l": 1e1000000000000000000}', "The payload has a number whose exponent is too large"),
        (b'{"more": -1E-9999999999999999999}', "The payload has a number whose exponent is too large"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_payload_that_does_not_fit(payload: bytes, reason: str):
    """A payload of another shape has no value, and its reason names the path."""
    value, error = decode(payload)

    assert value is None
    assert error is not None
    assert reason in error


def test_a_wrong_payload_leaves_the_others():
    """A payload that cannot be decoded does not affect its neighbours."""
    values, errors = JsonSchema("i INT").decode(pa.array([b'{"i": 1}', b"x", b'{"i": 3}']))

    assert [{"i": 1}, None, {"i": 3}] == values.to_pylist()
    assert [True, False, True] == errors.is_null().to_pylist()


@given(st.lists(st.binary() | st.from_regex(rb'\{"(s|i|m|at|map|many)": .*\}', fullmatch=True), max_size=20))
def test_whatever_comes_has_a_value_or_a_reason(payloads: list[bytes]):
    """For any bytes a row has either a value or a reason."""
    values, errors = SCHEMA.decode(pa.array(payloads, pa.binary()))

    assert len(payloads) == len(values) == len(errors)
    assert errors.is_null().to_pylist() == values.is_valid().to_pylist()


def test_numbers_in_a_string_column_are_not_rounded():
    """A string column has the JSON of a value, with every digit of its numbers."""
    text = '{"a": [1.10, 12345678901234567890.123, 1E+400, -7], "é\\n": null, "b": {"c": true, "d": "x"}}'
    value, _ = decode(f'{{"s": {text}}}'.encode())

    assert value is not None
    assert text == value["s"]


@given(st.dictionaries(st.sampled_from(["s", "map"]), st.text(st.characters()) | st.none()))
def test_strings_survive(fields: dict[str, str | None]):
    """A string column has the string that was sent."""
    import json

    sent = {"s": fields.get("s")}
    values, _ = JsonSchema("s STRING").decode(pa.array([json.dumps(sent).encode()]))
    expected = None if sent["s"] is None else sent["s"].encode(errors="replace").decode()

    assert [{"s": expected}] == values.to_pylist()


def test_schema_that_cannot_be_used():
    """The error for an invalid schema is one line with an example. A schema is pickled as its text."""
    with pytest.raises(SchemaError, match=r"cannot be used: `intt` is not a type .* Set a DDL such as"):
        JsonSchema("a INTT").arrow_type()
    assert pickle.loads(pickle.dumps(SCHEMA)).arrow_type() == SCHEMA.arrow_type()
