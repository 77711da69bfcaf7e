"""What the handlers accept, refuse, fill in and answer. No socket; the clock moves by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from google.protobuf import duration_pb2, field_mask_pb2, timestamp_pb2

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc.registry import Registry
from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Fault, Faults
from pubsub_spark.emulator.sinks.oidc import Signer
from pubsub_spark.emulator.sinks.push_worker import PushWorkers
from pubsub_spark.emulator.state.state import State
from pubsub_spark.emulator.transport.calls import Caller

TOPIC = "projects/p/topics/topic"
SUBSCRIPTION = "projects/p/subscriptions/subscription"
SNAPSHOT = "projects/p/snapshots/snapshot"
DAY = 86_400


class Handlers(Registry):
    """The services, and a few verbs that the tests say often."""

    def __init__(self) -> None:
        self.engine = Engine(State(), Clock())
        self.faults = Faults()
        super().__init__(self.engine, self.faults, PushWorkers(self.engine, Signer()))

    def topic(self, name: str = TOPIC, **settings: Any) -> Any:
        return self.publisher.create_topic(protos.Topic(name=name, **settings))

    def subscription(self, name: str = SUBSCRIPTION, topic: str = TOPIC, **settings: Any) -> Any:
        return self.subscriber.create_subscription(protos.Subscription(name=name, topic=topic, **settings))

    def publish(self, *data: str, topic: str = TOPIC, **fields: Any) -> list[str]:
        messages = [protos.PubsubMessage(data=each.encode(), **fields) for each in data]
        raw = self.publisher.publish(protos.PublishRequest(topic=topic, messages=messages).SerializeToString())
        return list(protos.PublishResponse.FromString(raw).message_ids)

    def pull(self, subscription: str = SUBSCRIPTION, most: int = 100) -> list[Any]:
        request = protos.PullRequest(subscription=subscription, max_messages=most, return_immediately=True)
        raw = self.subscriber.pull(request.SerializeToString(), Caller(), wait=False)
        return list(protos.PullResponse.FromString(raw).received_messages)

    def begin_pull(self) -> Future[bytes]:
        """A Pull that waits for a message, in a thread of its own."""
        begun = threading.Event()

        class Beginner(Caller):
            def add_callback(self, callback: Callable[[], None]) -> bool:
                begun.set()
                return super().add_callback(callback)

        request = protos.PullRequest(subscription=SUBSCRIPTION, max_messages=1).SerializeToString()
        pull = ThreadPoolExecutor(1).submit(self.subscriber.pull, request, Beginner(), wait=True)
        begun.wait()
        with self.engine.open():  # nobody else has the lock now: the Pull let go of it
            return pull

    def delete_subscription(self) -> None:
        self.subscriber.delete_subscription(protos.DeleteSubscriptionRequest(subscription=SUBSCRIPTION))

    def ack(self, *held: Any, subscription: str = SUBSCRIPTION) -> None:
        request = protos.AcknowledgeRequest(subscription=subscription, ack_ids=[each.ack_id for each in held])
        self.subscriber.acknowledge(request.SerializeToString())

    def modify(self, seconds: int, *held: Any, subscription: str = SUBSCRIPTION) -> None:
        request = protos.ModifyAckDeadlineRequest(
            subscription=subscription, ack_ids=[each.ack_id for each in held], ack_deadline_seconds=seconds
        )
        self.subscriber.modify_ack_deadline(request.SerializeToString())


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    handlers = Handlers()
    yield handlers
    handlers.engine.close()


@pytest.fixture
def pair(handlers: Handlers) -> Handlers:
    """A topic with a subscription."""
    handlers.topic()
    handlers.subscription()
    return handlers


def refused(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(RpcError) as error:
        call()
    return error.value.code, error.value.message


def seconds(amount: float) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=int(amount))


def data(held: list[Any]) -> list[str]:
    return [each.message.data.decode() for each in held]


# Names, labels, lists


@pytest.mark.parametrize("name", ["projects/p/topics/ab", "projects/p/topics/1abc", "projects/p/topics/googler", "x"])
def test_illegal_names_are_refused(handlers, name):
    """3 to 255 characters, a letter first, not `goog`."""
    code, message = refused(lambda: handlers.topic(name))
    assert "INVALID_ARGUMENT" == code
    assert message.startswith(f"Invalid resource name given (name={name}).")


@pytest.mark.parametrize("labels", [{"Upper": "x"}, {"1st": "x"}, {"a" * 64: "x"}, {"a": "B"}, {"a": "x" * 64}])
def test_illegal_labels_are_refused(handlers, labels):
    """Lower-case letters, digits, `_` and `-`, at most 63 of them."""
    code, message = refused(lambda: handlers.topic(labels=labels))
    assert "INVALID_ARGUMENT" == code
    assert 'Invalid field "labels"' in message


def test_labels_may_be_international(handlers):
    """Any script that has lower-case or caseless letters."""
    assert {"größe": "日本"} == dict(handlers.topic(labels={"größe": "日本"}).labels)


def test_lists_come_in_pages(handlers):
    """A token continues after the last name, even when that is gone."""
    names = [f"projects/p/topics/topic-{index}" for index in range(5)]
    for name in names:
        handlers.topic(name)
    handlers.topic("projects/other/topics/topic")
    first = handlers.publisher.list_topics(protos.ListTopicsRequest(project="projects/p", page_size=2))
    handlers.publisher.delete_topic(protos.DeleteTopicRequest(topic=names[1]))
    rest = handlers.publisher.list_topics(
        protos.ListTopicsRequest(project="projects/p", page_token=first.next_page_token)
    )

    assert names[:2] == [topic.name for topic in first.topics]
    assert names[2:] == [topic.name for topic in rest.topics]
    assert "" == rest.next_page_token


def test_page_token_is_good_for_its_list_only(handlers):
    """Neither for the same method of another project nor for another method of the same."""
    handlers.topic("projects/p/topics/topic-1")
    handlers.topic("projects/p/topics/topic-2")
    page = {
        "page_token": handlers.publisher.list_topics(
            protos.ListTopicsRequest(project="projects/p", page_size=1)
        ).next_page_token
    }

    for elsewhere in (
        lambda: handlers.publisher.list_topics(protos.ListTopicsRequest(project="projects/other", **page)),
        lambda: handlers.subscriber.list_subscriptions(protos.ListSubscriptionsRequest(project="projects/p", **page)),
    ):
        assert "Invalid page token given" in refused(elsewhere)[1]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ({"page_size": -1}, "You passed -1 in the request, but the value must be between 0 and 1000."),
        ({"page_size": 1001}, "The value for page_size is out of bounds."),
        ({"page_token": "garbage"}, "Invalid page token given (token=garbage)."),
    ],
)
def test_illegal_pages_are_refused(handlers, page, message):
    """Sizes from 0 to 1000, tokens of our own."""
    request = protos.ListTopicsRequest(project="projects/p", **page)
    assert message in refused(lambda: handlers.publisher.list_topics(request))[1]


def test_children_of_a_missing_topic_are_not_found(handlers):
    """An empty list would say that the topic is there."""
    request = protos.ListTopicSubscriptionsRequest(topic=TOPIC)
    assert ("NOT_FOUND", "Resource not found (resource=topic).") == refused(
        lambda: handlers.publisher.list_topic_subscriptions(request)
    )


# Topics and Publish


def test_plain_topic_is_its_name_alone(handlers):
    """Nothing is filled in, and output-only fields of the request are ignored."""
    assert protos.Topic(name=TOPIC) == handlers.topic(state=1, satisfies_pzs=True)


@pytest.mark.parametrize("retention", [599, 31 * DAY + 1])
def test_topic_retention_has_bounds(handlers, retention):
    """10 minutes to 31 days, told as the service tells it."""
    message = refused(lambda: handlers.topic(message_retention_duration=seconds(retention)))[1]
    assert message.endswith("but the value must be between 10m and 744h.")


def test_update_changes_what_the_mask_names(handlers):
    """A masked field that is left unset is cleared; what is not masked stays."""
    handlers.topic(labels={"a": "x"}, message_retention_duration=seconds(600))
    updated = handlers.publisher.update_topic(
        protos.UpdateTopicRequest(
            topic=protos.Topic(name=TOPIC, labels={"b": "y"}),
            update_mask=field_mask_pb2.FieldMask(paths=["message_retention_duration"]),
        )
    )
    assert protos.Topic(name=TOPIC, labels={"a": "x"}) == updated


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "The update_mask in the UpdateSubscriptionRequest must be set, and must contain a non-empty paths list."),
        (["x"], "'x' is not a known Subscription field."),
        (["pushConfig"], "of the form 'push_config' rather than 'pushConfig'."),
        (["labels", "filter"], "the 'filter' field in the Subscription is not mutable."),
        (["topic"], "the 'topic' field in the Subscription is not mutable."),
        (["retry_policy.x"], "'retry_policy.x' is not a known Subscription field."),
    ],
)
def test_illegal_masks_change_nothing(pair, paths, message):
    """One bad path and the whole request is refused."""
    request = protos.UpdateSubscriptionRequest(
        subscription=protos.Subscription(name=SUBSCRIPTION, labels={"a": "x"}),
        update_mask=field_mask_pb2.FieldMask(paths=paths),
    )
    assert message in refused(lambda: pair.subscriber.update_subscription(request))[1]
    kept = pair.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))
    assert {} == dict(kept.labels)


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        ([], "The value for message_count is too small. You passed 0 in the request, but the minimum value is 1."),
        ([{"data": b"x"}] * 1001, "You passed 1001 in the request, but the maximum value is 1000."),
        ([{"data": b"x" * 10_000_000}], "but the maximum value is 10000000."),
        ([{"data": b"x" * 10_485_760}], "Request payload size exceeds the limit: 10485760 bytes."),
        ([{}], "messages in the publish request is empty"),
        ([{"ordering_key": "k"}], "messages in the publish request is empty"),
        ([{"data": b"x", "attributes": {"": "x"}}], "Attribute keys must be non-empty"),
        ([{"data": b"x", "attributes": {"GoOgle": "x"}}], "(key=GoOgle)"),
        ([{"data": b"x", "attributes": {"ä" * 129: "x"}}], "attribute_key_size"),
        ([{"data": b"x", "attributes": {"a": "ä" * 513}}], "attribute_value_size"),
        ([{"data": b"x", "attributes": {f"a{n}": "" for n in range(101)}}], "attribute_count"),
        ([{"data": b"x", "ordering_key": "k" * 1025}], "ordering_key_size"),
        ([{"data": b"x", "ordering_key": "k"}, {"data": b"x"}], "the same ordering key"),
        ([{"data": b"x"}, {"data": b"x", "ordering_key": "k"}], "the same ordering key"),
    ],
)
def test_publish_is_all_or_nothing(pair, messages, part):
    """Every limit of a Publish request, and nothing of a refused one is published."""
    request = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(**each) for each in messages])
    code, message = refused(lambda: pair.publisher.publish(request.SerializeToString()))
    assert "INVALID_ARGUMENT" == code
    assert part in message
    assert [] == pair.pull()


def test_limits_are_reached_not_crossed(pair):
    """100 attributes, 256 and 1024 bytes, an empty value: all allowed."""
    attributes = {f"a{n}": "" for n in range(99)} | {"k" * 256: "v" * 1024}
    pair.publish("x", attributes=attributes, ordering_key="k" * 1024)
    [held] = pair.pull()
    assert attributes == dict(held.message.attributes)


def test_publisher_does_not_choose_id_and_time(pair):
    """What the server assigns replaces what the request says."""
    [assigned] = pair.publish("x", message_id="mine", publish_time=timestamp_pb2.Timestamp(seconds=1, nanos=1))
    [held] = pair.pull()
    assert assigned == held.message.message_id
    assert 1 < held.message.publish_time.seconds


def test_deleted_topic_leaves_a_subscription_that_can_be_drained(pair):
    """Its topic is `_deleted-topic_`; a new topic of the name has nothing to do with it."""
    pair.publish("old")
    pair.publisher.delete_topic(protos.DeleteTopicRequest(topic=TOPIC))
    pair.topic()
    pair.publish("new")
    kept = pair.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))

    assert "_deleted-topic_" == kept.topic
    assert ["old"] == data(pair.pull())


def test_detached_subscription_is_empty_and_shut(pair):
    """Its backlog is dropped, it is no longer listed, and pulling is a failed precondition."""
    pair.publish("x")
    pair.publisher.detach_subscription(protos.DetachSubscriptionRequest(subscription=SUBSCRIPTION))
    listed = pair.publisher.list_topic_subscriptions(protos.ListTopicSubscriptionsRequest(topic=TOPIC))

    assert [] == list(listed.subscriptions)
    assert "FAILED_PRECONDITION" == refused(pair.pull)[0]
    kept = pair.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))
    assert kept.detached


def test_detached_subscription_does_not_speak_of_its_topic(handlers):
    """What that retains is not for it, so it neither says how long nor goes on saying what is no longer so."""
    handlers.topic(message_retention_duration=seconds(600))
    handlers.subscription()
    handlers.publisher.detach_subscription(protos.DetachSubscriptionRequest(subscription=SUBSCRIPTION))
    kept = handlers.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))

    assert not kept.HasField("topic_message_retention_duration")


# Subscriptions


def test_defaults_are_filled_in(handlers):
    """What the service answers to the plainest subscription."""
    handlers.topic(message_retention_duration=seconds(600))
    expected = protos.Subscription(
        name=SUBSCRIPTION,
        topic=TOPIC,
        push_config=protos.PushConfig(),
        ack_deadline_seconds=10,
        message_retention_duration=seconds(7 * DAY),
        expiration_policy={"ttl": seconds(31 * DAY)},
        topic_message_retention_duration=seconds(600),
        state=1,
    )
    assert expected == handlers.subscription(state=2, topic_message_retention_duration=seconds(1), detached=True)


def test_policies_are_filled_in(pair):
    """Retry 10 s to 600 s, five attempts, no expiry when the policy says nothing."""
    kept = pair.subscription(
        "projects/p/subscriptions/other",
        expiration_policy={},
        retry_policy={},
        dead_letter_policy={"dead_letter_topic": TOPIC},
    )
    assert not kept.expiration_policy.HasField("ttl")
    assert (10, 600) == (kept.retry_policy.minimum_backoff.seconds, kept.retry_policy.maximum_backoff.seconds)
    assert 5 == kept.dead_letter_policy.max_delivery_attempts


def test_server_names_what_has_no_name(pair):
    """In the project of the topic, and of the subscription."""
    assert pair.subscription("").name.startswith("projects/p/subscriptions/s-")
    snapshot = pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(subscription=SUBSCRIPTION))
    assert snapshot.name.startswith("projects/p/snapshots/s-")


def bigtable(**key: Any) -> dict[str, Any]:
    """A Bigtable subscription's row key, put together from fields of the message."""
    mapping = {"delimited_key": key}
    return {"bigtable_config": {"table": "projects/p/instances/i/tables/t", "column_family_mapping": mapping}}


