"""The speed of the emulator and of Google's, on this machine, in one run.

    python benchmarks/emulator.py                       ours and, where `gcloud` has it, Google's: the table
    python benchmarks/emulator.py --only ours           ours alone
    python benchmarks/emulator.py --curves              ours: cost per message as backlog, subscriptions, streams grow
    python benchmarks/emulator.py --journal             ours: the cost of a data directory, and a start with a million
    python benchmarks/emulator.py --loads               ours: the memory after the same load, five times
    python benchmarks/emulator.py --soak 300            ours: 100 streams on 10 subscriptions for 300 seconds

The client (emulator_client.py) is in this process, the emulators are in others. 100-byte payloads. Each figure is
the best of three, taken in turn, because the machine also has other things to do.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import shutil
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from emulator_client import PER_REQUEST, Client, drain, googles, ours, publish_request, resident

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.journal import restoring
from pubsub_spark.emulator.journal.files import LogFile

FIRST_ID = 10**16  # of our message ids


# The measurements: each takes an endpoint and returns one figure


def publishing(endpoint: str, clients: int = 1) -> float:
    """Publish 1000, again and again. Each client has a connection of its own."""
    first = Client(endpoint)
    first.create()
    first.publish(10_000)
    request = publish_request(first.topic, PER_REQUEST)
    counts = [0] * clients

    def publish(index: int) -> None:
        client = Client(endpoint)
        while time.perf_counter() - begin < 2:
            client.call("Publisher", "Publish", request)
            counts[index] += PER_REQUEST
        client.close()

    begin = time.perf_counter()
    threads = [threading.Thread(target=publish, args=(index,)) for index in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    rate = sum(counts) / (time.perf_counter() - begin)
    first.delete()
    first.close()
    return rate


def streaming(endpoint: str, count: int = 200_000) -> float:
    client = Client(endpoint)
    client.create()
    client.publish(count)
    return drain(client, count)


def pulling(endpoint: str, clients: int = 1, seconds: float = 2, count: int = 400_000) -> float:
    """Pull 1000, acknowledge them, again. Each client has a connection of its own."""
    first = Client(endpoint)
    first.create()
    first.publish(count)
    counts, last = [0] * clients, [0.0] * clients
    request = protos.PullRequest(subscription=first.subscription, max_messages=1000).SerializeToString()

    def pull(index: int) -> None:
        client = Client(endpoint)
        while time.perf_counter() - begin < seconds and sum(counts) < count:
            received = protos.PullResponse.FromString(client.call("Subscriber", "Pull", request)).received_messages
            if not received:  # the others took the last ones
                break
            acks = protos.AcknowledgeRequest(subscription=first.subscription, ack_ids=[r.ack_id for r in received])
            client.call("Subscriber", "Acknowledge", acks)
            counts[index] += len(received)
            last[index] = time.perf_counter()
        client.close()

    begin = time.perf_counter()
    threads = [threading.Thread(target=pull, args=(index,)) for index in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    rate = sum(counts) / (max(last) - begin)
    first.delete()
    first.close()
    return rate


def pulling_together(endpoint: str) -> float:
    """Return the same for two clients of one subscription."""
    return pulling(endpoint, clients=2)


def latency(endpoint: str, samples: int = 300) -> float:
    """Return median milliseconds from Publish (sent) to StreamingPull (received), one message at a time."""
    client = Client(endpoint)
    client.create()
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    first = protos.StreamingPullRequest(subscription=client.subscription, stream_ack_deadline_seconds=600)
    outgoing.put(first.SerializeToString())
    call = client.stream(iter(outgoing.get, None))
    publish = publish_request(client.topic, 1)
    delays = []
    for _ in range(samples):
        begin = time.perf_counter()
        client.call("Publisher", "Publish", publish)
        received = protos.StreamingPullResponse.FromString(next(call)).received_messages
        delays.append(time.perf_counter() - begin)
        acks = protos.StreamingPullRequest(ack_ids=[each.ack_id for each in received])
        outgoing.put(acks.SerializeToString())
    call.cancel()
    outgoing.put(None)
    client.close()
    return 1000 * statistics.median(delays)


def thousand(endpoint: str) -> float:
    """Return seconds to create 1,000 topics with a subscription each and get a message through every one."""
    begin = time.perf_counter()
    channel = Client(endpoint)
    mark = uuid.uuid4().hex
    for index in range(1000):
        channel.topic, channel.subscription = (
            f"projects/b/topics/t{mark}{index}",
            f"projects/b/subscriptions/s{mark}{index}",
        )
        channel.create()
        channel.call("Publisher", "Publish", publish_request(channel.topic, 1))
    for index in range(1000):
        request = protos.PullRequest(subscription=f"projects/b/subscriptions/s{mark}{index}", max_messages=1)
        received = protos.PullResponse.FromString(channel.call("Subscriber", "Pull", request)).received_messages
        assert 1 == len(received)
    channel.close()
    return time.perf_counter() - begin


MEASURES: dict[str, tuple[Callable[[str], float], str, bool]] = {
    "Publish, 1000 a request": (publishing, "messages/s", True),
    "StreamingPull with acks": (streaming, "messages/s", True),
    "Pull 1000, Acknowledge": (pulling, "messages/s", True),
    "Pull 1000, Acknowledge, 2 clients": (pulling_together, "messages/s", True),
    "Publish to StreamingPull, median": (latency, "ms", False),
    "1,000 topics, subscriptions, messages": (thousand, "s", False),
}


def table(only: str) -> None:
    servers: dict[str, Any] = {"ours": ours, "google": googles}
    if only:
        servers = {only: servers[only]}
    elif not shutil.which("gcloud"):
        del servers["google"]
    figures: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as running:
        endpoints = {name: running.enter_context(server())[0] for name, server in servers.items()}
        for label, (measure, _, more_is_better) in MEASURES.items():
            repetitions = [{name: measure(endpoint) for name, endpoint in endpoints.items()} for _ in range(3)]
            best = max if more_is_better else min
            figures[label] = {name: best(each[name] for each in repetitions) for name in endpoints}
            print(label, figures[label], flush=True)
    print()
    for label, by_server in figures.items():
        unit, more = MEASURES[label][1:]
        row = "  ".join(f"{name} {value:12,.2f}" for name, value in by_server.items())
        ratio = by_server.get("ours", 0) / by_server.get("google", float("inf"))
        ratio = ratio if more or not ratio else 1 / ratio
        print(f"{label:40} {row} {unit}" + (f"  {ratio:6.1f}x" if ratio else ""))


def curves() -> None:
    """Print the cost per message while something grows: each line should stay flat."""
    for backlog in (10_000, 100_000, 1_000_000):
        with ours() as (endpoint, pid):
            before = resident(pid)
            client = Client(endpoint)
            client.create()
            begin = time.perf_counter()
            client.publish(backlog)
            published = backlog / (time.perf_counter() - begin)
            memory = resident(pid) - before
            rate = drain(client, min(backlog, 200_000))
            print(
                f"backlog {backlog:9,}: publish {published:10,.0f}/s  stream {rate:10,.0f}/s  {memory:6.0f} MB",
                flush=True,
            )
    for subscriptions in (1, 10, 100, 1000):
        with ours() as (endpoint, _):
            client = Client(endpoint)
            client.create()
            for index in range(subscriptions - 1):
                name = f"projects/bench/subscriptions/other{index}"
                client.call("Subscriber", "CreateSubscription", protos.Subscription(name=name, topic=client.topic))
            begin = time.perf_counter()
            client.publish(50_000)
            published = 50_000 / (time.perf_counter() - begin)
            rate = drain(client, 50_000)
            print(f"subscriptions {subscriptions:5,}: publish {published:10,.0f}/s  stream {rate:10,.0f}/s", flush=True)
    for streams in (1, 4, 16, 64, 256):
        with ours() as (endpoint, _):
            client = Client(endpoint)
            client.create()
            client.publish(200_000)
            print(f"streams {streams:5,}: stream {drain(client, 200_000, streams):10,.0f}/s", flush=True)


def journal() -> None:
    """Compare Publish with a data directory to Publish without, in turn. Then measure a start with a million."""
    with contextlib.ExitStack() as running:
        folders = {name: running.enter_context(tempfile.TemporaryDirectory()) for name in ("group", "call", "never")}
        servers = {"without": running.enter_context(ours())[0]}
        servers |= {name: running.enter_context(ours(folder, name))[0] for name, folder in folders.items()}
        for clients in (1, 4):
            rates: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(5):
                for name, endpoint in servers.items():
                    rates[name].append(publishing(endpoint, clients))
            for name, measured in rates.items():
                ratio = max(measured) / max(rates["without"])
                print(
                    f"{clients} publishing, {name:8} best {max(measured):10,.0f}/s  {ratio:5.2f} of without", flush=True
                )
    with tempfile.TemporaryDirectory() as folder:
        with ours(folder) as (endpoint, _):
            client = Client(endpoint)
            client.create()
            client.publish(1_000_000)
            client.close()
        for begins_with in ("log", "base"):
            begin = time.perf_counter()
            with ours(folder) as (_, pid):
                seconds = time.perf_counter() - begin
                print(
                    f"start with a million messages, {begins_with}: {seconds:.1f} s, {resident(pid):.0f} MB", flush=True
                )
            log = LogFile(Path(folder))
            restoring.write_base(Path(folder), log.number)
            log.rebase(log.number)
            log.close()


def loads() -> None:
    """Print the memory of one emulator after a suite's load, five times: it is freed, and does not grow."""
    with ours() as (endpoint, pid):
        print(f"start: {resident(pid):.0f} MB", flush=True)
        for number in range(1, 6):
            client = Client(endpoint)
            client.create()
            client.publish(100_000)
            for _ in range(10):
                client.call("Publisher", "Publish", publish_request(client.topic, 1, b"x" * 5_000_000))
            drain(client, 100_010, 4)
            cleaning = Client(endpoint)
            cleaning.subscription = client.subscription
            cleaning.delete()
            for _ in range(100):
                cleaning.topic = f"projects/bench/topics/t{uuid.uuid4().hex}"
                cleaning.subscription = f"projects/bench/subscriptions/s{uuid.uuid4().hex}"
                cleaning.create()
                cleaning.call("Publisher", "Publish", publish_request(cleaning.topic, 1))
                cleaning.delete()
                cleaning.call("Publisher", "DeleteTopic", protos.DeleteTopicRequest(topic=cleaning.topic))
            cleaning.close()
            most = resident(pid)
            time.sleep(10)
            print(f"load {number}: {most:.0f} MB, idle {resident(pid):.0f} MB", flush=True)


