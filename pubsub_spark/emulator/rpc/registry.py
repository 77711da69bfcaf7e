"""The table of RPCs: the handler of each method, and how it runs.

Most handlers accept a request message and return a response message. Those of the hot calls (Publish, Pull,
Acknowledge, ModifyAckDeadline) accept and return bytes. StreamingPull, the one stream, is not in the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pubsub_spark.emulator.api.routes import routes
from pubsub_spark.emulator.handlers.iam import IamPolicy
from pubsub_spark.emulator.handlers.publisher import Publisher
from pubsub_spark.emulator.handlers.schemas import SchemaService
from pubsub_spark.emulator.handlers.snapshots import Snapshots
from pubsub_spark.emulator.handlers.subscriber import Subscriber
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.state import wire_format

PUBLISHER = "google.pubsub.v1.Publisher"
SUBSCRIBER = "google.pubsub.v1.Subscriber"
PUBLISH = f"/{PUBLISHER}/Publish"
STREAMING_PULL = f"/{SUBSCRIBER}/StreamingPull"

# RPCs that may take more than a few milliseconds: they compile schemas, or go through a backlog.
_SLOW = frozenset(
    {"CreateSchema", "CommitSchema", "RollbackSchema", "ValidateSchema", "ValidateMessage", "CreateSnapshot", "Seek"}
)
# RPC -> the field of its request that is the resource, or the request itself if there is no field.
_WITH_TRANSFORMS = {
    "CreateTopic": "",
    "UpdateTopic": "topic",
    "CreateSubscription": "",
    "UpdateSubscription": "subscription",
}
_LARGE_PUBLISH_BYTES = 1_000_000
_MAX_NAME_BYTES = 1000


class Rpc(NamedTuple):
    handler: Callable[..., Any]  # accepts the request's bytes and the context, returns the response's bytes
    is_slow: Callable[[bytes], bool]  # whether this request belongs on the pool
    waits: bool = False  # the handler is a coroutine function
    thread: Callable[[bytes], Executor | None] = lambda _: None  # the only one that may run this request


class Registry:
    def __init__(
        self,
        engine: Engine,
        faults: Faults,
        *,
        allow_well_known_imports: bool = False,
        exports: Collection[str] = (),
    ) -> None:
        self._engine = engine
        self.publisher = Publisher(engine)
        self.subscriber = Subscriber(engine, faults, exports)
        self.snapshots = Snapshots(engine)
        self.schemas = SchemaService(engine, allow_well_known_imports=allow_well_known_imports)
        self.iam = IamPolicy(engine)

    def table(self) -> dict[str, Rpc]:
        """The keys are methods, as in `/google.pubsub.v1.Publisher/Publish`."""
        services = (self.publisher, self.subscriber, self.snapshots, self.schemas, self.iam)
        table: dict[str, Rpc] = {}
        for route in routes():
            name = route.rpc.rpartition("/")[2]
            handler = next(method for service in services if (method := getattr(service, _snake_case(name), None)))
            is_slow = _always if name in _SLOW else _never
            if name in _WITH_TRANSFORMS:
                is_slow = partial(_has_transforms, route.request, _WITH_TRANSFORMS[name])
            table[route.rpc] = Rpc(_parsing(route.request, handler), is_slow)
        subscriber = self.subscriber
        publish = Rpc(self._publish, self._is_slow_publish, thread=self._transforming_thread)
        table[PUBLISH] = publish
        table[f"/{SUBSCRIBER}/Pull"] = Rpc(subscriber.pull, _never, waits=True)
        table[f"/{SUBSCRIBER}/Acknowledge"] = Rpc(_ignoring_context(subscriber.acknowledge), _never)
        table[f"/{SUBSCRIBER}/ModifyAckDeadline"] = Rpc(_ignoring_context(subscriber.modify_ack_deadline), _never)
        return table

    def _publish(self, raw: bytes, context: RpcContext) -> bytes:
        return self.publisher.publish(raw, context.answer)

    def _is_slow_publish(self, raw: bytes) -> bool:
        """Return whether a Publish is large or may need a schema: its topic has one, or is not the first field."""
        name, _ = wire_format.subscription_and_rest(raw[:_MAX_NAME_BYTES])  # a PublishRequest begins the same way
        topic = self._engine.broker.topics.get(name)
        has_schema = topic.resource.HasField("schema_settings") if topic else not name
        return has_schema or len(raw) > _LARGE_PUBLISH_BYTES

    def _transforming_thread(self, raw: bytes) -> Executor | None:
        name, _ = wire_format.subscription_and_rest(raw[:_MAX_NAME_BYTES])
        topic = self._engine.broker.topics.get(name)
        if topic is None or not topic.resource.message_transforms:
            return None
        runner = self._engine.transforms.runner(name, topic.resource)
        return None if runner is None else runner.executor

    def reset(self) -> None:
        with self._engine.open():
            self._engine.transforms.clear()
            self._engine.state.clear()
            self._engine.restart_clock()


def _parsing(request: Any, handler: Callable[[Any], Any]) -> Callable[[bytes, RpcContext], bytes]:
    def parse_and_handle(raw: bytes, _: RpcContext) -> bytes:
        response: bytes = handler(request.FromString(raw)).SerializeToString()
        return response

    return parse_and_handle


def _ignoring_context(handler: Callable[[bytes], bytes]) -> Callable[[bytes, RpcContext], bytes]:
    return lambda raw, _: handler(raw)


def _never(_: bytes) -> bool:
    return False


def _always(_: bytes) -> bool:
    return True


def _has_transforms(request: Any, field: str, raw: bytes) -> bool:
    """Transforms are slow to set, because their code is run then."""
    try:
        parsed = request.FromString(raw)
    except DecodeError:  # the handler reports it
        return False
    return bool((getattr(parsed, field) if field else parsed).message_transforms)


def _snake_case(rpc: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower()