@pytest.mark.parametrize(
    ("settings", "code", "part"),
    [
        ({"ack_deadline_seconds": 9}, "INVALID_ARGUMENT", "(ack_deadline=9). The ack deadline must be between 10 and"),
        ({"ack_deadline_seconds": 601}, "INVALID_ARGUMENT", "ack_deadline=601"),
        ({"message_retention_duration": seconds(599)}, "INVALID_ARGUMENT", "You passed 9m59s in the request"),
        ({"message_retention_duration": seconds(31 * DAY + 1)}, "INVALID_ARGUMENT", "744h"),
        ({"expiration_policy": {"ttl": seconds(3600)}}, "INVALID_ARGUMENT", "You passed 1h in the request, but the"),
        (
            {"retry_policy": {"minimum_backoff": seconds(601)}},
            "INVALID_ARGUMENT",
            "You passed 601s in the request, but the value must be between 0s and 600s.",
        ),
        (
            {"retry_policy": {"minimum_backoff": seconds(20), "maximum_backoff": seconds(10)}},
            "INVALID_ARGUMENT",
            "must not be greater",
        ),
        ({"dead_letter_policy": {"dead_letter_topic": TOPIC, "max_delivery_attempts": 4}}, "INVALID_ARGUMENT", "is 5"),
        ({"dead_letter_policy": {"dead_letter_topic": TOPIC, "max_delivery_attempts": 101}}, "INVALID_ARGUMENT", "100"),
        ({"dead_letter_policy": {"dead_letter_topic": TOPIC + "x"}}, "NOT_FOUND", "(resource=topicx)"),
        ({"filter": "attributes.a ="}, "INVALID_ARGUMENT", "Invalid filter"),
        ({"push_config": {"push_endpoint": "no-url"}}, "INVALID_ARGUMENT", "Invalid push endpoint given (endpoint=no-"),
        (
            {"push_config": {"push_endpoint": "http://localhost", "attributes": {"x-goog-version": "v9"}}},
            "INVALID_ARGUMENT",
            "(version=v9)",
        ),
        (
            {"push_config": {"push_endpoint": "http://localhost", "oidc_token": {"audience": "a"}}},
            "INVALID_ARGUMENT",
            "oidc_token.service_account_email",
        ),
        ({"bigquery_config": {"table": "not-a-table"}}, "INVALID_ARGUMENT", "bigquery_config.table"),
        (
            {"bigquery_config": {"table": "p.d.t", "use_topic_schema": True, "use_table_schema": True}},
            "INVALID_ARGUMENT",
            "Only one of use_topic_schema and use_table_schema",
        ),
        ({"cloud_storage_config": {"bucket": "gs://bucket"}}, "INVALID_ARGUMENT", "cloud_storage_config.bucket"),
        ({"cloud_storage_config": {"bucket": "bbb", "filename_suffix": "x/"}}, "INVALID_ARGUMENT", "filename_suffix"),
        ({"cloud_storage_config": {"bucket": "bbb", "max_bytes": 999}}, "INVALID_ARGUMENT", "max_bytes"),
        ({"cloud_storage_config": {"bucket": "bbb", "max_messages": 999}}, "INVALID_ARGUMENT", "max_messages"),
        ({"cloud_storage_config": {"bucket": "bbb", "max_duration": seconds(59)}}, "INVALID_ARGUMENT", "max_duration"),
        (bigtable(key_fields=[]), "INVALID_ARGUMENT", "delimited_key.key_fields"),
        (bigtable(key_fields=["a", "b"]), "INVALID_ARGUMENT", "delimited_key.delimiter"),
        (bigtable(key_fields=["a"], delimiter=b"-" * 51), "INVALID_ARGUMENT", "delimited_key.delimiter"),
        (
            {"bigquery_config": {"table": "p.d.t"}, "cloud_storage_config": {"bucket": "bbb"}},
            "INVALID_ARGUMENT",
            "At most one",
        ),
        (
            {"bigquery_config": {"table": "p.d.t"}, "enable_exactly_once_delivery": True},
            "INVALID_ARGUMENT",
            "Exactly-once delivery",
        ),
        (
            {"message_transforms": [{"compression": {"compression_algorithm": 99}, "disabled": True}]},
            "INVALID_ARGUMENT",
            "message_transforms.compression.compression_algorithm; value=99",
        ),
        (
            {"message_transforms": [{"ai_inference": {"endpoint": "a-model"}, "disabled": True}]},
            "INVALID_ARGUMENT",
            "message_transforms.ai_inference.endpoint; value=a-model",
        ),
        (
            {"message_transforms": [{"javascript_udf": {"function_name": "f", "code": "function f(m) {}"}}]},
            "UNIMPLEMENTED",
            "does not run message transforms",
        ),
    ],
)
def test_illegal_settings_are_refused(handlers, settings, code, part):
    """Every limit of a Subscription, with the service's sentence where it is known; nothing is created."""
    handlers.topic()
    error = refused(lambda: handlers.subscription(**settings))
    assert code == error[0]
    assert part in error[1]
    assert {} == handlers.engine.broker.subscriptions


