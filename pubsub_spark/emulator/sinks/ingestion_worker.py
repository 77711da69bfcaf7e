"""Ingestion from Cloud Storage: one thread for each topic that has it looks at its bucket and publishes what is new.

An object is read when two looks have found the same of it, so none that is still being written; then once, as long as
it stays the same. What was read is known as long as the emulator runs: a start with a data directory reads anew.
Messages go through Publish like every client's; one that is refused is logged and passed over. A bucket that is not
there, or may not be read, is a state of the topic, and is looked for again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import obstore

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.sinks import ingestion_format
from pubsub_spark.emulator.sinks.destination import DestinationError
from pubsub_spark.emulator.sinks.ingestion_format import IngestedMessage
from pubsub_spark.emulator.sinks.storage_root import StorageRoot
from pubsub_spark.emulator.state.events import Cleared, Created, Deleted, Event, Updated, collection

_log = logging.getLogger("pubsub_spark.emulator")

_LOOK_SECONDS = 0.5
_STOP_SECONDS = 10.0
_BATCH_MESSAGES, _BATCH_BYTES = 1000, 5_000_000  # of one Publish, below its limits
_ACTIVE, _RESOURCE_ERROR = 1, 2  # of Topic.State
# Of the state of the CloudStorage settings.
_STATES = {"ACTIVE": 1, "PERMISSION_DENIED": 2, "NOT_FOUND": 4}

_DENIED = (PermissionError, obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError)

Publish = Callable[[bytes], bytes]  # of a serialized PublishRequest
_Seen = tuple[str, str, int]  # name, e-tag or time, and size of an object


class IngestionWorkers:
    """The workers by topic; they follow its settings."""

    def __init__(self, engine: Engine, root: StorageRoot, publish: Publish) -> None:
        self._engine = engine
        self._root = root
        self._publish = publish
        self._workers: dict[str, IngestionWorker] = {}

    def follow(self, events: Sequence[Event]) -> None:
        """Start and stop workers as topics come, change and go: a listener of the engine."""
        for event in events:
            if isinstance(event, Cleared):
                for name in list(self._workers):
                    self._end(name)
            elif isinstance(event, Deleted):
                self._end(event.name)
            elif isinstance(event, Created | Updated) and collection(event.name) == "topics":
                self._configure(event.name, event.resource)

    def _configure(self, name: str, resource: Any) -> None:
        settings = cloud_storage_of(resource)
        present = self._workers.get(name)
        if present is not None and settings is not None and present.settings == _stateless(settings):
            return
        self._end(name)
        if settings is not None:
            arguments = self._engine, self._root, self._publish
            self._workers[name] = IngestionWorker(name, _stateless(settings), *arguments)

    def _end(self, name: str) -> None:
        if (worker := self._workers.pop(name, None)) is not None:
            worker.stop()

    def close(self) -> None:
        """Stop all, and wait until none publishes any more."""
        with self._engine.open():
            workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(_STOP_SECONDS)


class IngestionWorker:
    """Ingests for one topic until stopped."""

    def __init__(self, topic: str, settings: Any, engine: Engine, root: StorageRoot, publish: Publish) -> None:
        self.settings = settings
        self._topic = topic
        self._engine = engine
        self._root = root
        self._publish = publish
        self._pattern = ingestion_format.glob_pattern(settings.match_glob)
        self._since = settings.minimum_object_create_time.ToNanoseconds() / 1e9
        self._candidates: set[_Seen] = set()  # found by the last look
        self._read: set[_Seen] = set()
        self._warned = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ingestion {topic}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more; the Publish that is under way is done."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._show(self._look())
                self._stopped.wait(_LOOK_SECONDS)
        except Exception as error:
            self._engine.fail(error)

    def _look(self) -> str:
        """Read what is new in the bucket; the state that follows."""
        try:
            store = self._root.open(self.settings.bucket)
            found = set(self._objects(store))
            for seen in sorted((found & self._candidates) - self._read):
                if self._stopped.is_set():
                    break
                self._ingest(seen[0], bytes(obstore.get(store, seen[0]).bytes()))
                self._read.add(seen)
            self._candidates = found
            self._read &= found
        except DestinationError as problem:
            self._warn(str(problem))
            return problem.state
        except _DENIED as problem:
            self._warn(f"The bucket `{self.settings.bucket}` may not be read; allow it ({problem}).")
            return "PERMISSION_DENIED"
        except (
            OSError,
            obstore.exceptions.BaseError,
        ) as problem:  # gone meanwhile, or a store that is away
            self._warn(f"The bucket `{self.settings.bucket}` cannot be read now: {problem}")
        else:
            self._warned = ""
        return "ACTIVE"

    def _warn(self, sentence: str) -> None:
        """Log what keeps the topic from being ingested to, once as long as it is the same."""
        if sentence != self._warned:
            _log.warning("%s is not ingested to: %s", self._topic, sentence)
        self._warned = sentence

    def _objects(self, store: Any) -> Iterator[_Seen]:
        """The objects that the settings mean."""
        for chunk in obstore.list(store):
            for each in chunk:
                changed = each["last_modified"].timestamp()
                if changed >= self._since and self._pattern.fullmatch(each["path"]):
                    yield each["path"], str(each["e_tag"] or changed), each["size"]

    def _ingest(self, name: str, content: bytes) -> None:
        try:
            for batch in _batches(ingestion_format.messages(self.settings, content)):
                self._send(name, batch)
        except (ValueError, EOFError, IndexError, KeyError, TypeError, StopIteration) as problem:  # fastavro's
            _log.warning("The object `%s` of %s is not of the format to ingest: %s", name, self._topic, problem)

    def _send(self, name: str, batch: list[IngestedMessage]) -> None:
        """Publish a batch; where it is refused, each message alone."""
        request = protos.PublishRequest(topic=self._topic)
        for each in batch:
            request.messages.add(data=each.data, attributes=each.attributes)
        try:
            self._publish(request.SerializeToString())
        except RpcError as error:
            if len(batch) > 1:
                for each in batch:
                    self._send(name, [each])
            else:
                _log.warning("A message of `%s` is not published to %s: %s", name, self._topic, error.message)

    def _show(self, state: str) -> None:
        """Set the state of the topic, and of its settings, where it is another."""
        with self._engine.open() as (broker, _):
            topic = broker.topics.get(self._topic)
            settings = cloud_storage_of(topic.resource) if topic is not None else None
            if topic is None or settings is None or self._stopped.is_set() or settings.state == _STATES[state]:
                return
            changed = deepcopy(topic.resource)
            changed.state = _ACTIVE if state == "ACTIVE" else _RESOURCE_ERROR
            changed.ingestion_data_source_settings.cloud_storage.state = _STATES[state]
            broker.replace(topic, changed)


def cloud_storage_of(topic: Any) -> Any:
    """The CloudStorage settings of a Topic; None when it has none."""
    settings = topic.ingestion_data_source_settings
    return settings.cloud_storage if settings.WhichOneof("source") == "cloud_storage" else None


def _stateless(settings: Any) -> Any:
    """The settings without the state that the worker sets."""
    plain = deepcopy(settings)
    plain.ClearField("state")
    return plain


def _batches(messages: Iterable[IngestedMessage]) -> Iterator[list[IngestedMessage]]:
    """The messages in batches that one Publish takes."""
    batch: list[IngestedMessage] = []
    size = 0
    for each in messages:
        batch.append(each)
        size += len(each.data)
        if len(batch) == _BATCH_MESSAGES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
