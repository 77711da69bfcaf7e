"""The functions of a resource: in order, only enabled ones, and the same ones until they change."""

from __future__ import annotations

import asyncio
import sys

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.runtime.javascript import Transformable, TransformError
from pubsub_spark.emulator.runtime.transforms import Transforms, check

TOPIC = "projects/p/topics/news"


def topic(*bodies: str, disabled: tuple[int, ...] = ()):
    """Return a Topic whose transforms have these bodies."""
    udfs = [{"function_name": f"f{n}", "code": f"function f{n}(m, d) {{ {body} }}"} for n, body in enumerate(bodies)]
    transforms = [{"javascript_udf": udf, "disabled": n in disabled} for n, udf in enumerate(udfs)]
    return protos.Topic(name=TOPIC, message_transforms=transforms)


def run(resource, *data: bytes):
    runner = Transforms().runner(TOPIC, resource)
    assert runner is not None
    made = runner.run([Transformable(each, {}, {}) for each in data])
    return [str(each) if isinstance(each, TransformError) else each and each.data for each in made]


def test_functions_run_in_order():
    """Each function receives the result of the one before. Dropped and failed messages go no further."""
    resource = topic(
        "if (m.data == 'x') return null; if (m.data == 'y') throw 'no'; m.data += '1'; return m;",
        "m.data += '2'; return m;",
    )

    assert [b"a12", None, "`f0`: no", b"b12"] == run(resource, b"a", b"x", b"y", b"b")


def test_functions_run_where_an_event_loop_runs():
    """An asynchronous test may publish in process, and create the topic for it."""

    async def work():
        check(topic("return m;").message_transforms)
        return run(topic("m.data += '1'; return m;"), b"a")

    assert [b"a1"] == asyncio.run(work())


def test_disabled_functions_do_not_run():
    """Disabled functions are skipped. If all are disabled, nothing runs."""
    assert [b"a2"] == run(topic("throw 'no'", "m.data += '2'; return m;", disabled=(0,)), b"a")
    assert Transforms().runner(TOPIC, topic("return m;", disabled=(0,))) is None
    assert Transforms().runner(TOPIC, topic()) is None


def test_runner_is_kept_until_functions_change():
    """The same functions keep their runner. Others, or those of a successor after a deletion, get a new one."""
    transforms = Transforms()
    first = transforms.runner(TOPIC, topic("return m;"))

    assert first is transforms.runner(TOPIC, topic("return m;"))
    assert first is not transforms.runner(TOPIC, topic("return null;"))
    transforms.discard(TOPIC)
    assert first is not transforms.runner(TOPIC, topic("return m;"))


def test_without_v8_nothing_is_run(monkeypatch):
    """Without mini-racer a function is refused, and messages of a restored one fail with the reason."""
    monkeypatch.setitem(sys.modules, "py_mini_racer", None)
    sentence = "it needs `mini-racer`. Install pubsub-spark with its extra `emulator-transforms`"

    with pytest.raises(RpcError, match="cannot be run: it needs `mini-racer`") as error:
        check(topic("return m;").message_transforms)
    assert "UNIMPLEMENTED" == error.value.code
    assert [f"`f0`: {sentence}"] == run(topic("return m;"), b"a")


def test_code_that_does_not_load_any_more_fails_its_messages():
    """A restored function that cannot be loaded is the error of each message."""
    [first, second] = run(topic("return ("), b"a", b"b")

    assert first == second
    assert "SyntaxError" in first


def test_bad_code_is_invalid():
    """A function that cannot run is refused, with its name and the reason."""
    with pytest.raises(RpcError, match=r"The message transform `f0` cannot be run: .*SyntaxError") as error:
        check(topic("return (").message_transforms)
    assert "INVALID_ARGUMENT" == error.value.code
    check(topic("return (", disabled=(0,)).message_transforms)