def test_export_says_that_it_goes_nowhere(handlers):
    """Kept and returned, with the states that say so, and not pullable."""
    handlers.topic()
    kept = handlers.subscription(cloud_storage_config={"bucket": "bbb"})

    assert (2, 3, 300) == (kept.state, kept.cloud_storage_config.state, kept.ack_deadline_seconds)
    assert kept.cloud_storage_config.HasField("text_config")
    assert "This method is not supported for this subscription type." == refused(handlers.pull)[1]


@pytest.mark.parametrize("table", ["p.d.t", "p:d.t", "example.com:p.d.t"])
def test_table_of_any_project_is_taken(handlers, table):
    """Also of a project of a domain."""
    handlers.topic()
    assert table == handlers.subscription(bigquery_config={"table": table}).bigquery_config.table


def test_bigtable_that_is_not_there_is_a_permission_denied(handlers):
    """That is its state when the table does not exist; its NOT_FOUND is unused."""
    handlers.topic()
    kept = handlers.subscription(**bigtable(key_fields=["a", "b"], delimiter=b"#"))

    permission_denied = 4
    assert (2, permission_denied) == (kept.state, kept.bigtable_config.state)


def test_disabled_transform_is_kept(handlers):
    """One that would not run anyway does no harm."""
    transform = {"javascript_udf": {"function_name": "f", "code": "function f(m) {}"}, "disabled": True}
    assert "f" == handlers.topic(message_transforms=[transform]).message_transforms[0].javascript_udf.function_name


