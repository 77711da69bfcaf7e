"""A store on local files whose calls a test watches, holds up or refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pubsub_spark.read.staging.part import Buffer
from pubsub_spark.read.staging.store import Store


@dataclass(frozen=True)
class WatchedStore(Store):
    """before: called with name and path of each call that reads or changes files. The call raises its exceptions."""

    before: Callable[[str, str], Any]

    def create(self, path: str, buffers: Sequence[Buffer]) -> bool:
        self.before("create", path)
        return super().create(path, buffers)

    def put(self, path: str, content: Buffer) -> None:
        self.before("put", path)
        super().put(path, content)

    def read(self, path: str) -> Buffer | None:
        self.before("read", path)
        return super().read(path)

    def read_range(self, path: str, start: int, end: int) -> Buffer:
        self.before("read_range", path)
        return super().read_range(path, start, end)

    def list(self, prefix: str) -> dict[str, int]:
        self.before("list", prefix)
        return super().list(prefix)

    def delete(self, path: str) -> None:
        self.before("delete", path)
        super().delete(path)
