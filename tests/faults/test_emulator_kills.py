"""kill -9 of an emulator with a data directory, under load, again and again.

Google's client publishes, pulls, acknowledges and nacks from several threads while the emulator is killed after a
moment that a seed chooses, sometimes while it writes a base. The answers are compared with the messages at the end: no
answered publish is lost, no message of an answered ack is redelivered, and messages of a key are delivered in order.

EMULATOR_KILLS is the number of kills. `make kills` does it 200 times.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import grpc
import pytest
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.cloud.pubsub_v1.types import PubsubMessage
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT

KILLS = int(os.environ.get("EMULATOR_KILLS", "10"))
SEED = int(os.environ.get("EMULATOR_KILLS_SEED", "1"))
MOST_LOAD_SECONDS = (0.1, 0.4, 2.0)  # one of them for each life. A base takes more than a second
# A base after a few groups instead of after 128 MB.
SERVE = (
    "import sys; from pathlib import Path; from pubsub_spark.emulator.journal import journal;"
    "from pubsub_spark.emulator.serve import ServeOptions, serve; journal.MIN_LOG_BYTES = 400_000;"
    "raise SystemExit(serve(ServeOptions(port=0, data_dir=Path(sys.argv[1]))))"
)
TOPIC = "projects/p/topics/topic"
PLAIN, ORDERED = "projects/p/subscriptions/plain", "projects/p/subscriptions/ordered"
KEYS = ("a", "b", "c")


class Answers:
    """The emulator's answers: publishes, and acks with the number of their life."""

    def __init__(self) -> None:
        self.published: dict[str, bytes] = {}  # by message id
        self.acked: dict[str, dict[str, int]] = {PLAIN: {}, ORDERED: {}}
        self.unanswered: dict[str, set[str]] = {PLAIN: set(), ORDERED: set()}  # acks that may or may not be kept
        self.revived: list[str] = []
        self.life = 0

    def received(self, subscription: str, message_id: str) -> None:
        """Note a message that was acked in an earlier life."""
        if self.acked[subscription].get(message_id, self.life) < self.life:
            self.revived.append(message_id)


class Clients:
    """Google's clients of one life, without retries: an error is a missing answer."""

    def __init__(self, endpoint: str) -> None:
        self.channel = grpc.insecure_channel(endpoint)
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self.subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))

    def publish(self, answers: Answers, who: int, random: Random) -> None:
        # The calls of one publisher are one after the other, so that the messages of its keys have an order.
        key = f"{KEYS[random.randrange(3)]}{who}" if random.random() < 0.5 else ""
        data = [
            f"{time.monotonic_ns()} {key} {random.random()}".encode() for _ in range(random.choice((1, 1, 20, 200)))
        ]
        messages = [PubsubMessage(data=each, ordering_key=key) for each in data]
        ids = self.publisher.publish(topic=TOPIC, messages=messages, retry=None, timeout=5).message_ids
        answers.published.update(zip(ids, data, strict=True))

    def pull(self, answers: Answers, subscription: str, random: Random) -> None:
        most = random.choice((1, 50, 300))
        pulled = self.subscriber.pull(
            subscription=subscription, max_messages=most, retry=None, timeout=5
        ).received_messages
        for each in pulled:
            answers.received(subscription, each.message.message_id)
        # The first ones, because messages behind a gap of their key are redelivered.
        done = pulled[: random.randint(0, len(pulled))]
        if done:
            ids = [each.ack_id for each in done]
            asked = {each.message.message_id for each in done}
            answers.unanswered[subscription] |= asked
            self.subscriber.acknowledge(subscription=subscription, ack_ids=ids, retry=None, timeout=5)
            answers.unanswered[subscription] -= asked
            for each in done:
                answers.acked[subscription].setdefault(each.message.message_id, answers.life)
        rest = [each.ack_id for each in pulled[len(done) :]]
        if rest:
            self.subscriber.modify_ack_deadline(
                subscription=subscription, ack_ids=rest, ack_deadline_seconds=0, retry=None, timeout=5
            )