def test_ingestion_says_that_it_does_not_happen(handlers):
    """By the state of the topic and of its source."""
    stream = {"stream_arn": "s", "consumer_arn": "c", "aws_role_arn": "r", "gcp_service_account": "a"}
    kept = handlers.topic(ingestion_data_source_settings={"aws_kinesis": stream})
    assert (2, 4) == (kept.state, kept.ingestion_data_source_settings.aws_kinesis.state)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ({"aws_kinesis": {"stream_arn": "s"}}, "aws_kinesis.consumer_arn"),
        ({"aws_msk": {"cluster_arn": "c", "topic": "t"}}, "aws_msk.aws_role_arn"),
        ({"confluent_cloud": {}}, "confluent_cloud.bootstrap_server"),
    ],
)
def test_source_that_cannot_be_is_refused(handlers, source, part):
    """A source says all that it takes to be reached."""
    code, message = refused(lambda: handlers.topic(ingestion_data_source_settings=source))
    assert "INVALID_ARGUMENT" == code
    assert part in message


@pytest.mark.parametrize(
    "bucket",
    [
        *("gs://bucket", "bb", "Bucket", "a bucket", "bucket-", "_bucket", "b" * 64, "192.168.5.4", "goog-x"),
        *("my-g00gle", ".".join(["b" * 62] * 4), "bucket\n"),
    ],
)
def test_bucket_has_a_name_that_cloud_storage_allows(handlers, bucket):
    """For what is exported and for what is ingested."""
    handlers.topic()
    _, message = refused(lambda: handlers.subscription(cloud_storage_config={"bucket": bucket}))
    assert "cloud_storage_config.bucket" in message

    source = {"cloud_storage": {"bucket": bucket}}
    _, message = refused(lambda: handlers.topic(ingestion_data_source_settings=source))
    assert "cloud_storage.bucket" in message


