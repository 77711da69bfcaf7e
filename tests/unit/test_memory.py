"""Memory settings: made once, and left out where the C library has none."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from pubsub_spark import memory
from pubsub_spark.memory import freeze_imports, keep_freed_memory


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Forget the settings before a test, and keep none after it."""
    keep_freed_memory.cache_clear()
    freeze_imports.cache_clear()
    yield
    gc.unfreeze()


class Glibc:
    """A C library that records its settings."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def mallopt(self, setting: int, value: int) -> int:
        self.told.append((setting, value))
        return 1


def test_glibc_is_told_once(monkeypatch: pytest.MonkeyPatch):
    """Arenas, and the thresholds of returning memory to the system (malloc.h numbers the settings)."""
    library = Glibc()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    keep_freed_memory()
    keep_freed_memory()

    assert {-8: 2, -3: 32 * 2**20, -1: 512 * 2**20} == dict(library.told)
    assert 3 == len(library.told)


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    """musl and macOS have no `mallopt`."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    keep_freed_memory()


def test_frozen_objects_are_still_freed():
    """Frozen objects are not walked, and are freed when nothing refers to them."""

    class Counted:
        there = 0

        def __init__(self) -> None:
            Counted.there += 1

        def __del__(self) -> None:
            Counted.there -= 1

    held = Counted()
    freeze_imports()

    assert gc.get_freeze_count() > 0
    assert 1 == Counted.there
    del held
    assert 0 == Counted.there


class ReleasedError(Exception):
    """Ends the loop of a test: its memory was released."""


@pytest.mark.parametrize(
    ("used", "releases_at"), [([1.0, 2.0, 2.01], 3), ([0.1, 0.1, 0.1], None), ([1.0, 1.01, 1.02, 2.5, 2.5], 2)]
)
def test_memory_is_released_when_work_is_over(
    monkeypatch: pytest.MonkeyPatch, used: list[float], releases_at: int | None
):
    """After work, and in the first idle moment: neither during work nor without any."""
    released: list[int] = []
    ticks = iter(used)
    clock = [0.0]
    sleeps = []

    def sleep(_: float) -> None:
        sleeps.append(1)
        tick = next(ticks, None)
        if tick is None:
            raise ReleasedError
        clock[0] = tick

    class Library:
        def malloc_trim(self, pad: int) -> int:
            released.append(len(sleeps))
            raise ReleasedError

    monkeypatch.setattr("pubsub_spark.memory.time.sleep", sleep)
    monkeypatch.setattr("pubsub_spark.memory.time.process_time", lambda: clock[0])
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library())
    monkeypatch.setattr(threading, "Thread", lambda target, **_: SimpleNamespace(start=target))
    with pytest.raises(ReleasedError):
        memory.release_when_idle()

    assert ([] if releases_at is None else [releases_at]) == released
