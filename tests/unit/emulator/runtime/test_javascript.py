"""One JavaScript function: its arguments, its allowed results, and its limits."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from pubsub_spark.emulator.runtime import javascript
from pubsub_spark.emulator.runtime.javascript import Function, Transformable, TransformError


def message(data: bytes = b"hi", **attributes: str) -> Transformable:
    return Transformable(data, attributes, {"message_id": "7", "publish_time": "2026-01-31T12:00:00Z"})


def run(body: str, *messages: Transformable) -> list[object]:
    outcomes = Function("f", f"function f(message, metadata) {{ {body} }}").run(messages or [message()])
    return [
        str(each) if isinstance(each, TransformError) else each and (each.data, each.attributes) for each in outcomes
    ]


def test_function_changes_data_and_attributes():
    """The function gets the message as text and attributes with its metadata. Its result replaces the message."""
    assert [("HI, 7, grüß".encode(), {"a": "b", "when": "2026-01-31T12:00:00Z"})] == run(
        "message.data = message.data.toUpperCase() + ', ' + metadata.message_id + ', grüß';"
        "message.attributes.when = metadata.publish_time; return message;",
        message(a="b"),
    )


def test_null_drops():
    """A message whose result is null is dropped. Its neighbours are not."""
    assert [None, (b"b", {})] == run("return message.data == 'a' ? null : message;", message(b"a"), message(b"b"))


def test_attributes_that_are_left_out_stay():
    """Empty attributes remove all. Without attributes in the result they stay."""
    assert [(b"x", {"a": "b"})] == run("return {data: 'x'};", message(a="b"))
    assert [(b"x", {})] == run("return {data: 'x', attributes: {}};", message(a="b"))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("throw new Error('no ' + message.data)", "Error: no hi"),
        ("return", "it returned nothing; to drop a message return null"),
        ("return 'text'", "it must return null or an object with the text `data`"),
        ("return {attributes: {}}", "it must return null or an object with the text `data`"),
        ("return {data: 'x', key: 'k'}", "it returned `key`, but only `data` and `attributes` can be changed"),
        ("return {data: 'x', attributes: {a: 1}}", "`attributes` must be an object of texts"),
        ("return {data: 1n}", "TypeError: Do not know how to serialize a BigInt"),
        ("return {data: '\\ud800'}", "it returned half of a surrogate pair, which is no text"),
        ("return {data: 'x'.repeat(1e7 + 1)}", "it returned 10,000,001 bytes of `data`, and 10,000,000 is the maximum"),
        ("return require('fs')", "ReferenceError: require is not defined"),
        ("throw Object.create(null)", "its result or exception has no JSON"),
        ("JSON.stringify = () => '7'; return message", "its result or exception has no JSON"),
        ("JSON.stringify = () => undefined; return message", "its result or exception has no JSON"),
        ("Array.prototype.join = () => '[1]'; return message", "its result or exception has no JSON"),
        ("Array.prototype.join = () => '{}, {}'; return message", "its result or exception has no JSON"),
    ],
)  # fmt: skip
def test_failures_are_told(body, why):
    """An exception or an invalid result is the error of that message."""
    assert [why] == run(body)


def test_bytes_that_are_no_text_fail():
    """JavaScript has only text, so data that is not UTF-8 fails."""
    assert ["the data of the message is not UTF-8, which JavaScript needs", (b"b", {})] == run(
        "return message;", message(b"\xff"), message(b"b")
    )


def test_endless_loop_fails_alone(monkeypatch):
    """A message that takes too long fails, its neighbours do not, and the function can be used again."""
    monkeypatch.setattr(javascript, "LIMIT_SECONDS", 0.25)  # with less, the others also exceed it on a busy machine
    function = Function("f", "function f(m) { while (m.data == 'loop'); return m; }")

    made = function.run([message(b"a"), message(b"loop"), message(b"b")])

    assert [True, False, True] == [isinstance(each, Transformable) for each in made]
    assert "it took longer than 250 ms" == str(made[1])
    assert [message(b"a")] == function.run([message(b"a")])


def test_too_much_memory_fails_alone(monkeypatch):
    """A function that fills the memory loses its context. The next message has a new one."""
    monkeypatch.setattr(javascript, "MAX_MEMORY_BYTES", 20 << 20)
    monkeypatch.setattr(javascript, "LIMIT_SECONDS", 20)
    code = "function f(m) { const all = []; while (m.data == 'big') all.push(new Array(100000).fill(1.5)); return m; }"
    function = Function("f", code)

    assert ["it needed more than 20 MB"] == [str(each) for each in function.run([message(b"big")])]
    assert [message(b"a")] == function.run([message(b"a")])


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("f", "function f(", "SyntaxError"),
        ("f", "function g(m) { return m; }", "the code has no function of that name"),
        ("f", "const f = 7;", "the code has no function of that name"),
        ("f()", "function f(m) { return m; }", "its name is not an identifier of JavaScript"),
        ("f", "throw new Error('at once')", "at once"),
    ],
)
def test_code_is_checked(name, code, why):
    """Code that does not load, or does not have the function, is refused before it receives a message."""
    with pytest.raises(TransformError, match=why.replace("(", r"\(")):
        Function(name, code).check()


def test_arrow_functions_are_functions():
    """A function may also be declared as an arrow function."""
    Function("f", "const f = (message, metadata) => message;").check()


def test_function_may_be_collected_while_an_executor_takes_work():
    """An executor does so under a lock of all executors, and the garbage collector may run meanwhile."""

    class Prefix(str):
        def __str__(self) -> str:  # a thread is named under the lock
            gc.collect()
            return "executor"

    function = Function("f", "function f(message) { return message; }")
    function.check()
    garbage: list[object] = [function]
    garbage.append(garbage)
    freed = weakref.ref(function)
    del function, garbage
    with ThreadPoolExecutor(1, thread_name_prefix=Prefix("executor")) as executor:
        executor.submit(int)
    assert freed() is None