@pytest.mark.parametrize("bucket", ["bbb", "0-my_bucket.9", "b" * 63, ".".join(["b" * 63] * 3)])
def test_bucket_may_have_dots(handlers, bucket):
    """Then it may be longer than 63 characters."""
    handlers.topic()

    assert bucket == handlers.subscription(cloud_storage_config={"bucket": bucket}).cloud_storage_config.bucket


def test_idle_subscription_expires(handlers):
    """After its ttl without use; one that is used stays."""
    handlers.topic()
    handlers.subscription(expiration_policy={"ttl": seconds(DAY)})
    handlers.engine.advance(DAY - 1)
    handlers.pull()
    handlers.engine.advance(DAY - 1)
    assert [] == handlers.pull()
    handlers.engine.advance(DAY + 1)
    assert "NOT_FOUND" == refused(handlers.pull)[0]


def test_shortened_deadline_is_for_what_comes(pair):
    """An update changes new leases; the masked field left unset goes back to its default."""
    for deadline, expected in ((60, 60), (0, 10)):
        request = protos.UpdateSubscriptionRequest(
            subscription=protos.Subscription(name=SUBSCRIPTION, ack_deadline_seconds=deadline),
            update_mask=field_mask_pb2.FieldMask(paths=["ack_deadline_seconds"]),
        )
        assert expected == pair.subscriber.update_subscription(request).ack_deadline_seconds


# Ack ids


@pytest.mark.parametrize("ack_id", ["not-an-ack-id", "", "x" * 190])
def test_malformed_ack_ids_are_refused(pair, ack_id):
    """On both unary calls, with the id in the sentence."""
    request = protos.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=[ack_id])
    assert (
        "INVALID_ARGUMENT",
        f"You have passed an invalid ack ID to the service (ack_id={ack_id}).",
    ) == refused(lambda: pair.subscriber.acknowledge(request.SerializeToString()))


def test_ack_id_of_another_subscription_is_malformed(pair):
    """It says whose it is."""
    pair.subscription("projects/p/subscriptions/other")
    pair.publish("x")
    [held] = pair.pull()
    assert "INVALID_ARGUMENT" == refused(lambda: pair.ack(held, subscription="projects/p/subscriptions/other"))[0]


def test_ack_id_of_a_deleted_subscription_acknowledges_nothing_of_its_successor(pair):
    """Same name, another subscription."""
    pair.publish("x")
    [held] = pair.pull()
    pair.delete_subscription()
    pair.subscription()
    pair.publish("y")
    pair.pull()
    pair.ack(held)
    assert 1 == len(pair.engine.broker.subscriptions[SUBSCRIPTION].unacked(0))