def soak(seconds: float) -> None:
    """Run many streams for minutes. Everything arrives, and memory stays at its level after the first minute."""
    subscriptions, streams_each, rate = 10, 10, 20
    with ours() as (endpoint, pid):
        clients = [Client(endpoint) for _ in range(subscriptions)]
        for each in clients:
            each.topic = clients[0].topic
        clients[0].create()
        for each in clients[1:]:
            each.call(
                "Subscriber",
                "CreateSubscription",
                protos.Subscription(name=each.subscription, topic=each.topic, ack_deadline_seconds=10),
            )
        seen = [bytearray(int(rate * 100 * seconds) + 100_000) for _ in clients]  # a mark for each message id
        stop = threading.Event()
        for index, each in enumerate(clients):
            for _ in range(streams_each):
                threading.Thread(target=_consume, args=(each, seen[index], stop), daemon=True).start()
        begin = time.perf_counter()
        published, first, ticks = 0, 0.0, 0
        request = publish_request(clients[0].topic, 100)
        while (elapsed := time.perf_counter() - begin) < seconds:
            clients[0].call("Publisher", "Publish", request)
            published += 100
            if elapsed > 10 * ticks:
                ticks += 1
                first = first or (resident(pid) if elapsed > 60 else 0.0)
                print(
                    f"{elapsed:6.0f} s {published:10,} published {_marks(seen):12,} acked {resident(pid):6.0f} MB",
                    flush=True,
                )
            stop.wait(1 / rate)
        while _marks(seen) < published * subscriptions and time.perf_counter() - begin < seconds + 60:
            stop.wait(0.1)
        counts = sorted(sum(marks) for marks in seen)
        print(
            f"published {published:,}; different messages acked on each subscription: {counts[0]:,} to {counts[-1]:,}"
        )
        print(f"memory after a minute {first:.0f} MB, at the end {resident(pid):.0f} MB")
        stop.set()
        for each in clients:
            each.close()


