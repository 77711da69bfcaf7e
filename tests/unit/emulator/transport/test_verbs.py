"""Methods as verbs, without a socket: fields by signature, responses as JSON, error messages for wrong input."""

from __future__ import annotations

import inspect
import json
from functools import wraps

import pytest

from pubsub_spark.emulator import Emulator, Recorded
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.transport import verbs
from pubsub_spark.emulator.transport.verbs import Verb


def run(verb: Verb, body: object = None, query: str = "") -> object:
    return json.loads(verb.run(query, json.dumps(body or {}).encode()))


def refused(verb: Verb, body: bytes) -> str:
    with pytest.raises(RpcError) as error:
        verb.run("", body)
    assert "INVALID_ARGUMENT" == error.value.code
    return error.value.message


def wait(seconds: float, code: Code | None = None, most_calls: int = 3) -> None:  # type: ignore[name-defined]  # noqa: F821
    """A verb with one required field and two optional ones."""
    if seconds < 0:
        raise ValueError("`seconds` cannot be fewer than none.")


def test_fields_are_the_parameters():
    """Fields are passed by name in camelCase, in any order. Those with a default may be left out."""
    heard = []

    @wraps(wait)
    def noted(*arguments):
        heard.append(arguments)

    verb = Verb("wait_for", "POST", noted)

    assert "waitFor" == verb.name
    assert {} == run(verb, {"mostCalls": 1, "seconds": 2})
    assert {} == run(verb, {"seconds": 2.5, "code": None})
    assert [(2.0, None, 1), (2.5, None, 3)] == heard


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"x", "The body of `wait` is not JSON: Expecting value: line 1 column 1 (char 0)."),
        (b"[1]", "The body of `wait` must be a JSON object. `wait` takes `seconds`, `code`, `mostCalls`."),
        (b"{}", "`seconds` is missing. `wait` takes `seconds`, `code`, `mostCalls`."),
        (b'{"second": 1}', "`second` is not a field of `wait`. `wait` takes `seconds`, `code`, `mostCalls`."),
        (b'{"seconds": "1"}', '`seconds` of `wait` must be a number, got "1".'),
        (b'{"seconds": true}', "`seconds` of `wait` must be a number, got true."),
        (b'{"seconds": NaN}', "`seconds` of `wait` must be a number, got NaN."),
        (b'{"seconds": 1, "mostCalls": 1.5}', "`mostCalls` of `wait` must be a whole number, got 1.5."),
        (b'{"seconds": 1, "mostCalls": 9223372036854775808}',
         "`mostCalls` of `wait` must be a whole number, got 9223372036854775808."),
        (b'{"seconds": 1, "code": "\\ud800"}',
         '`code` of `wait` must be a status code such as UNAVAILABLE, or null, got "\\ud800".'),
        (b'{"seconds": -1}', "`seconds` cannot be fewer than none."),
    ],
)  # fmt: skip
def test_wrong_input_is_one_sentence(body, sentence):
    """The error message for a wrong request names the field."""
    assert sentence == refused(Verb("wait", "POST", wait), body)


def test_fields_of_a_look_are_in_the_query():
    """A GET has no body, so its fields are in the query."""

    def echo(subscription: str) -> list[str]:
        return [subscription]

    assert ["a/b c"] == run(Verb("echo", "GET", echo), query="subscription=a/b%20c")


def test_answers_are_json():
    """Bytes are base64, records are objects, and a method that returns nothing answers an empty object."""

    def calls() -> list[Recorded]:
        return [Recorded("Publish", (("a", "b"), ("c-bin", b"\xff")))]

    assert [{"rpc": "Publish", "metadata": [["a", "b"], ["c-bin", "/w=="]]}] == run(Verb("calls", "GET", calls))


def test_every_parameter_has_a_kind():
    """Each parameter of each verb of the emulator has a kind that is read from JSON."""
    table = Emulator()._verbs()

    assert {"advance", "fail", "failAcks", "reset", "messages", "backlog", "chaos"} <= set(table)
    for verb in table.values():
        for parameter in verb.parameters.values():
            assert parameter.annotation in verbs.KINDS, f"{verb.name} {parameter}"
            assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