@pytest.mark.parametrize("amount", [-1, 601])
def test_deadlines_have_bounds(pair, amount):
    """0 to 600 seconds for a message."""
    pair.publish("x")
    [held] = pair.pull()
    message = refused(lambda: pair.modify(amount, held))[1]
    assert f"(ack_deadline={amount}). The ack deadline must be between 0 and 600 seconds." in message


def test_pull_needs_a_positive_number(pair):
    """Zero and less are refused."""
    assert "(argument=max_messages)" in refused(lambda: pair.pull(most=0))[1]


def test_waiting_pull_ends_with_its_subscription(pair):
    """A successor of the same name is another subscription, and whoever waited for the first one hears NOT_FOUND."""
    waiting = pair.begin_pull()
    with pair.engine.open():  # so that the Pull looks again when both are done
        pair.delete_subscription()
        pair.subscription()

    assert "NOT_FOUND" == refused(lambda: waiting.result(timeout=5))[0]


def test_successor_of_a_subscription_that_a_pull_waited_on_expires(pair):
    """What a Pull leaves behind on a deleted subscription is not taken for the time of its successor."""
    waiting = pair.begin_pull()
    pair.delete_subscription()
    refused(lambda: waiting.result(timeout=5))
    pair.subscription()

    pair.engine.advance(32 * DAY)

    assert "NOT_FOUND" == refused(pair.pull)[0]


def test_late_ack_is_no_error_without_exactly_once(pair):
    """It acknowledges nothing, and says nothing."""
    pair.publish("x")
    [held] = pair.pull()
    pair.engine.advance(11)
    pair.ack(held)
    assert ["x"] == data(pair.pull())


def test_exactly_once_tells_failures_by_id(handlers):
    """The stale id is told, the good one of the same request counts, and a repeated ack is no error."""
    handlers.topic()
    handlers.subscription(enable_exactly_once_delivery=True)
    handlers.publish("a", "b")
    first, second = handlers.pull()
    handlers.modify(600, second)
    handlers.engine.advance(11)
    for call in (handlers.ack, lambda *held: handlers.modify(30, *held)):
        with pytest.raises(RpcError) as error:
            call(first, second)
        assert "INVALID_ARGUMENT" == error.value.code
        assert error.value.message.startswith("Some acknowledgement ids in the request were invalid.")
        assert "EXACTLY_ONCE_ACKID_FAILURE" == error.value.reason
        assert "PERMANENT_FAILURE_INVALID_ACK_ID" == error.value.metadata[first.ack_id]
    handlers.ack(second)
    assert ["a"] == data(handlers.pull())


def test_exactly_once_acks_fail_on_demand(handlers):
    """The ordered failure meets one request, and nothing of that is acked."""
    handlers.topic()
    handlers.subscription(enable_exactly_once_delivery=True)
    handlers.publish("a")
    held = handlers.pull()
    handlers.faults.inject(1, "TRANSIENT_FAILURE_UNORDERED_ACK_ID")
    with pytest.raises(RpcError) as error:
        handlers.ack(*held)
    assert {held[0].ack_id: "TRANSIENT_FAILURE_UNORDERED_ACK_ID"} == error.value.metadata
    handlers.ack(*held)


def test_fault_meets_as_many_calls_as_were_ordered(handlers):
    """Two that come at the same moment do not both get the only one."""

    class Slow(str):
        """Somebody else's turn comes while two of these are compared."""

        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            time.sleep(0.02)
            return str.__eq__(self, other)

    handlers.faults.add(Fault(Slow("Publish"), "UNAVAILABLE"))
    with ThreadPoolExecutor(2) as calls:
        met = list(calls.map(handlers.faults.meet, ["Publish", "Publish"]))

    assert 1 == sum(fault is not None for fault in met)


# Time


def test_time_moves_past_what_falls_due_on_the_way(handlers):
    """The lease ends after 10 s and the backoff 10 s later, though the clock moves by 21 s at once."""
    handlers.topic()
    handlers.subscription(retry_policy={"minimum_backoff": seconds(10), "maximum_backoff": seconds(10)})
    handlers.publish("x")
    handlers.pull()
    handlers.engine.advance(21)
    assert ["x"] == data(handlers.pull())


def test_time_does_not_go_back(handlers):
    """A negative advance is an error, not a rewind."""
    with pytest.raises(ValueError, match="Time can only move on"):
        handlers.engine.advance(-1)


# Filter, dead letter, retention


def test_filter_lets_through_what_matches(handlers):
    """The rest is acked by itself, and does not come back with a seek."""
    handlers.topic(message_retention_duration=seconds(600))
    handlers.subscription(filter='attributes.kind = "good"')
    handlers.publish("a", attributes={"kind": "good"})
    handlers.publish("b", attributes={"kind": "bad"})
    assert ["a"] == data(handlers.pull())
    handlers.snapshots.seek(protos.SeekRequest(subscription=SUBSCRIPTION, time=timestamp_pb2.Timestamp()))
    assert ["a"] == data(handlers.pull())


