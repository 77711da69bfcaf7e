"""`pubsub-spark dead-letters`: show the messages of a dead-letter topic, and publish them to their original topics.

A dead letter has attributes that Pub/Sub's dead-letter policy or the connector's `deadLetterTopic` added. SUBSCRIPTION
is a subscription of the dead-letter topic.

Every message that a command pulls is leased until the command ends, so that none is delivered twice. A message is
acknowledged only after Pub/Sub has accepted its copy: a command that is killed loses nothing, and its last requests may
be published again.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .backlog import comes_within, interrupts
from .command import Service, command, exit_with, names_of, seconds
from .help import App
from .messages import as_json, print_message, printable
from .output import print_json, print_table, progress

if TYPE_CHECKING:
    from ..backend.admin import Admin

app = App(name="dead-letters", help="Show dead letters, and publish them to their source topics.")

_PUBSUB = "CloudPubSubDeadLetterSource"  # the prefix of the attributes that a dead-letter policy adds
_LEASE_SECONDS = 600  # Pub/Sub's longest
_WAIT_SECONDS = 2.0  # of a pull for a first message
_REQUEST_MESSAGES = 1000  # Pub/Sub's limit for a pull, and ack ids well within a request
_REQUEST_BYTES = 9_000_000  # of payloads, without attributes: Pub/Sub's limit is 10 MB

_Subscription = Annotated[
    str, typer.Argument(**names_of("subscriptions", "SUBSCRIPTION"), help="A subscription of the dead-letter topic.")
]
_Where = Annotated[
    str | None,
    typer.Option(
        metavar="FILTER",
        help="Only dead letters whose attributes match, in the language of subscription filters: "
        'hasPrefix(attributes.pubsub_spark_error, "...").',
    ),
]
_To = Annotated[
    str | None, typer.Option(**names_of("topics", "TOPIC"), help="Publish to this topic.", show_default="their own")
]
_Idle = Annotated[
    Any, typer.Option(parser=seconds, metavar="DURATION", help="End when no message arrives for this time.")
]


@dataclass(frozen=True)
class _Letter:
    """A dead letter. `source` is the full name of the subscription of the original message, or None if it names none.

    `problem` is the reason why it cannot be redriven, or "".
    """

    received: Any
    reason: str
    source: str | None
    attributes: dict[str, str]
    ordering_key: str
    problem: str

    @classmethod
    def of(cls, received: Any) -> _Letter:
        from ..names import SCHEMA_PREFIX
        from ..publish.dead_letters import (
            ERROR_ATTRIBUTE,
            INCOMPLETE_ATTRIBUTE,
            ORDERING_KEY_ATTRIBUTE,
            SIZE_ATTRIBUTE,
        )
        from ..read.dead_letters import ID_ATTRIBUTE, SUBSCRIPTION_ATTRIBUTE

        message, attributes = received.message, dict(received.message.attributes)
        added = {
            *(ERROR_ATTRIBUTE, SIZE_ATTRIBUTE, ORDERING_KEY_ATTRIBUTE, INCOMPLETE_ATTRIBUTE, ID_ATTRIBUTE),
            SUBSCRIPTION_ATTRIBUTE,
        }
        deliveries = attributes.get(f"{_PUBSUB}DeliveryCount")
        cut = attributes.get(INCOMPLETE_ATTRIBUTE)
        source = attributes.get(SUBSCRIPTION_ATTRIBUTE)
        if id_ := attributes.get(f"{_PUBSUB}Subscription"):
            source = f"projects/{attributes.get(f'{_PUBSUB}SubscriptionProject')}/subscriptions/{id_}"
        reason = attributes.get(ERROR_ATTRIBUTE) or (deliveries and f"not acknowledged in {deliveries} deliveries")
        problem = "" if reason else "no dead letter: its attributes name no reason"
        if cut:
            problem = f"not complete in the dead letter ({cut.replace(',', ', ')})"
        return cls(
            received,
            reason or "-",
            source,
            {
                key: value
                for key, value in attributes.items()
                if key not in added and not key.startswith((_PUBSUB, SCHEMA_PREFIX))
            },
            attributes.get(ORDERING_KEY_ATTRIBUTE, message.ordering_key),
            problem,
        )

    def message(self, **delivery: Any) -> Any:
        """Return the message as its publisher made it. delivery: the fields that Pub/Sub sets."""
        from google.pubsub_v1 import types

        data = self.received.message.data
        return types.PubsubMessage(data=data, attributes=self.attributes, ordering_key=self.ordering_key, **delivery)


class Pulled:
    def __init__(self, admin: Admin, subscription: str) -> None:
        self._admin = admin
        self._subscription = subscription
        self._ack_ids: dict[str, str] = {}  # of the last delivery, by message id
        self._acknowledged: set[str] = set()

    def letters(
        self, matches: Callable[[Mapping[str, str]], bool], idle: float, most: int, interrupted: SimpleQueue[int]
    ) -> Iterator[list[_Letter]]:
        """Yield lists of up to `most` dead letters that match, each once, until none came for `idle` seconds."""
        last = time.monotonic()
        while interrupted.empty() and time.monotonic() - last < idle:
            fresh = self._pull(most, min(idle, _WAIT_SECONDS))
            if fresh:
                yield [_Letter.of(received) for received in fresh if matches(received.message.attributes)]
                last = time.monotonic()

    def _pull(self, most: int, wait: float) -> list[Any]:
        received = self._admin.pull(self._subscription, most, wait)
        again = [delivery for delivery in received if delivery.message.message_id in self._acknowledged]
        if again:  # its ack came after the end of its lease, or was lost
            self._admin.acknowledge(self._subscription, [delivery.ack_id for delivery in again])
        held = [delivery for delivery in received if delivery.message.message_id not in self._acknowledged]
        if held:
            self._admin.lease(self._subscription, [delivery.ack_id for delivery in held], _LEASE_SECONDS)
        fresh = [delivery for delivery in held if delivery.message.message_id not in self._ack_ids]
        self._ack_ids |= {delivery.message.message_id: delivery.ack_id for delivery in held}
        return fresh

    def acknowledge(self, letters: Sequence[_Letter]) -> None:
        ids = [letter.received.message.message_id for letter in letters]
        self._admin.acknowledge(self._subscription, [self._ack_ids.pop(message_id) for message_id in ids])
        self._acknowledged.update(ids)

    def give_back(self) -> None:
        """Have Pub/Sub redeliver the others, at the latest at the end of their leases."""
        from ..errors import PubSubError

        ack_ids = [*self._ack_ids.values()]
        with suppress(PubSubError):
            for start in range(0, len(ack_ids), _REQUEST_MESSAGES):
                self._admin.nack(self._subscription, ack_ids[start : start + _REQUEST_MESSAGES])


class _Topics:
    """The topics for dead letters: `to`, or those of their subscriptions, each looked up once."""

    def __init__(self, admin: Admin, to: str | None) -> None:
        self._admin = admin
        self._to = to
        self._found: dict[str, tuple[str | None, str]] = {}

    def of(self, letter: _Letter) -> tuple[str | None, str]:
        """Return the full name of the topic, or None and the reason for that."""
        if self._to is not None:
            return self._to, ""
        if letter.source is None:
            return None, "without the name of a subscription: pass `--to TOPIC`"
        if letter.source not in self._found:
            self._found[letter.source] = self._look_up(letter.source)
        return self._found[letter.source]

    def _look_up(self, source: str) -> tuple[str | None, str]:
        from ..errors import ResourceError
        from ..names import DELETED_TOPIC

        try:
            topic = str(self._admin.subscription(source).topic)
        except ResourceError as error:
            return None, f"without a topic: {error} Pass `--to TOPIC`"
        if topic == DELETED_TOPIC:
            return None, f"without a topic: that of `{source}` was deleted. Pass `--to TOPIC`"
        return topic, ""


@contextmanager
def _pulled(service: Service, subscription: str) -> Iterator[tuple[Admin, Pulled]]:
    with service.connect() as admin:
        pulled = Pulled(admin, subscription)
        try:
            yield admin, pulled
        finally:
            pulled.give_back()


def _predicate(where: str | None) -> Callable[[Mapping[str, str]], bool]:
    from ..emulator.resources import filter as filters

    try:
        return filters.compile(where or "")
    except ValueError as error:
        exit_with(str(error), 2)


@command(app, "ls")
def ls(
    service: Service,
    subscription: _Subscription,
    where: _Where = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Count at most N dead letters.")] = 10_000,
    idle_timeout: _Idle = "5s",
) -> None:
    """Count dead letters by reason and by the subscription whose messages they were. Nack them."""
    name, matches = service.full(subscription, "subscriptions"), _predicate(where)
    counts: Counter[tuple[str, str]] = Counter()
    oldest: dict[tuple[str, str], datetime.datetime] = {}
    with _pulled(service, name) as (_, pulled):
        for letters in progress(
            pulled.letters(matches, idle_timeout, min(limit, _REQUEST_MESSAGES), interrupts()), "counting"
        ):
            for letter in letters[: limit - counts.total()]:
                key, published = (letter.reason, letter.source or ""), letter.received.message.publish_time
                counts[key] += 1
                oldest[key] = min(published, oldest.get(key, published))
            if counts.total() == limit:
                typer.echo(f"`--limit` {limit} is reached: there may be more.", err=True)
                break
    if service.as_json:
        print_json(
            [
                {"reason": key[0], "subscription": key[1] or None, "messages": count, "oldest": oldest[key].isoformat()}
                for key, count in counts.most_common()
            ]
        )
        return
    rows = [
        (str(count), printable(key[0]), printable(key[1]) or "-", f"{oldest[key]:%Y-%m-%d %H:%M:%S} UTC")
        for key, count in counts.most_common()
    ]
    print_table(("messages", "reason", "subscription", "oldest"), rows)


@command(app, "show")
def show(
    service: Service,
    subscription: _Subscription,
    where: _Where = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show at most N dead letters.")] = 10,
    idle_timeout: _Idle = "5s",
) -> None:
    """Show the messages of dead letters, with the attributes and the ordering key that their publishers set, and the
    reasons. Nack them."""
    from google.pubsub_v1 import types

    name, matches = service.full(subscription, "subscriptions"), _predicate(where)
    shown: list[dict[str, Any]] = []
    with _pulled(service, name) as (_, pulled):
        for letters in pulled.letters(matches, idle_timeout, min(limit, _REQUEST_MESSAGES), interrupts()):
            for letter in letters[: limit - len(shown)]:
                delivered = letter.received.message
                message = letter.message(message_id=delivered.message_id, publish_time=delivered.publish_time)
                about = {"reason": letter.reason, "subscription": letter.source}
                shown.append(as_json(types.ReceivedMessage(message=message)) | about)
                if not service.as_json:
                    typer.secho(printable(f"{letter.reason}  {letter.source or ''}"), fg="red")
                    print_message(shown[-1])
            if len(shown) == limit:
                break
    if service.as_json:
        print_json(shown)


@command(app, "redrive")
def redrive(
    service: Service,
    subscription: _Subscription,
    to: _To = None,
    where: _Where = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Redrive at most N messages.", show_default="all")
    ] = None,
    rate: Annotated[int, typer.Option(min=1, metavar="N", help="At most this many messages a second.")] = 100,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the messages that would be published.")] = False,
    idle_timeout: _Idle = "5s",
) -> None:
    """Publish the original messages of dead letters again, and acknowledge the dead letters.

    Each message goes to the topic of its original subscription. All subscriptions of that topic receive it. The command
    ends when no dead letter arrives for `--idle-timeout`. Ctrl-C ends it after the current request.
    """
    name, matches = service.full(subscription, "subscriptions"), _predicate(where)
    target = None if to is None else service.full(to, "topics")
    started, interrupted = datetime.datetime.now(datetime.UTC), interrupts()
    with _pulled(service, name) as (admin, pulled), _Report(service, name, dry_run) as report:
        topics = _Topics(admin, target)
        most = min(rate, limit or rate, _REQUEST_MESSAGES)
        for letters in progress(pulled.letters(matches, idle_timeout, most, interrupted), "redriving"):
            began, before = time.monotonic(), report.redriven.total()
            groups: dict[tuple[str, str], list[_Letter]] = {}
            chosen = 0
            for letter in letters:
                topic, problem = topics.of(letter)
                is_new = letter.received.message.publish_time > started
                problem = letter.problem or problem or ("dead since this run began" if is_new else "")
                if topic is None or problem:
                    report.left[problem] += 1
                elif limit is None or before + chosen < limit:
                    groups.setdefault((topic, letter.ordering_key), []).append(letter)
                    chosen += 1
            for (topic, _), group in groups.items():
                for request in split_requests(group):
                    if interrupted.empty():
                        _redrive(admin, pulled, report, topic, request)
            redriven = report.redriven.total()
            if redriven == limit or comes_within(
                0 if dry_run else (redriven - before) / rate - (time.monotonic() - began), interrupted
            ):
                break
        if not interrupted.empty():
            exit_with("Interrupted. The other dead letters stay: run the command again for them.")
    if report.left:
        raise typer.Exit(1)


def _redrive(admin: Admin, pulled: Pulled, report: _Report, topic: str, letters: list[_Letter]) -> None:
    """Publish messages, one by one if Pub/Sub refuses some, and acknowledge their dead letters."""
    from ..errors import InvalidError

    if not report.dry_run:
        report.uncertain = len(letters)
        try:
            admin.publish(topic, [letter.message() for letter in letters])
        except InvalidError as error:
            report.uncertain = 0
            if len(letters) == 1:
                report.left[f"refused: {error}"] += 1
            else:
                for letter in letters:
                    _redrive(admin, pulled, report, topic, [letter])
            return
        pulled.acknowledge(letters)
        report.uncertain = 0
    report.redriven[topic] += len(letters)


class _Report:
    """The result of a redrive, printed at its end, also if an error or Ctrl-C ends it.

    `redriven` counts messages by topic, `left` dead letters by the reason why they stay. `uncertain` is the number of
    messages that may be published although their dead letters are not acknowledged.
    """

    def __init__(self, service: Service, subscription: str, dry_run: bool) -> None:
        self.redriven: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.uncertain = 0
        self.dry_run = dry_run
        self._service = service
        self._subscription = subscription

    def __enter__(self) -> _Report:
        return self

    def __exit__(self, *_: object) -> None:
        if self._service.as_json:
            counts = {"redriven": dict(self.redriven), "left": dict(self.left), "uncertain": self.uncertain}
            print_json(counts | {"dryRun": self.dry_run})
            return
        for topic, count in self.redriven.items():
            typer.echo(f"{'would redrive' if self.dry_run else 'redrove'} {count} messages to {topic}")
        if not self.redriven:
            typer.echo("no messages to redrive")
        for problem, count in self.left.items():
            typer.echo(f"left {count} in {self._subscription}: {printable(problem)}", err=True)
        if self.uncertain:
            typer.echo(f"{self.uncertain} more may be published: the next run publishes them again", err=True)


def split_requests(letters: list[_Letter]) -> Iterator[list[_Letter]]:
    import numpy as np

    from ..slices import slices

    sizes = [len(letter.received.message.data) for letter in letters]
    for start, end in slices(np.cumsum([0, *sizes]), _REQUEST_MESSAGES, _REQUEST_BYTES):
        yield letters[start:end]
