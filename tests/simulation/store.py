"""The staging area's store: in memory, create-only, shared by all processes of a history.

A call that was sent takes effect though its process is killed meanwhile. A refusal is a StagingError, as the real
adapter's: before the effect, or after it (an answer that was lost).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pubsub_spark.errors import StagingError
from tests.simulation.faults import Faults
from tests.simulation.hub import Hub, ProcessGone
from tests.simulation.product import MissingFile
from tests.simulation.record import Record

T = TypeVar("T")
_PART = re.compile(r"(?:.*/)?([^/]+)/(\d+)/(part-\d+)?")  # stream, batch, and the file if it is not their folder
_LATENCIES = (0.0005, 0.002, 0.02)  # seconds
_BLOCK_BYTES = 512  # of a damaged file
_stores: dict[int, SimStore] = {}


def _store(key: int) -> SimStore:
    """Return the store that was pickled."""
    return _stores[key]


class SimStore:
    """One store. Pickled by reference. is_local: whether it is a folder of the machine, which may lose power.

    on_delete: called when a query has deleted a file, with its path, its content, the files that are left, and the
    name of the process.
    """

    def __init__(self, hub: Hub, faults: Faults, record: Record, location: str, is_local: bool = False) -> None:
        self.location, self.is_local = location, is_local
        self._hub, self._faults, self._record = hub, faults, record
        self.files: dict[str, bytes] = {}
        self.on_delete: Callable[[str, bytes, Mapping[str, bytes], str], None] = lambda *_: None
        self.delays: dict[tuple[str, str], float] = {}  # seconds that a call takes, by verb and name of the file
        self._writing: dict[int, tuple[str, bytes]] = {}  # writes that are not answered, by a number
        self._written = 0
        self._owners: dict[str, str] = {}  # the last process that has claimed a stream's folder
        _stores[id(self)] = self

    def create(self, path: str, content: Sequence[Any]) -> bool:
        """Write a file that does not exist. Returns False if another writer was first."""
        joined = b"".join(bytes(buffer) for buffer in content)
        answers: list[bool] = []

        def write() -> bool:
            answers.append(self.files.setdefault(path, joined) is joined or self.files[path] == joined)
            return answers[-1]

        return self._ask(write, "creates", path, joined)

    def put(self, path: str, content: Any) -> None:
        joined = bytes(content) if not isinstance(content, (list, tuple)) else b"".join(map(bytes, content))
        self._ask(lambda: self.files.__setitem__(path, joined), "writes", path, joined)

    def read(self, path: str) -> bytes | None:
        return self._ask(lambda: self.files.get(path), "reads", path)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        content = self._ask(lambda: self.files.get(path), "reads", path)
        if content is None:
            raise MissingFile(path, self.location)
        return content[start:end]

    def list(self, prefix: str) -> dict[str, int]:
        def found() -> dict[str, int]:
            length = len(prefix)
            return {path[length:]: len(data) for path, data in self.files.items() if path.startswith(prefix)}

        return self._ask(found, "lists", prefix)

    def folders(self, prefix: str) -> Sequence[str]:
        def found() -> list[str]:
            inner = (path[len(prefix) :] for path in self.files if path.startswith(prefix))
            return sorted({path.partition("/")[0] for path in inner if "/" in path})

        return self._ask(found, "lists", prefix)

    def delete(self, path: str) -> None:
        by = self._hub.running().process.name if not self._hub.is_over else ""

        def deleted() -> None:
            content = self.files.pop(path, None)
            if content is not None:
                self.on_delete(path, content, self.files, by)

        self._ask(deleted, "deletes", path)

    def within(self, seconds: float) -> SimStore:
        """Return this store, which ends its outages by itself."""
        return self

    def prepare(self, folder: str) -> None:
        """Do nothing: a folder in memory needs no rights."""

    def remove(self, path: str) -> None:
        """Remove a file, as a cleaner does."""
        self.files.pop(path, None)
        self._lost(path)
        self._record.tell("cleaner", "removes %s", path)

    def damage(self, path: str, at: int) -> None:
        """Write zeros into a file, as a broken disk does."""
        content = self.files[path]
        self.files[path] = content[:at] + bytes(min(_BLOCK_BYTES, len(content) - at)) + content[at + _BLOCK_BYTES :]
        self._lost(path)
        self._record.tell("disk", "damages %s from byte %s on", path, at)

    def remove_one(self, folder: str) -> None:
        """Remove a file of a folder, if there is one."""
        if paths := sorted(path for path in self.files if folder in path):
            self.remove(self._hub.chooser.pick(paths))

    def _lost(self, path: str) -> None:
        """Record that a file is gone or cut short without a deletion. Paths end in `stream/batch/file`."""
        self._record.note("file removed", path)
        folders = path.split("/")
        if len(folders) > 2 and folders[-2] == "schemas":
            self._record.schemas_lost = True
        if len(folders) > 2 and folders[-2].isdigit():
            batch = folders[-3], int(folders[-2])
            self._record.unstaged.add(batch)
            if folders[-1].startswith("given-"):
                self._record.unmarked.add(batch)

    def lose_power(self) -> None:
        """Cut short the files that are being written."""
        for path, content in self._writing.values():
            cut = self._hub.chooser.pick((None, b"", content[: len(content) // 2], content))
            if cut is None:
                self.files.pop(path, None)
            else:
                self.files[path] = cut
            self._lost(path)
            self._record.tell(
                "power loss", "leaves %s of %s bytes of %s", "nothing" if cut is None else len(cut), len(content), path
            )

    def close(self) -> None:
        """Forget this store. The history is over."""
        _stores.pop(id(self), None)

    def _ask(self, effect: Callable[[], T], verb: str, path: str, written: bytes | None = None) -> T:
        """Return the answer of a call, after a while."""
        hub, faults = self._hub, self._faults
        if hub.is_over:
            raise ProcessGone
        thread = hub.running()
        if thread.process.dead:
            raise ProcessGone
        asked, slow = hub.now, faults.hits("store slow")
        seconds = hub.chooser.seconds(1, 200) if slow else hub.chooser.pick(_LATENCIES)
        seconds = self.delays.get((verb, path.rpartition("/")[2]), seconds)
        refused = faults.hits("store refuses")
        lost = not refused and faults.hits("store answer lost")
        answer: list[Any] = []
        self._written += 1
        number = self._written
        if written is not None and self.is_local:
            self._writing[number] = path, written

        def take_effect() -> None:
            self._writing.pop(number, None)
            answer.append(None if refused else effect())
            if verb in ("lists", "creates") and not refused and (part := _PART.fullmatch(path)):
                batch, by = (part[1], int(part[2])), thread.process.name
                if verb == "lists":
                    self._record.look(batch, by)
                elif verb == "creates" and part[3] and answer[0]:
                    self._record.stage(batch, by, written or b"", asked)
            if verb == "creates" and answer == [True]:
                self._claim_or_acknowledge(path, thread.process.name)
            if slow or refused or lost or written is not None or verb == "deletes":
                suffix = (
                    " (refused)" if refused else " (not answered)" if lost else " (exists)" if answer == [False] else ""
                )
                self._record.tell(thread.process.name, f"{verb} %s{suffix}", path)
            hub.wake(thread)

        hub.after(seconds, take_effect)
        thread.process.operation()
        while not answer:
            hub.wait()
        if refused or lost:
            raise StagingError(f"The staging area `{self.location}` cannot be used: simulated.")
        return answer[0]  # type: ignore[no-any-return]

    def _claim_or_acknowledge(self, path: str, by: str) -> None:
        """Record that a run which was taken over acknowledges batches: it asked before that, and the store was slow."""
        folder, _, name = path.rpartition("/")
        stream, _, kind = folder.rpartition("/")
        if kind == "owners":
            self._owners[stream] = by
        elif kind == "acknowledged" and self._owners.get(stream, by) != by:
            self._record.note("acknowledged late", (stream.rpartition("/")[2], int(name)))

    def __reduce__(self) -> Any:
        return _store, (id(self),)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)
