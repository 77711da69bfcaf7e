"""One JavaScript function of a message transform, in a V8 context of its own (mini-racer).

Many messages are one call into V8. If that fails or takes too long, each is tried alone, so one that never ends fails
alone. A context that has reached its memory limit is discarded. Not safe for threads: see `transforms`.
"""

from __future__ import annotations

import contextlib
import json
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LIMIT_SECONDS = 0.5  # for one message, as the service documents
MAX_MEMORY_BYTES = 128 * 1024 * 1024
_MAX_DATA_BYTES = 10_000_000  # of one message, published or transformed
_NAME = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_FIELDS = frozenset({"data", "attributes"})

# Calls the function with each message of a list. An exception, or a result without JSON, is the error of that message
# alone.
_CALLER = """const pubsubTransformAll = (batch) => "[" + batch.map(([message, metadata]) => {
  try {
    const made = %s(message, metadata);
    return JSON.stringify(made === undefined ? {error: "it returned nothing; to drop a message return null"} : {made});
  } catch (error) {
    return JSON.stringify({error: String(error)});
  }
}).join(",") + "]";"""


class TransformError(ValueError):
    """The message is the end of a sentence: why a function cannot be used, or failed on a message."""


class UnavailableError(TransformError):
    """V8 is not installed."""


class Transformable(NamedTuple):
    """Only the data and the attributes of a message can be changed."""

    data: bytes
    attributes: Mapping[str, str]
    metadata: Mapping[str, str]


Outcome = Transformable | TransformError | None  # None: dropped


class Function:
    """The function is compiled when it is first needed."""

    def __init__(self, name: str, code: str) -> None:
        self.name = name
        self._code = code
        self._context: Any = None

    def check(self) -> None:
        """Raise TransformError unless the code can be run and has the function."""
        if not _NAME.fullmatch(self.name):
            raise TransformError("its name is not an identifier of JavaScript")
        self._open()

    def run(self, messages: Sequence[Transformable]) -> list[Outcome]:
        texts: list[tuple[dict[str, Any], Mapping[str, str]] | None] = [_given(message) for message in messages]
        answers = iter(self._call([text for text in texts if text is not None]))
        unreadable = TransformError("the data of the message is not UTF-8, which JavaScript needs")
        return [
            unreadable if text is None else _outcome(next(answers), message)
            for message, text in zip(messages, texts, strict=True)
        ]

    def _call(self, batch: Sequence[Any]) -> list[Any]:
        if not batch:
            return []
        try:
            context = self._open()
        except TransformError as problem:
            return [{"error": str(problem)}] * len(batch)
        import py_mini_racer

        try:
            return _answers(context.call("pubsubTransformAll", batch, timeout_sec=LIMIT_SECONDS), len(batch))
        except py_mini_racer.JSTimeoutException:
            _wait_for_end(context)
            why = f"it took longer than {LIMIT_SECONDS * 1000:.0f} ms"
        except py_mini_racer.JSOOMException:
            self._context = None
            self._close()
            why = f"it needed more than {MAX_MEMORY_BYTES >> 20} MB"
        except Exception:  # of V8, or of the functions that write JSON, if the code has changed them
            why = "its result or exception has no JSON"
        if len(batch) > 1:
            return [answer for message in batch for answer in self._call([message])]
        return [{"error": why}]

    def _open(self) -> Any:
        if self._context is not None:
            return self._context
        try:
            import py_mini_racer

            from pubsub_spark.emulator.runtime import v8
        except ModuleNotFoundError:
            extra = "Install pubsub-spark with its extra `emulator-transforms`"
            raise UnavailableError(f"it needs `mini-racer`. {extra}") from None
        context = v8.new_context()
        self._close = weakref.finalize(self, v8.close, context)
        self._close.atexit = False
        context.set_hard_memory_limit(MAX_MEMORY_BYTES)
        try:
            context.eval(self._code, timeout_sec=LIMIT_SECONDS)
            if context.eval(f"typeof {self.name}", timeout_sec=LIMIT_SECONDS) != "function":
                raise TransformError("the code has no function of that name")
            context.eval(_CALLER % self.name)
            self._context = context
        except py_mini_racer.JSTimeoutException:
            _wait_for_end(context)
            raise TransformError(f"its code took longer than {LIMIT_SECONDS * 1000:.0f} ms to load") from None
        except py_mini_racer.JSOOMException:
            raise TransformError(f"its code needed more than {MAX_MEMORY_BYTES >> 20} MB to load") from None
        except py_mini_racer.JSEvalException as error:
            raise TransformError(_first_line(error)) from None
        finally:
            if self._context is None:
                self._close()
        return context


def _wait_for_end(context: Any) -> None:
    """Wait until V8 has stopped the call that took too long. Its callback reports that, and needs the context."""
    import py_mini_racer

    with contextlib.suppress(py_mini_racer.JSEvalException):
        context.eval("0", timeout_sec=LIMIT_SECONDS)


def _given(message: Transformable) -> tuple[dict[str, Any], Mapping[str, str]] | None:
    """Return None if the data is not text."""
    try:
        return {"data": message.data.decode(), "attributes": dict(message.attributes)}, message.metadata
    except UnicodeDecodeError:
        return None


def _answers(text: str, count: int) -> list[Any]:
    answers: list[Any] = json.loads(text)
    if len(answers) != count or not all(isinstance(answer, dict) for answer in answers):
        raise ValueError("It is no list of an answer to each message.")
    return answers


def _outcome(answer: Any, message: Transformable) -> Outcome:
    if "error" in answer:
        return TransformError(answer["error"])
    result = answer.get("made")
    if result is None:
        return None
    if not isinstance(result, dict) or not isinstance(result.get("data"), str):
        return TransformError("it must return null or an object with the text `data`")
    if others := sorted(result.keys() - _FIELDS):
        return TransformError(f"it returned `{others[0]}`, but only `data` and `attributes` can be changed")
    attributes = result.get("attributes", message.attributes)
    if not isinstance(attributes, Mapping) or not all(isinstance(value, str) for value in attributes.values()):
        return TransformError("`attributes` must be an object of texts")
    try:
        data = result["data"].encode()
        json.dumps(dict(attributes), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return TransformError("it returned half of a surrogate pair, which is no text")
    if len(data) > _MAX_DATA_BYTES:
        return TransformError(f"it returned {len(data):,} bytes of `data`, and {_MAX_DATA_BYTES:,} is the maximum")
    return Transformable(data, attributes, message.metadata)


def _first_line(error: Exception) -> str:
    """The place in the code follows the first line."""
    return str(error).partition("\n")[0].removeprefix("<anonymous>:")