@contextlib.contextmanager
def one_life(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as it:
        try:
            assert it.stdout is not None
            yield it.stdout.readline().strip().partition("=")[2], it
        finally:
            it.kill()


def load(clients: Clients, answers: Answers, seconds: float, seed: int, process: subprocess.Popen[str]) -> None:
    """Use the emulator from five threads until it is killed after `seconds`."""
    killed = threading.Event()
    unexpected: list[BaseException] = []

    def repeat(call: Callable[[Random], None], thread: int) -> None:
        random = Random(f"{seed} {answers.life} {thread}")
        try:
            while not killed.is_set():
                call(random)
        except (GoogleAPICallError, RetryError) as error:
            if not killed.is_set() and process.poll() is None and not killed.wait(1):
                unexpected.append(error)

    calls: list[Callable[[Random], None]] = [
        lambda random: clients.publish(answers, 0, random),
        lambda random: clients.publish(answers, 1, random),
        lambda random: clients.pull(answers, PLAIN, random),
        lambda random: clients.pull(answers, PLAIN, random),
        lambda random: clients.pull(answers, ORDERED, random),
    ]
    threads = [threading.Thread(target=repeat, args=(call, index)) for index, call in enumerate(calls)]
    for each in threads:
        each.start()
    threading.Event().wait(seconds)
    process.kill()
    killed.set()
    for each in threads:
        each.join()
    assert [] == unexpected


def drain(emulator: Emulator, clients: Clients, subscription: str) -> dict[str, PubsubMessage]:
    """Return every message that is left, in order of arrival."""
    found: dict[str, PubsubMessage] = {}
    emulator.advance(601)
    while emulator.backlog(subscription):
        pulled = clients.subscriber.pull(subscription=subscription, max_messages=1000).received_messages
        for each in pulled:
            found.setdefault(each.message.message_id, each.message)
        clients.subscriber.acknowledge(subscription=subscription, ack_ids=[each.ack_id for each in pulled])
    return found


@pytest.mark.timeout(60 + 10 * KILLS)
@pytest.mark.long
def test_a_kill_loses_no_answered_publish_and_revives_no_answered_ack(tmp_path: Path):
    """After each kill every answered message is kept, and no acked message is redelivered."""
    random, answers, bases = Random(SEED), Answers(), 0
    with Emulator(data_dir=tmp_path) as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(PLAIN, TOPIC, ack_deadline_seconds=600)
        emulator.create_subscription(
            ORDERED, TOPIC, ack_deadline_seconds=600, enable_message_ordering=True, enable_exactly_once_delivery=True
        )
    for answers.life in range(KILLS):
        with one_life(tmp_path) as (endpoint, process):
            assert endpoint, "the emulator did not start again"
            clients = Clients(endpoint)
            with clients.channel:
                load(clients, answers, random.uniform(0, random.choice(MOST_LOAD_SECONDS)), SEED, process)
        bases += any(tmp_path.glob("base-*.sqlite"))

    answers.life = KILLS
    with Emulator(data_dir=tmp_path) as emulator:
        clients = Clients(emulator.endpoint)
        with clients.channel:
            left = {subscription: drain(emulator, clients, subscription) for subscription in answers.acked}
    acked = sum(map(len, answers.acked.values()))
    print(f"{KILLS} kills, {len(answers.published)} publishes and {acked} acks answered, {bases} with a base")  # noqa: T201

    assert len(answers.published) > KILLS
    assert [] == answers.revived
    for subscription, found in left.items():
        done = answers.acked[subscription]
        assert set() == done.keys() & found.keys()
        lost = answers.published.keys() - done.keys() - answers.unanswered[subscription] - found.keys()
        assert set() == lost
        assert all(found[each].data == data for each, data in answers.published.items() if each in found)
    by_key: dict[str, list[int]] = defaultdict(list)
    for message_id, message in left[ORDERED].items():
        if message.ordering_key:
            by_key[message.ordering_key].append(int(message_id))
    assert all(ids == sorted(ids) for ids in by_key.values())
