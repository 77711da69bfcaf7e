"""Ingestion from Kafka (librdkafka's broker) as Amazon MSK, Confluent Cloud and Azure Event Hubs: once, with states."""

from __future__ import annotations

import socket
import socketserver
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.transport.listener import tls_context
from tests.rpc.certificate import self_signed
from tests.rpc.conftest import SUB, TOPIC, Client, wait_until
from tests.rpc.test_data_dir import COMMAND
from tests.rpc.test_ingestion import LOOK_SECONDS, left, update

ACTIVE, RESOURCE_ERROR = 1, 2
ROLES = {"aws_role_arn": "arn:aws:iam::1:role/r", "gcp_service_account": "a@p.iam.gserviceaccount.com"}
# Source -> its settings but the topic, the field of that, the states of a broker that is away and of a missing topic.
SOURCES = {
    "aws_msk": ({"cluster_arn": "arn:aws:kafka:us-east-1:1:cluster/c", **ROLES}, "topic", 4, 5),
    "confluent_cloud": (
        {
            "bootstrap_server": "b:9092",
            "cluster_id": "c",
            "identity_pool_id": "i",
            "gcp_service_account": ROLES["gcp_service_account"],
        },
        "topic",
        4,
        6,
    ),
    "azure_event_hubs": ({"namespace": "n"}, "event_hub", 4, 5),
}


class Kafka:
    """A broker, and a topic of the test's own with four partitions, which is there when a record is."""

    def __init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
        [broker] = self._producer.list_topics(timeout=10).brokers.values()
        self.endpoint = f"{broker.host}:{broker.port}"
        self.topic = f"topic-{uuid.uuid4().hex}"

    def put(self, *values: str | None, **more: Any) -> None:
        for each in values:
            self._producer.produce(self.topic, each and each.encode(), **more)
        assert self._producer.flush(10) == 0

    def settings(self, source: str) -> dict[str, object]:
        settings, field, _, _ = SOURCES[source]
        return {source: {**settings, field: self.topic}}


@pytest.fixture(scope="module")
def broker() -> Kafka:
    return Kafka()


@pytest.fixture
def kafka(broker: Kafka) -> Kafka:
    broker.topic = f"topic-{uuid.uuid4().hex}"
    return broker


@pytest.fixture
def emulator(kafka: Kafka) -> Iterator[Emulator]:
    """Yield an emulator with a Kafka broker."""
    with Emulator(kafka_endpoint=kafka.endpoint) as running:
        yield running


def ingest(client: Client, source: dict[str, object]) -> None:
    """Create the topic, which ingests from a source, and its subscription."""
    client.ask("Publisher/CreateTopic", name=TOPIC)
    client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC)
    update(client, source)


def state(client: Client, source: str, topic: str = TOPIC) -> tuple[int, int]:
    resource = client.ask("Publisher/GetTopic", topic=topic)
    return resource.state, getattr(resource.ingestion_data_source_settings, source).state


@pytest.mark.parametrize("source", SOURCES)
def test_records_become_messages_once(client, emulator, kafka, source):
    """Records of every partition that were there and of those that come are published, once each."""
    for partition in range(4):
        kafka.put(f"a{partition}", f"b{partition}", partition=partition)
    ingest(client, kafka.settings(source))
    wait_until(lambda: emulator.backlog(SUB) == 8)
    kafka.put("c0", partition=0)
    wait_until(lambda: emulator.backlog(SUB) == 9)

    assert ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "c0"] == sorted(each.decode() for each in client.data())
    assert (ACTIVE, ACTIVE) == state(client, source)


def test_what_a_record_has_beside_its_value_becomes_attributes(client, emulator, kafka):
    """Key, headers, partition, offset and timestamp are attributes. A record without a value has these alone."""
    kafka.put("x", partition=2, key=b"k", headers={"h": b"1", "goog": b"2"}, timestamp=1234)
    kafka.put(None, partition=2, key=b"\xff", timestamp=5678)
    ingest(client, kafka.settings("aws_msk"))
    wait_until(lambda: emulator.backlog(SUB) == 2)

    place = {"kafka.topic": kafka.topic, "kafka.partition": "2"}
    expected = {
        b"x": {"key": "k", "h": "1", "kafka.offset": "0", "kafka.timestamp": "1234", **place},
        b"": {"key": "\N{REPLACEMENT CHARACTER}", "kafka.offset": "1", "kafka.timestamp": "5678", **place},
    }
    assert expected == {each.message.data: dict(each.message.attributes) for each in client.pull()}