def _marks(seen: list[bytearray]) -> int:
    return sum(sum(marks) for marks in seen)


def _consume(client: Client, seen: bytearray, stop: threading.Event) -> None:
    """Ack the messages of a stream, nack one in a hundred once, and reopen the stream every 500 messages."""
    nacked: set[str] = set()
    while not stop.is_set():
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        first = protos.StreamingPullRequest(subscription=client.subscription, stream_ack_deadline_seconds=10)
        outgoing.put(first.SerializeToString())
        call = client.stream(iter(outgoing.get, None))
        got = 0
        with contextlib.suppress(grpc.RpcError, ValueError):
            for raw in call:
                messages = protos.StreamingPullResponse.FromString(raw).received_messages
                bad = [
                    each
                    for each in messages
                    if each.message.message_id.endswith("00") and each.message.message_id not in nacked
                ]
                nacked.update(each.message.message_id for each in bad)
                refused = {each.ack_id for each in bad}
                good = [each.ack_id for each in messages if each.ack_id not in refused]
                answer = protos.StreamingPullRequest(
                    ack_ids=good, modify_deadline_ack_ids=refused, modify_deadline_seconds=[0] * len(refused)
                )
                outgoing.put(answer.SerializeToString())
                for each in messages:
                    if each.ack_id not in refused:
                        seen[int(each.message.message_id) - FIRST_ID] = 1
                got += len(messages)
                if got >= 500 or stop.is_set():
                    break
        outgoing.put(None)
        time.sleep(0.05)  # the acks on their way
        call.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("ours", "google"), default="")
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--journal", action="store_true")
    parser.add_argument("--loads", action="store_true")
    parser.add_argument("--soak", type=float, default=0, metavar="SECONDS")
    options = parser.parse_args()
    if options.soak:
        soak(options.soak)
    elif options.curves:
        curves()
    elif options.journal:
        journal()
    elif options.loads:
        loads()
    else:
        table(options.only)