def test_failing_message_goes_to_the_dead_letter_topic(handlers):
    """After five attempts: a copy with its origin, and the source is rid of it."""
    handlers.topic()
    handlers.topic("projects/p/topics/dead")
    handlers.subscription(dead_letter_policy={"dead_letter_topic": "projects/p/topics/dead"})
    handlers.subscription("projects/p/subscriptions/dead", topic="projects/p/topics/dead")
    [source_id] = handlers.publish("x", attributes={"a": "1"}, ordering_key="k")
    for attempt in range(1, 6):
        [held] = handlers.pull()
        assert attempt == held.delivery_attempt
        handlers.modify(0, held)

    assert [] == handlers.pull()
    [copy] = handlers.pull("projects/p/subscriptions/dead")
    attributes = dict(copy.message.attributes)
    assert ("x", "k", "1") == (copy.message.data.decode(), copy.message.ordering_key, attributes.pop("a"))
    assert source_id != copy.message.message_id
    assert attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime").endswith("+00:00")
    assert {
        "CloudPubSubDeadLetterSourceSubscription": "subscription",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "p",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
    } == attributes
    assert 0 == copy.delivery_attempt


def test_expired_leases_are_forwarded_without_a_pull(handlers):
    """The dead-letter topic gets the message when the deadline passes, though nobody asks."""
    handlers.topic()
    handlers.topic("projects/p/topics/dead")
    handlers.subscription(dead_letter_policy={"dead_letter_topic": "projects/p/topics/dead"})
    handlers.subscription("projects/p/subscriptions/dead", topic="projects/p/topics/dead")
    handlers.publish("x")
    for _ in range(5):
        assert 1 == len(handlers.pull())
        handlers.engine.advance(10)

    assert ["x"] == data(handlers.pull("projects/p/subscriptions/dead"))


def test_without_a_dead_letter_topic_attempts_go_on(handlers):
    """The topic was deleted: nothing is forwarded, nothing is lost."""
    handlers.topic()
    handlers.topic("projects/p/topics/dead")
    handlers.subscription(dead_letter_policy={"dead_letter_topic": "projects/p/topics/dead"})
    handlers.publisher.delete_topic(protos.DeleteTopicRequest(topic="projects/p/topics/dead"))
    handlers.publish("x")
    for _ in range(6):
        [held] = handlers.pull()
        handlers.modify(0, held)
    assert [7] == [each.delivery_attempt for each in handlers.pull()]


def test_label_can_be_changed_though_the_dead_letter_topic_is_gone(handlers):
    """Only what an update changes is checked again."""
    handlers.topic()
    handlers.topic("projects/p/topics/dead")
    handlers.subscription(dead_letter_policy={"dead_letter_topic": "projects/p/topics/dead"})
    handlers.publisher.delete_topic(protos.DeleteTopicRequest(topic="projects/p/topics/dead"))
    request = protos.UpdateSubscriptionRequest(
        subscription=protos.Subscription(name=SUBSCRIPTION, labels={"a": "x"}),
        update_mask=field_mask_pb2.FieldMask(paths=["labels"]),
    )
    assert {"a": "x"} == dict(handlers.subscriber.update_subscription(request).labels)


def test_topic_retention_serves_a_new_subscription_by_seek(handlers):
    """It starts empty, and can go back before its own creation."""
    handlers.topic(message_retention_duration=seconds(600))
    handlers.publish("before")
    handlers.subscription()
    assert [] == handlers.pull()

    handlers.snapshots.seek(protos.SeekRequest(subscription=SUBSCRIPTION, time=timestamp_pb2.Timestamp()))
    assert ["before"] == data(handlers.pull())
    handlers.engine.advance(700)
    handlers.subscription("projects/p/subscriptions/late")
    late = protos.SeekRequest(subscription="projects/p/subscriptions/late", time=timestamp_pb2.Timestamp())
    handlers.snapshots.seek(late)
    assert [] == handlers.pull("projects/p/subscriptions/late")


def test_topic_retention_is_told_by_its_subscriptions(pair):
    """A change of the topic shows in the subscription."""
    pair.publisher.update_topic(
        protos.UpdateTopicRequest(
            topic=protos.Topic(name=TOPIC, message_retention_duration=seconds(600)),
            update_mask=field_mask_pb2.FieldMask(paths=["message_retention_duration"]),
        )
    )
    kept = pair.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))
    assert 600 == kept.topic_message_retention_duration.seconds


# Seek and snapshots


def test_seek_to_the_future_purges_what_there_is(pair):
    """What is published afterwards is delivered, though the time has not come yet."""
    pair.publish("old")
    time = timestamp_pb2.Timestamp(seconds=int(pair.engine.clock.now()) + DAY)
    pair.snapshots.seek(protos.SeekRequest(subscription=SUBSCRIPTION, time=time))
    pair.publish("new")
    assert ["new"] == data(pair.pull())


def test_snapshot_brings_back_a_backlog(pair):
    """Unacked at its creation and everything since, on a sibling subscription too."""
    pair.subscription("projects/p/subscriptions/sibling")
    pair.publish("acked", "unacked")
    pair.ack(pair.pull(most=1)[0])
    pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION))
    pair.publish("later")
    for subscription in (SUBSCRIPTION, "projects/p/subscriptions/sibling"):
        pair.ack(*pair.pull(subscription), subscription=subscription)
        pair.snapshots.seek(protos.SeekRequest(subscription=subscription, snapshot=SNAPSHOT))
        assert ["unacked", "later"] == data(pair.pull(subscription))


