"""The thread that makes and frees V8's contexts. It is started when this module is imported.

Where the processor has memory protection keys (pku), V8's memory is open only to the thread that started V8 and to the
threads that it starts. Any other thread that makes or frees a context ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final

import py_mini_racer

# Not an executor: the garbage collector frees contexts, also inside a `submit`, whose lock the next one waits for.
_calls: Final[SimpleQueue[tuple[Future[Any], Callable[[], Any]]]] = SimpleQueue()


def new_context() -> Any:
    """Return a `py_mini_racer.MiniRacer`."""
    return _call(py_mini_racer.MiniRacer).result()


def close(context: Any) -> None:
    """Free a context soon. Return at once."""
    _call(context.close)


def _call(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    _calls.put((future, work))
    return future


def _run() -> None:
    while True:
        future, work = _calls.get()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        del future, work  # they would keep the context until the next call


threading.Thread(target=_run, name="v8", daemon=True).start()
