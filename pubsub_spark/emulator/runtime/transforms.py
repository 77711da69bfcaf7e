"""Message transforms: the functions of each topic and subscription that has some, in order.

A resource with transforms has its own thread. A function that never ends holds up only the messages of its own topic or
subscription, each for half a second. The engine's lock is not held meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from pubsub_spark.emulator.api.errors import invalid, unimplemented
from pubsub_spark.emulator.runtime.javascript import Function, Outcome, Transformable, TransformError, UnavailableError

T = TypeVar("T")


class Runner:
    """A new one is made when the functions change."""

    def __init__(self, functions: Sequence[tuple[str, str]]) -> None:
        self.key = functions
        # Its thread ends with it, and is not shut down before: a call may be on its way there.
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="pubsub-emulator-transform")
        self._functions = [Function(name, code) for name, code in functions]
        self._lock = threading.Lock()

    def run(self, messages: Sequence[Transformable]) -> list[Outcome]:
        """The error is that of the first failed function."""
        return _off_the_event_loop(lambda: self._run(messages))

    def _run(self, messages: Sequence[Transformable]) -> list[Outcome]:
        outcomes: list[Outcome] = list(messages)
        with self._lock:
            for function in self._functions:
                left = [(index, result) for index, result in enumerate(outcomes) if isinstance(result, Transformable)]
                for (index, _), outcome in zip(left, function.run([message for _, message in left]), strict=True):
                    failed = isinstance(outcome, TransformError)
                    outcomes[index] = TransformError(f"`{function.name}`: {outcome}") if failed else outcome
        return outcomes


class Transforms:
    def __init__(self) -> None:
        self._runners: dict[str, Runner] = {}

    def runner(self, name: str, resource: Any) -> Runner | None:
        """Return None if the resource has nothing to run."""
        transforms = resource.message_transforms
        if not transforms:
            return None
        functions = _enabled(transforms)
        if not functions:
            return None
        runner = self._runners.get(name)
        if runner is None or runner.key != functions:
            runner = self._runners[name] = Runner(functions)
        return runner

    def discard(self, name: str) -> None:
        self._runners.pop(name, None)

    def clear(self) -> None:
        self._runners.clear()


def check(transforms: Iterable[Any]) -> None:
    """Raise INVALID_ARGUMENT unless every function that is to be run has code that loads, and has the function."""
    for name, code in _enabled(transforms):
        try:
            _off_the_event_loop(Function(name, code).check)
        except TransformError as problem:
            error = unimplemented if isinstance(problem, UnavailableError) else invalid
            raise error(f"The message transform `{name}` cannot be run: {problem}.") from None


def _off_the_event_loop(work: Callable[[], T]) -> T:
    """mini-racer refuses to run on a thread with a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def metadata(message: Any) -> dict[str, str]:
    published = datetime.fromtimestamp(message.published, UTC)
    known = {"message_id": message.id, "publish_time": published.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return known | ({"ordering_key": message.key} if message.key else {})


def transformable(message: Any) -> Transformable:
    return Transformable(message.data, message.attributes, metadata(message))


def _enabled(transforms: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    udfs = (
        transform.javascript_udf
        for transform in transforms
        if not transform.disabled and transform.HasField("javascript_udf")
    )
    return tuple((udf.function_name, udf.code) for udf in udfs)
