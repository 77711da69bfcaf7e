"""Commands: the calls that change the state, as plain data (see `state.state`), and how they are carried out again.
Pure.

Changes that a call makes by itself (a tick that expires leases) are part of it. A Replay carries commands out on
another state, which is then in the same state: ids, leases and order included. The commands of two calls include their
result. A Replay that has any other result refuses to continue: an ack that meets another message would lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple

from pubsub_spark.emulator.state.delivery import UNLIMITED, Batch, Consumer
from pubsub_spark.emulator.state.dump import ResourceFormat, dump_schema, load_schemas
from pubsub_spark.emulator.state.events import collection
from pubsub_spark.emulator.state.schema_store import Schema
from pubsub_spark.emulator.state.state import State
from pubsub_spark.emulator.state.subscription import MOST_MESSAGES, Subscription
from pubsub_spark.emulator.state.topic import Snapshot, Topic


class Command(NamedTuple):
    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]  # arguments by keyword
    result: Any  # its result, if a replay must have the same


Listener = Callable[[Command], None]


class ReplayError(Exception):
    """A command fails, or has another result than when it was recorded."""


class _Kind(NamedTuple):
    """`name` is that of the first argument's resource."""

    write: Callable[[ResourceFormat, Any], Any]
    read: Callable[[Replay, Any, str], Any]


def _read_now(replay: Replay, now: float, _: str) -> float:
    replay.now = now
    return now


def _write_resource(resources: ResourceFormat, resource: Any) -> Any:
    return None if resource is None else resources.write(resource)


def _read_resource(replay: Replay, written: Any, name: str) -> Any:
    return None if written is None else replay.resources.read[collection(name)](written)


_PLAIN = _Kind(lambda _, value: value, lambda _, value, __: value)
_NOW = _Kind(lambda _, now: now, _read_now)
_RECORD = _Kind(lambda _, record: record.name, lambda replay, written, _: replay.record(written))
_RESOURCE = _Kind(_write_resource, _read_resource)
_SETTINGS = _Kind(lambda _, __: None, lambda _, __, ___: None)  # they follow from the resource
_CONSUMER = _Kind(lambda _, __: None, lambda _, __, ___: None)
_NUMBERS = _Kind(
    lambda _, numbers: (numbers.start, numbers.stop) if isinstance(numbers, range) else list(numbers),
    lambda _, written, __: range(*written) if isinstance(written, tuple) else written,
)

# The methods of the broker that change it, with the kinds of their arguments. `take` is recorded in its own way.
CHANGES: Mapping[str, tuple[_Kind, ...]] = {
    "create_topic": (_PLAIN, _RESOURCE, _PLAIN),
    "update_topic": (_RECORD, _RESOURCE, _PLAIN, _NOW),
    "delete_topic": (_RECORD,),
    "replace": (_RECORD, _RESOURCE),
    "publish": (_RECORD, _PLAIN, _PLAIN, _NOW),
    "note_ingested": (_RECORD, _PLAIN, _PLAIN),
    "create_subscription": (_PLAIN, _RECORD, _SETTINGS, _NOW, _RESOURCE),
    "configure": (_RECORD, _SETTINGS, _RESOURCE, _NOW),
    "detach_subscription": (_RECORD, _RESOURCE),
    "delete_subscription": (_RECORD,),
    "join": (_RECORD, _CONSUMER),
    "leave": (_RECORD, _CONSUMER, _NOW),
    "ack": (_RECORD, _NUMBERS, _NOW),
    "modify": (_RECORD, _NUMBERS, _PLAIN, _NOW),
    "release": (_RECORD, _NUMBERS, _NOW),
    "tick": (_NOW,),
    "create_snapshot": (_PLAIN, _RECORD, _PLAIN, _NOW, _RESOURCE),
    "update_snapshot": (_RECORD, _RESOURCE, _PLAIN),
    "delete_snapshot": (_RECORD, _NOW),
    "seek_to_time": (_RECORD, _PLAIN, _NOW),
    "seek_to_snapshot": (_RECORD, _RECORD, _NOW),
    "set_chaos": (_PLAIN,),
    "restart": (_NOW,),
}
_SCHEMA_CHANGES = ("create", "commit", "delete_revision")