@pytest.mark.parametrize("source", SOURCES)
def test_topic_that_is_missing_is_a_state(client, emulator, kafka, source):
    """A topic reports that its Kafka topic is missing, and continues once it exists."""
    missing = SOURCES[source][3]
    ingest(client, kafka.settings(source))
    wait_until(lambda: (RESOURCE_ERROR, missing) == state(client, source))
    kafka.put("a")
    wait_until(lambda: emulator.backlog(SUB) == 1)
    wait_until(lambda: (ACTIVE, ACTIVE) == state(client, source))


def test_broker_that_is_away_is_a_state(kafka):
    """Topics report that their broker does not answer, and continue once it does."""
    kafka.put("a")
    port = free_port()
    topics = {source: f"{TOPIC}-{source}" for source in SOURCES}
    with Emulator(kafka_endpoint=f"127.0.0.1:{port}") as running:
        client = Client(running.endpoint)
        with client.channel:
            for source, topic in topics.items():
                settings = kafka.settings(source)
                client.ask("Publisher/CreateTopic", name=topic, ingestion_data_source_settings=settings)
                client.ask("Subscriber/CreateSubscription", name=f"{SUB}-{source}", topic=topic)
            for source, topic in topics.items():
                unreachable = SOURCES[source][2]
                wait_until(lambda: (RESOURCE_ERROR, unreachable) == state(client, source, topic))  # noqa: B023
            with forwarded(port, kafka.endpoint):
                for source, topic in topics.items():
                    wait_until(lambda: (ACTIVE, ACTIVE) == state(client, source, topic))  # noqa: B023
                    wait_until(lambda: running.backlog(f"{SUB}-{source}") == 1)  # noqa: B023


def test_settings_of_the_client_are_passed_on(kafka: Kafka, tmp_path: Path):
    """A broker behind TLS is spoken to as a file of librdkafka's settings says."""
    key, certificate = self_signed()
    authority, config = tmp_path / "ca.pem", tmp_path / "client.properties"
    authority.write_bytes(certificate)
    config.write_text(f"security.protocol=ssl\nssl.ca.location={authority}\nclient.id=of-the-test\n")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)
        endpoint = f"127.0.0.1:{listening.getsockname()[1]}"
        with Emulator(kafka_endpoint=endpoint, kafka_config=config) as running:
            client = Client(running.endpoint)
            with client.channel:
                ingest(client, kafka.settings("aws_msk"))
                connection, _ = listening.accept()
                with tls_context(key, certificate).wrap_socket(connection, server_side=True) as encrypted:
                    assert b"of-the-test" in encrypted.recv(1000)


def test_a_restart_ingests_no_record_again(kafka: Kafka, tmp_path: Path):
    """With a data directory a record is read once over all starts, also when the emulator's process was killed."""
    command = [*COMMAND, "--data-dir", str(tmp_path), "--kafka-endpoint", kafka.endpoint]
    for start, expected in enumerate(([b"a", b"b"], [b"a", b"b", b"c"])):
        kafka.put("c") if start else kafka.put("a", "b")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            client = Client(process.stdout.readline().strip().partition("=")[2])
            with client.channel:
                if start == 0:
                    ingest(client, kafka.settings("confluent_cloud"))
                wait_until(lambda: len(left(client)) == len(expected))  # noqa: B023
                time.sleep(3 * LOOK_SECONDS)
                assert expected == sorted(left(client))
            process.kill()


def test_without_the_option_nothing_is_ingested():
    """The settings are checked and kept, and the topic says that nothing comes."""
    with Emulator() as running:
        client = Client(running.endpoint)
        with client.channel:
            ingest(client, {"aws_msk": {**SOURCES["aws_msk"][0], "topic": "t"}})
            assert (RESOURCE_ERROR, SOURCES["aws_msk"][3]) == state(client, "aws_msk")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def forwarded(port: int, endpoint: str) -> Iterator[None]:
    """Yield a server at the port that passes everything on to the endpoint."""
    host, _, there = endpoint.rpartition(":")

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(there))) as broker:
                back = threading.Thread(target=pass_on, args=(broker, self.request), daemon=True)
                back.start()
                pass_on(self.request, broker)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Forward) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def pass_on(one: socket.socket, other: socket.socket) -> None:
    """Forward everything from one to the other, until it ends."""
    with suppress(OSError):
        while content := one.recv(65536):
            other.sendall(content)
        other.shutdown(socket.SHUT_WR)