def test_snapshot_of_another_topic_does_not_fit(pair):
    """Both must be on the same topic."""
    pair.topic(TOPIC + "2")
    pair.subscription("projects/p/subscriptions/other", topic=TOPIC + "2")
    pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION))
    request = protos.SeekRequest(subscription="projects/p/subscriptions/other", snapshot=SNAPSHOT)
    assert "FAILED_PRECONDITION" == refused(lambda: pair.snapshots.seek(request))[0]
    assert "INVALID_ARGUMENT" == refused(lambda: pair.snapshots.seek(protos.SeekRequest(subscription=SUBSCRIPTION)))[0]


def test_snapshot_lives_for_a_week_less_the_age_of_its_backlog(pair):
    """A three days old backlog leaves four days; after that the snapshot is gone."""
    pair.publish("x")
    pair.engine.advance(3 * DAY)
    now = pair.engine.clock.now()
    made = pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION))
    assert abs(made.expire_time.seconds - (now + 4 * DAY)) < 60
    pair.engine.advance(4 * DAY)
    assert "NOT_FOUND" == refused(lambda: pair.snapshots.get_snapshot(protos.GetSnapshotRequest(snapshot=SNAPSHOT)))[0]


def test_snapshot_of_too_old_a_backlog_is_refused(pair):
    """It would expire in less than an hour."""
    pair.publish("x")
    pair.engine.advance(7 * DAY - 1800)
    request = protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION)
    assert "FAILED_PRECONDITION" == refused(lambda: pair.snapshots.create_snapshot(request))[0]


def test_snapshot_labels_can_be_changed(pair):
    """And listed, and deleted."""
    pair.snapshots.create_snapshot(
        protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION, labels={"a": "x"})
    )
    pair.snapshots.update_snapshot(
        protos.UpdateSnapshotRequest(
            snapshot=protos.Snapshot(name=SNAPSHOT, labels={"b": "y"}),
            update_mask=field_mask_pb2.FieldMask(paths=["labels"]),
        )
    )
    listed = pair.snapshots.list_snapshots(protos.ListSnapshotsRequest(project="projects/p")).snapshots
    assert [{"b": "y"}] == [dict(snapshot.labels) for snapshot in listed]
    pair.snapshots.delete_snapshot(protos.DeleteSnapshotRequest(snapshot=SNAPSHOT))
    named = pair.publisher.list_topic_snapshots(protos.ListTopicSnapshotsRequest(topic=TOPIC)).snapshots
    assert [] == list(named)


def test_snapshot_is_made_once_and_with_legal_labels(pair):
    """What is refused makes none, and no other in its place."""

    def make(**labels: str) -> Any:
        request = protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION, labels=labels)
        return pair.snapshots.create_snapshot(request)

    assert "INVALID_ARGUMENT" == refused(lambda: make(Upper="x"))[0]
    assert {"a": "x"} == dict(make(a="x").labels)
    assert "ALREADY_EXISTS" == refused(make)[0]
    update = protos.UpdateSnapshotRequest(
        snapshot=protos.Snapshot(name=SNAPSHOT, labels={"Upper": "x"}),
        update_mask=field_mask_pb2.FieldMask(paths=["labels"]),
    )
    assert "INVALID_ARGUMENT" == refused(lambda: pair.snapshots.update_snapshot(update))[0]


def test_snapshot_needs_a_topic(pair):
    """A subscription whose topic is gone can be drained, but there is nothing that a snapshot would be of."""
    pair.publisher.delete_topic(protos.DeleteTopicRequest(topic=TOPIC))
    request = protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION)
    assert "FAILED_PRECONDITION" == refused(lambda: pair.snapshots.create_snapshot(request))[0]


def test_snapshots_are_listed_by_project_and_in_pages(pair):
    """A project is named in full; another's snapshots are not this one's."""
    names = [f"{SNAPSHOT}-{index}" for index in range(3)]
    for name in names:
        pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(name=name, subscription=SUBSCRIPTION))

    def listed(project: str = "projects/p", **page: Any) -> Any:
        return pair.snapshots.list_snapshots(protos.ListSnapshotsRequest(project=project, **page))

    first = listed(page_size=2)
    rest = listed(page_token=first.next_page_token)
    assert [names[:2], names[2:]] == [[each.name for each in page.snapshots] for page in (first, rest)]
    assert [] == list(listed("projects/other").snapshots)
    assert "INVALID_ARGUMENT" == refused(lambda: listed("p"))[0]


def test_reset_forgets_everything(pair):
    """And the next message id is still a new one."""
    [before] = pair.publish("x")
    schema = protos.Schema(type_=1, definition='syntax = "proto3"; message M { int32 a = 1; }')
    pair.schemas.create_schema(protos.CreateSchemaRequest(parent="projects/p", schema_id="schema", schema=schema))
    pair.reset()
    assert "NOT_FOUND" == refused(pair.pull)[0]
    assert [] == list(pair.schemas.list_schemas(protos.ListSchemasRequest(parent="projects/p")).schemas)
    pair.topic()
    [after] = pair.publish("x")
    assert int(before) < int(after)


def test_reset_takes_back_the_time_that_was_moved(pair):
    """What the next test publishes is of today, though the last one waited for a month."""
    today = pair.engine.now()
    pair.engine.advance(31 * DAY)

    pair.reset()

    assert today == pytest.approx(pair.engine.now(), abs=60)