class Recorder:
    """It passes each later call that changes `state` to `listener`, after it was carried out.

    The state's own attributes route calls through this object. A call on a deleted resource changes nothing and is not
    a command.
    """

    def __init__(self, state: State, resources: ResourceFormat, listener: Listener) -> None:
        self._broker = broker = state.broker
        self._resources = resources
        self._listener = listener
        self._is_nested = False
        for name, kinds in CHANGES.items():
            method = getattr(broker, name)
            setattr(broker, name, self._recorded(method, self._command(name, method, kinds)))
        setattr(broker, "take", self._recorded_take(broker.take))  # noqa: B010 - mypy refuses the plain assignment
        for name in _SCHEMA_CHANGES:
            setattr(state.schemas, name, self._recorded(getattr(state.schemas, name), self._schema_command(state)))
        for target, verb, name in (
            (state.schemas, "delete", "delete_schema"),
            (state.policies, "set", "set_policy"),
            (state, "clear", "clear"),
        ):
            method = getattr(target, verb)
            setattr(target, verb, self._recorded(method, self._command(name, method, (_PLAIN, _PLAIN))))

    def _recorded(self, method: Callable[..., Any], command: Callable[..., Command]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self._is_nested:
                return method(*arguments, **options)
            is_current = all(map(self._is_current, (*arguments, *options.values())))
            self._is_nested = True
            try:
                result = method(*arguments, **options)
            finally:
                self._is_nested = False
            if is_current:
                self._listener(command(arguments, options, result))
            return result

        return call

    def _is_current(self, argument: Any) -> bool:
        broker = self._broker
        if isinstance(argument, Subscription):
            return broker.subscriptions.get(argument.name) is argument
        if isinstance(argument, Topic):
            return broker.topics.get(argument.name) is argument
        return not isinstance(argument, Snapshot) or broker.snapshots.get(argument.name) is argument

    def _command(self, name: str, method: Callable[..., Any], kinds: tuple[_Kind, ...]) -> Callable[..., Command]:
        resources = self._resources
        parameters = signature(method)

        def command(arguments: tuple[Any, ...], options: dict[str, Any], result: Any) -> Command:
            if options:  # by keyword, which the kinds do not know
                bound = parameters.bind(*arguments, **options)
                bound.apply_defaults()
                arguments, options = bound.args, bound.kwargs
            written = tuple([kind.write(resources, value) for kind, value in zip(kinds, arguments, strict=False)])
            return Command(name, written, options, _result(result))

        return command

    def _schema_command(self, state: State) -> Callable[..., Command]:
        """The command has the changed schema, because its revisions have random ids."""

        def command(arguments: tuple[Any, ...], _: dict[str, Any], __: Any) -> Command:
            changed = state.schemas.get(arguments[0].name if isinstance(arguments[0], Schema) else arguments[0])
            assert changed is not None
            return Command("schema", (dump_schema(changed),), {}, None)

        return command

    def _recorded_take(self, method: Callable[..., Batch]) -> Callable[..., Batch]:
        """The command of a take includes the room of its consumer, which a replay does not know."""
        listener = self._listener

        def take(
            subscription: Subscription, consumer: Consumer, now: float, most: int = MOST_MESSAGES, size: int = UNLIMITED
        ) -> Batch:
            room = min(size, consumer.max_size - consumer.size)
            count = min(most, MOST_MESSAGES, consumer.max_messages - consumer.messages)
            can_take = subscription.has_ready and count > 0 and room > 0 and not consumer.closed
            changes = can_take or subscription.chaos is not None or subscription.due() <= now
            is_current = self._is_current(subscription)
            self._is_nested = True
            try:
                batch = method(subscription, consumer, now, most, size)
            finally:
                self._is_nested = False
            if changes and is_current:
                arguments = subscription.name, consumer.ack_deadline, consumer.closed, now, count, room
                listener(Command("take", arguments, {}, _result(batch)))
            return batch

        return take


def _result(result: Any) -> Any:
    """Return the result that a replay must repeat: the message ids of a publish, the leases and messages of a take."""
    if isinstance(result, range):
        return result.start
    if isinstance(result, Batch):
        return result.numbers.start, len(result), [part.first for part in result.parts]
    return None


def _is_same(result: Any, recorded: Any) -> bool:
    """Messages may be in other parts than when they were recorded: version 0.1 parted them elsewhere after a seek."""
    if not isinstance(result, Batch):
        return bool(_result(result) == recorded)
    start, size, firsts = recorded
    numbers = [delivery.message_number for delivery in result.deliveries]
    parts = set(firsts)
    gaps = {number for before, number in pairwise((0, *numbers)) if number != before + 1}
    in_order = firsts == [number for number in numbers if number in parts]
    return in_order and gaps <= parts and (start, size) == (result.numbers.start, len(numbers))


class Replay:
    """A state for carrying out commands. `now` is the time of the last one that had a time."""

    def __init__(self, state: State, resources: ResourceFormat, now: float = 0.0) -> None:
        self.state = state
        self.resources = resources
        self.now = now
        self.commands = 0

    def apply(self, command: Command) -> None:
        """Raise ReplayError."""
        name, arguments, options, result = command
        self.commands += 1
        try:
            outcome = _CALLS[name](self, *arguments) if name in _CALLS else self._call(name, arguments, options)
            is_same = _is_same(outcome, result)
        except Exception as problem:  # from any code that reads a changed argument
            raise ReplayError(f"`{name}` cannot be carried out: {type(problem).__name__}: {problem}") from problem
        finally:
            self.state.events.clear()
            self.state.broker.ready_consumers.clear()
        if not is_same:
            raise ReplayError(f"`{name}` returns {_result(outcome)} instead of {result}")

    def record(self, name: str) -> Topic | Subscription | Snapshot:
        broker = self.state.broker
        records: dict[str, Mapping[str, Any]] = {
            "topics": broker.topics,
            "subscriptions": broker.subscriptions,
            "snapshots": broker.snapshots,
        }
        record: Topic | Subscription | Snapshot = records[collection(name)][name]
        return record

    def connected(self) -> dict[str, int]:
        return {
            subscription.name: len(subscription.consumers.connected)
            for subscription in self.state.broker.subscriptions.values()
            if subscription.consumers.connected
        }

    def connect(self, connected: Mapping[str, int]) -> None:
        """Connect consumers that do nothing, because a subscription with a consumer does not expire."""
        for name, count in connected.items():
            for _ in range(count):
                self._join(name)

    def _call(self, name: str, written: tuple[Any, ...], options: dict[str, Any]) -> Any:
        kinds = CHANGES[name]
        arguments = [kind.read(self, value, written[0]) for kind, value in zip(kinds, written, strict=False)]
        if _SETTINGS in kinds:
            arguments[kinds.index(_SETTINGS)] = self.resources.settings(arguments[kinds.index(_RESOURCE)])
        return getattr(self.state.broker, name)(*arguments, **options)

    def _join(self, name: str, _: None = None) -> None:
        broker = self.state.broker
        broker.join(broker.subscriptions[name], Consumer())

    def _leave(self, name: str, _: None, now: float) -> None:
        broker = self.state.broker
        subscription = broker.subscriptions[name]
        self.now = now
        broker.leave(subscription, next(iter(subscription.consumers.connected), Consumer()), now)

    def _take(self, name: str, deadline: float, closed: bool, now: float, count: int, room: int) -> Batch:
        broker = self.state.broker
        self.now = now
        return broker.take(broker.subscriptions[name], Consumer(deadline, closed=closed), now, count, room)

    def _clear(self) -> None:
        self.state.clear()
        self.now = 0.0  # the clock is also set back


_CALLS: Mapping[str, Callable[..., Any]] = {
    "take": Replay._take,
    "join": Replay._join,
    "leave": Replay._leave,
    "schema": lambda replay, dumped: load_schemas(replay.state.schemas, [dumped]),
    "delete_schema": lambda replay, name: replay.state.schemas.delete(name),
    "set_policy": lambda replay, name, document: replay.state.policies.set(name, document, b""),
    "clear": Replay._clear,
}
