"""Ingestion: one thread for each topic with a source that runs looks for new messages and publishes them.

A refused message is logged and skipped. If a source is missing or may not be read, that is a state of the topic, and
the thread tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.sinks.ingestion_source import IngestedMessage, IngestionSource, Portion, SourceError, Sources
from pubsub_spark.emulator.sinks.problem_log import ProblemLog
from pubsub_spark.emulator.state.events import Cleared, Created, Deleted, Event, Updated, collection
from pubsub_spark.emulator.state.topic import Topic

_log = logging.getLogger("pubsub_spark.emulator")

_LOOK_SECONDS = 0.5
_STOP_SECONDS = 10.0
_BATCH_MESSAGES, _BATCH_BYTES = 1000, 5_000_000  # of one Publish, below its limits
_ACTIVE, _RESOURCE_ERROR = 1, 2  # of Topic.State

Publish = Callable[[bytes], bytes]  # of a serialized PublishRequest


class IngestionWorkers:
    def __init__(self, engine: Engine, sources: Sources, publish: Publish) -> None:
        self._engine = engine
        self._sources = sources
        self._publish = publish
        self._workers: dict[str, IngestionWorker] = {}

    def follow(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Cleared):
                for name in list(self._workers):
                    self._end(name)
            elif isinstance(event, Deleted):
                self._end(event.name)
            elif isinstance(event, Created | Updated) and collection(event.name) == "topics":
                self._configure(event.name, event.resource)

    def _configure(self, name: str, resource: Any) -> None:
        source, settings = _source_of(resource)
        present = self._workers.get(name)
        if present is not None and settings is not None and present.settings == _stateless(settings):
            return
        self._end(name)
        if source in self._sources:
            topic = self._engine.broker.topics[name]
            opened = self._sources[source](settings, topic.ingested)
            self._workers[name] = IngestionWorker(topic, _stateless(settings), opened, self._engine, self._publish)

    def _end(self, name: str) -> None:
        if (worker := self._workers.pop(name, None)) is not None:
            worker.stop()

    def close(self) -> None:
        """Wait until no worker publishes any more."""
        with self._engine.open():
            workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(_STOP_SECONDS)


class IngestionWorker:
    def __init__(self, topic: Topic, settings: Any, source: IngestionSource, engine: Engine, publish: Publish) -> None:
        self.settings = settings
        self._topic = topic
        self._source = source
        self._engine = engine
        self._publish = publish
        self._problem = ProblemLog(topic.name, "ingesting")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ingestion {topic.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """A Publish in progress is completed."""
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
        """Return the resulting state."""
        portions = self._source.new()
        while not self._stopped.is_set():
            try:
                portion = next(portions, None)
            except SourceError as problem:
                self._problem.occurred(str(problem))
                return problem.state
            except Exception as problem:  # an unexpected error of a library or of a server's answer
                self._problem.occurred(f"{type(problem).__name__}: {problem}", problem)
                return "ACTIVE"
            if portion is None:
                self._problem.ended()
                break
            self._ingest(portion.where, portion.messages)
            self._note(portion)
        return "ACTIVE"

    def _note(self, portion: Portion) -> None:
        """Store the position in the source, also if the worker was stopped while it published."""
        with self._engine.open() as (broker, _):
            broker.note_ingested(self._topic, portion.part, portion.mark)

    def _ingest(self, where: str, messages: Iterable[IngestedMessage]) -> None:
        try:
            for batch in _batches(messages):
                self._send(where, batch)
        except ValueError as problem:
            _log.warning("The object %s of %s is not of the format to ingest: %s", where, self._topic.name, problem)

    def _send(self, where: str, batch: list[IngestedMessage]) -> None:
        """If a batch is refused, publish each message alone."""
        request = protos.PublishRequest(topic=self._topic.name)
        for message in batch:
            request.messages.add(data=message.data, attributes=message.attributes)
        try:
            self._publish(request.SerializeToString())
        except RpcError as error:
            if len(batch) > 1:
                for message in batch:
                    self._send(where, [message])
            else:
                _log.warning("A message of %s is not published to %s: %s", where, self._topic.name, error.message)

    def _show(self, state: str) -> None:
        number = self.settings.DESCRIPTOR.enum_types_by_name["State"].values_by_name[state].number
        with self._engine.open() as (broker, _):
            topic = broker.topics.get(self._topic.name)
            source, settings = _source_of(topic.resource) if topic is not None else ("", None)
            if topic is None or settings is None or self._stopped.is_set() or settings.state == number:
                return
            changed = deepcopy(topic.resource)
            changed.state = _ACTIVE if state == "ACTIVE" else _RESOURCE_ERROR
            getattr(changed.ingestion_data_source_settings, source).state = number
            broker.replace(topic, changed)


def _source_of(topic: Any) -> tuple[str, Any]:
    settings = topic.ingestion_data_source_settings
    source = settings.WhichOneof("source") or ""
    return source, getattr(settings, source) if source else None


def _stateless(settings: Any) -> Any:
    plain = deepcopy(settings)
    plain.ClearField("state")
    return plain


def _batches(messages: Iterable[IngestedMessage]) -> Iterator[list[IngestedMessage]]:
    batch: list[IngestedMessage] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message.data)
        if len(batch) == _BATCH_MESSAGES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
