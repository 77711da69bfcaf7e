"""The emulator as a Python object: start, stop, and the methods for tests.

The methods work without an RPC, which would appear among the calls that a test inspects.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from pubsub_spark import names
from pubsub_spark.emulator import arguments, seed_file
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import NUMBERS, Code, RpcError
from pubsub_spark.emulator.arguments import Publishable
from pubsub_spark.emulator.handlers.subscriber import find
from pubsub_spark.emulator.journal.journal import Journal
from pubsub_spark.emulator.metrics import Metrics
from pubsub_spark.emulator.options import EmulatorOptions
from pubsub_spark.emulator.records import Record, backlogs, record_of
from pubsub_spark.emulator.resources import integrations
from pubsub_spark.emulator.rpc import tracing
from pubsub_spark.emulator.rpc.dispatcher import Dispatcher
from pubsub_spark.emulator.rpc.interceptors import InjectFaults, Interceptor, Recorded, Recorder, log
from pubsub_spark.emulator.rpc.recent_calls import RecentCall, RecentCalls
from pubsub_spark.emulator.rpc.registry import Registry
from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import EVERY, Fault, Faults
from pubsub_spark.emulator.sinks import external_services
from pubsub_spark.emulator.sinks.export_worker import ExportWorkers
from pubsub_spark.emulator.sinks.ingestion_worker import IngestionWorkers
from pubsub_spark.emulator.sinks.push_worker import PushWorkers, one_signer
from pubsub_spark.emulator.state.delivery import message_of
from pubsub_spark.emulator.state.events import Event
from pubsub_spark.emulator.state.history import History
from pubsub_spark.emulator.state.state import State
from pubsub_spark.emulator.transport import event_loop, origin, verbs
from pubsub_spark.emulator.transport.http_content import HttpContent, Page
from pubsub_spark.emulator.transport.listener import address, listen, tls_context
from pubsub_spark.emulator.transport.servers import Servers
from pubsub_spark.emulator.transport.verbs import Verb
from pubsub_spark.schema.definition import Encoding
from pubsub_spark.schema.schema_types import ENCODING_NUMBERS, SCHEMA_TYPE_NUMBERS, SchemaType

if TYPE_CHECKING:
    from pubsub_spark.emulator.sinks.oidc import Signer


class EmulatorFailedError(RuntimeError):
    """The emulator was ended by an exception on a background thread, which is the cause of this one."""


class Workers(Protocol):
    def follow(self, events: Sequence[Event], /) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Parts:
    engine: Engine
    faults: Faults
    services: Registry
    recorder: Recorder
    recent_calls: RecentCalls
    history: History
    dispatcher: Dispatcher
    ending: ExitStack


class Emulator(EmulatorOptions):
    """An emulator of Pub/Sub: `with Emulator() as emulator:`, and point a client at `emulator.endpoint`.

    `async with` starts and stops it without blocking the caller's event loop. docs/emulator-reference.md lists the
    options. After an exception on a background thread has ended the emulator, every method raises EmulatorFailedError.
    """

    is_restored = False  # whether it began with the contents of its data directory
    _parts: _Parts | None = None

    def start(self) -> Self:
        """Start to serve.

        Raise OSError if the port is taken or TLS cannot be served, DataDirError for its directory, OriginError for an
        invalid allowed origin.
        """
        if self._parts is not None:
            raise RuntimeError("The emulator is already running. Stop it before you start it again.")
        with ExitStack() as ending:
            listening = listen(self.host, self.port)
            ending.callback(listening.close)
            tls = tls_context(*self.tls) if self.tls else None
            clock = Clock()
            state, journal = self._begin(clock, ending)
            engine = Engine(state, clock)
            ending.callback(engine.close)
            if journal is not None:
                engine.journal, journal.on_failure = journal, engine.fail
            running = external_services.destinations(self)
            signer, faults, recorder = one_signer(), Faults(), Recorder()
            services = Registry(engine, faults, allow_well_known_imports=self.allow_well_known_imports, exports=running)
            following: list[Workers] = [PushWorkers(engine, signer), ExportWorkers(engine, running)]
            if sources := external_services.sources(self):
                following.append(IngestionWorkers(engine, sources, services.publisher.publish))
            for workers in following:
                ending.callback(workers.close)
                engine.add_listener(workers.follow)
            metrics = Metrics(engine)
            engine.add_listener(metrics.follow)
            history = History(engine.now)
            engine.add_listener(history.follow)
            with engine.open() as (broker, _):
                state.announce()  # first: to listeners a subscription is created before it is updated
                integrations.reset_states(broker, running)
            optional = (tracing.interceptor(), recorder if self.record else None)
            recent_calls = RecentCalls(engine.now)
            around = (metrics, recent_calls, *optional, log, InjectFaults(faults, engine))
            interceptors: list[Interceptor] = [layer for layer in around if layer is not None]
            dispatcher = Dispatcher(engine, services, interceptors)
            loop = event_loop.shared()
            text = partial(metrics.text, dispatcher.streams_by_subscription)
            content = self._http_content(signer, text) if self.rest else None
            servers = Servers(dispatcher, engine.now, listening, content, tls)
            ending.callback(lambda: loop.run(servers.stop()))
            loop.run(servers.start())

            def end() -> None:
                loop.call(servers.abort)
                self.on_failure()

            engine.on_failure = end
            loop.on_error.add(engine.fail)
            ending.callback(loop.on_error.discard, engine.fail)
            self.port = listening.getsockname()[1]
            self.is_restored = journal is not None and not journal.is_empty
            self._parts = _Parts(
                engine, faults, services, recorder, recent_calls, history, dispatcher, ending.pop_all()
            )
        return self

    def _begin(self, clock: Clock, ending: ExitStack) -> tuple[State, Journal | None]:
        if self.data_dir is None:
            return State(remembered=self.remembered, started=clock.now()), None
        journal = Journal(Path(self.data_dir), self.fsync, now=clock.now(), remembered=self.remembered)
        ending.callback(journal.close)
        clock.advance_to(journal.now)
        journal.start()
        return journal.state, journal

    def _http_content(self, signer: Callable[[], Signer], metrics: Callable[[], str]) -> HttpContent:
        documents = {
            **dict.fromkeys(("/", "/healthz"), lambda: "Ok\n"),
            "/oauth2/v1/certs": lambda: signer().certificates(),
            "/oauth2/v3/certs": lambda: signer().jwks(),
        }
        origins = [origin.site(address) for address in self.allow_origins]
        return HttpContent(documents, self._verbs(), metrics, self._page, (self.host, *self.allow_hosts), origins)

    def _page(self) -> Page:
        from pubsub_spark.emulator.page import app

        running = self._running
        parts = app.parts(running.engine, running.dispatcher, running.faults, running.recent_calls, running.history)
        return app.PageApp(parts, self._verbs(), (self.host, *self.allow_hosts))

    def _verbs(self) -> dict[str, Verb]:
        looks: dict[str, Callable[..., Any]] = {
            "backlog": self._backlogs,
            "calls": self._recorded,
            "messages": self.messages,
            "process": _process,
            "recent_calls": self._recent_calls,
            "streams": self.streams,
        }
        changes: dict[str, Callable[..., Any]] = {
            "advance": self.advance,
            "chaos": self.chaos,
            "clear_faults": self.clear_faults,
            "close_streams": self.close_streams,
            "fail": self.fail,
            "fail_acks": self.fail_acks,
            "publish": self.publish,
            "reset": self.reset,
        }
        return verbs.table(looks, changes)

    def stop(self) -> None:
        """End every call, stop listening, delete everything. Raise EmulatorFailedError if it has ended by itself."""
        if self._parts is not None:
            parts, self._parts = self._parts, None
            parts.ending.close()
            _check(parts.engine)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    @property
    def endpoint(self) -> str:
        """`host:port`, in the form of PUBSUB_EMULATOR_HOST."""
        return address(self.host, self.port)

    @property
    def calls(self) -> list[Recorded]:
        """The calls so far, with their metadata, or no calls unless `record=True`."""
        return self._running.recorder.calls

    def _recorded(self) -> list[Recorded]:
        if not self.record:
            raise ValueError("No calls were recorded. Start the emulator with `--record`, or `Emulator(record=True)`.")
        return self.calls

    def _recent_calls(self) -> list[RecentCall]:
        return list(self._running.recent_calls.calls)

    def _backlogs(self) -> dict[str, dict[str, float]]:
        with self._running.engine.open() as (broker, now):
            return backlogs(broker, now)

    # Setting up

    def create_topic(
        self, name: str, schema: str | None = None, encoding: Encoding = "BINARY", **settings: Any
    ) -> None:
        """Create a topic. `settings` are fields of the Topic resource, durations in seconds."""
        resource = arguments.resource(protos.Topic, name, **settings)
        if schema is not None:
            resource.schema_settings.schema = schema
            resource.schema_settings.encoding = arguments.one_of(ENCODING_NUMBERS, encoding, "encoding")
        with self._changing() as services:
            services.publisher.create_topic(resource)

    def create_subscription(self, name: str, topic: str, **settings: Any) -> None:
        """Create a subscription. `settings` are fields of the Subscription resource, durations in seconds."""
        resource = arguments.resource(protos.Subscription, name, topic=topic, **settings)
        with self._changing() as services:
            services.subscriber.create_subscription(resource)

    def create_schema(self, name: str, type: SchemaType, definition: str) -> None:  # noqa: A002 - Pub/Sub's name for it
        """Create a schema with its first revision."""
        parsed = names.parse(name, "schemas")
        schema = protos.Schema(type_=arguments.one_of(SCHEMA_TYPE_NUMBERS, type, "type"), definition=definition)
        request = protos.CreateSchemaRequest(parent=f"projects/{parsed.project}", schema_id=parsed.id, schema=schema)
        with self._changing() as services:
            services.schemas.create_schema(request)

    def load(self, path: Path) -> None:
        """Create the resources of a seed file. SeedFileError names the problem in it."""
        with self._changing() as services:
            seed_file.load(path, services)

    def publish(self, topic: str, *messages: Publishable) -> list[str]:
        """Publish bytes, texts, or mappings of PubsubMessage's fields. Return the message ids."""
        ids: list[str] = []
        with self._changing() as services:
            for message in messages:
                request = protos.PublishRequest(topic=topic, messages=[arguments.message(message)])
                response = services.publisher.publish(request.SerializeToString())
                ids += protos.PublishResponse.FromString(response).message_ids
        return ids

    # Looking inside

    def messages(self, subscription: str) -> list[Record]:
        """Return the history of every message of a subscription, in the order of publishing."""
        with self._running.engine.open() as (broker, now):
            known = {message_of(delivery).number: delivery for delivery in find(broker, subscription).deliveries()}
            return [record_of(known[number], now) for number in sorted(known)]

    def backlog(self, subscription: str) -> int:
        """Return the number of unacknowledged messages, the leased ones included."""
        with self._running.engine.open() as (broker, _):
            return broker.backlog(find(broker, subscription))

    def streams(self) -> int:
        """Return the number of open StreamingPulls."""
        return self._running.dispatcher.streams()

    # Time and faults

    def advance(self, seconds: float) -> None:
        """Move the emulator's clock. Leases that run out meanwhile have expired when this returns."""
        self._running.engine.advance(seconds)

    def fail(self, rpc: str, code: Code | None, count: int = 1, delay: float = 0, message: str = "") -> None:
        """Let the next `count` calls of `rpc` (`*`: any) fail with `code` after `delay` seconds. None only delays."""
        if count < 1 or code not in (None, *NUMBERS):
            codes = ", ".join(NUMBERS)
            raise ValueError(
                f"A fault must be one of {codes} or None (`code`), at least once (`count`), got {code}, {count} times."
            )
        if delay < 0:
            raise ValueError(f"A fault's `delay` must be a number of seconds, 0 or more, got {delay}.")
        rpcs = self._running.dispatcher.names
        if rpc not in (EVERY, *rpcs):
            raise ValueError(f"`{rpc}` is not an RPC. {EVERY} is every one of {', '.join(sorted(rpcs))}.")
        self._running.faults.add(Fault(rpc, code, count, delay, message))

    def fail_acks(self, count: int = 1, outcome: str = "TRANSIENT_FAILURE_UNORDERED_ACK_ID") -> None:
        """Let the next `count` requests with acks or deadlines of exactly-once subscriptions fail, id by id.

        A client retries after an outcome that begins with TRANSIENT_FAILURE. PERMANENT_FAILURE_INVALID_ACK_ID is final.
        """
        if count < 1 or not outcome.startswith(("TRANSIENT_FAILURE_", "PERMANENT_FAILURE_")):
            outcomes = "PERMANENT_FAILURE_* or TRANSIENT_FAILURE_*"
            raise ValueError(
                f"An ack must fail with {outcomes} (`outcome`), at least once (`count`), got {outcome}, {count} times."
            )
        self._running.faults.inject(count, outcome)

    def clear_faults(self) -> None:
        """Forget the pending faults of `fail` and `fail_acks`."""
        self._running.faults.clear()

    def chaos(self, seed: int | None) -> None:
        """Reorder and redeliver messages and end leases early, as at-least-once delivery allows. None stops it.

        Ordering by key and exactly-once delivery remain guaranteed. The same seed and requests have the same result.
        """
        with self._running.engine.open() as (broker, _):
            broker.set_chaos(seed)

    def reset(self) -> None:
        """Delete every resource, message, recorded call and fault, and set the clock back to the machine's time.

        Open streams end with NOT_FOUND.
        """
        with self._changing() as services:
            services.reset()
        self.clear_faults()
        self._running.recorder.calls.clear()
        self.chaos(None)

    def close_streams(self, code: Code = "UNAVAILABLE", message: str = "The server is closing the stream.") -> int:
        """End every open StreamingPull with `code` and return their number."""
        if code not in NUMBERS:
            raise ValueError(f"A stream must end with one of {', '.join(NUMBERS)} (`code`), got {code}.")
        return self._running.dispatcher.close_streams(RpcError(code, message))

    @contextmanager
    def _changing(self) -> Iterator[Registry]:
        parts = self._running
        yield parts.services
        if parts.engine.journal is not None:
            parts.engine.journal.flush()

    @property
    def _running(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("The emulator is not running. Start it, or use it in a `with` block.")
        _check(self._parts.engine)
        return self._parts


def _check(engine: Engine) -> None:
    if engine.failure is not None:
        raise EmulatorFailedError("The emulator has failed. Its log has the cause.") from engine.failure


def _process() -> dict[str, int]:
    """Return the emulator's process, so that no caller ends another one."""
    return {"pid": os.getpid()}
