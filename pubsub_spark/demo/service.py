"""The demo's Pub/Sub: the embedded emulator, or any Pub/Sub emulator that listens at an address.

Topic, schema and subscription are made with Google's own clients. Their names are new in every run and they are deleted
at the end.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from google.auth.credentials import AnonymousCredentials
from google.pubsub_v1 import PublisherClient, SchemaServiceClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import Encoding, Schema, SchemaSettings, Subscription, Topic
from pyspark.sql import SparkSession

from pubsub_spark.backend.connection import channel_options
from pubsub_spark.errors import ServiceError

from . import flights

if TYPE_CHECKING:
    from pubsub_spark.emulator import Emulator

_PROJECT = "flights-demo"
_CONNECT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class PubSub:
    endpoint: str
    topic: str
    subscription: str
    emulator: Emulator | None

    @property
    def options(self) -> dict[str, str]:
        return {"backend": "emulator", "endpoint": self.endpoint, "projectId": _PROJECT}

    def published(self, spark: SparkSession, total: int) -> Callable[[], int]:
        """Return a function that returns the number of messages published so far.

        The embedded emulator counts them. Elsewhere the rows of Spark's finished tasks are counted.
        """
        if self.emulator is not None:
            emulator, subscription = self.emulator, self.subscription
            return lambda: emulator.backlog(subscription)

        def rows_of_finished_tasks() -> int:
            tracker = spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done = [total * stage.numCompletedTasks // stage.numTasks for stage in stages if stage is not None]
            return max(done, default=0)

        return rows_of_finished_tasks


def check(endpoint: str) -> None:
    """Raise ServiceError unless something listens at the endpoint."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_SECONDS).close()
    except (OSError, ValueError):
        raise _no_answer_error(endpoint) from None


def _no_answer_error(endpoint: str) -> ServiceError:
    return ServiceError(f"No Pub/Sub answers at `{endpoint}`. Start an emulator there, or leave `--endpoint` out.")


@contextmanager
def provide(endpoint: str | None) -> Iterator[PubSub]:
    with ExitStack() as stack:
        emulator = None
        if endpoint is None:
            from pubsub_spark.emulator import Emulator

            emulator = stack.enter_context(Emulator())
            endpoint = emulator.endpoint
        channel = stack.enter_context(grpc.insecure_channel(endpoint, channel_options(endpoint)))
        try:
            grpc.channel_ready_future(channel).result(timeout=_CONNECT_TIMEOUT_SECONDS)
        except grpc.FutureTimeoutError:
            raise _no_answer_error(endpoint) from None
        topic, subscription = stack.enter_context(_resources(channel))
        yield PubSub(endpoint, topic, subscription, emulator)


@contextmanager
def _resources(channel: grpc.Channel) -> Iterator[tuple[str, str]]:
    nobody = AnonymousCredentials()
    publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel, credentials=nobody))
    subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel, credentials=nobody))
    schemas = SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel, credentials=nobody))

    run = uuid.uuid4().hex[:8]
    topic = f"projects/{_PROJECT}/topics/flights-{run}"
    subscription = f"projects/{_PROJECT}/subscriptions/flights-{run}"
    schema = schemas.create_schema(
        parent=f"projects/{_PROJECT}",
        schema=Schema(type_=Schema.Type.AVRO, definition=flights.avro_schema()),
        schema_id=f"flight-{run}",
    )
    settings = SchemaSettings(schema=schema.name, encoding=Encoding.BINARY)
    publisher.create_topic(request=Topic(name=topic, schema_settings=settings))
    subscriber.create_subscription(request=Subscription(name=subscription, topic=topic, ack_deadline_seconds=60))
    try:
        yield topic, subscription
    finally:
        subscriber.delete_subscription(subscription=subscription)
        publisher.delete_topic(topic=topic)
        schemas.delete_schema(name=schema.name)
