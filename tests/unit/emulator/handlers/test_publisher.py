"""Publisher: accepted and refused requests, filled-in fields and responses. No socket. The clock moves by hand."""

from __future__ import annotations

import tracemalloc

import pytest
from google.protobuf import field_mask_pb2, timestamp_pb2

from pubsub_spark.emulator.api import protos
from tests.unit.emulator.conftest import DAY, SUBSCRIPTION, TOPIC, data, refused, seconds


@pytest.mark.parametrize("name", ["projects/p/topics/ab", "projects/p/topics/1abc", "projects/p/topics/googler", "x"])
def test_illegal_names_are_refused(handlers, name):
    """An id has 3 to 255 characters, begins with a letter and not with `goog`. The error names that rule."""
    code, message = refused(lambda: handlers.topic(name))
    assert "INVALID_ARGUMENT" == code
    assert message.startswith(f"Invalid resource name given (name={name}).")
    assert "3 to 255" in message


@pytest.mark.parametrize("labels", [{"Upper": "x"}, {"1st": "x"}, {"a" * 64: "x"}, {"a": "B"}, {"a": "x" * 64}])
def test_illegal_labels_are_refused(handlers, labels):
    """Labels have lower-case letters, digits, `_` and `-`, at most 63 of them."""
    code, message = refused(lambda: handlers.topic(labels=labels))
    assert "INVALID_ARGUMENT" == code
    assert 'Invalid field "labels"' in message


def test_labels_may_be_international(handlers):
    """Labels may be of any script that has lower-case or caseless letters."""
    assert {"größe": "日本"} == dict(handlers.topic(labels={"größe": "日本"}).labels)


def test_lists_come_in_pages(handlers):
    """A page token continues after the last name, even if that is gone."""
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
    """A page token is refused by the same method of another project, and by another method of the same."""
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
    """Page sizes are from 0 to 1000, and tokens are the emulator's own."""
    request = protos.ListTopicsRequest(project="projects/p", **page)
    assert message in refused(lambda: handlers.publisher.list_topics(request))[1]


def test_children_of_a_missing_topic_are_not_found(handlers):
    """The subscriptions of a missing topic are NOT_FOUND, because an empty list would mean that the topic exists."""
    request = protos.ListTopicSubscriptionsRequest(topic=TOPIC)
    assert ("NOT_FOUND", "Resource not found (resource=topic).") == refused(
        lambda: handlers.publisher.list_topic_subscriptions(request)
    )


def test_plain_topic_is_its_name_alone(handlers):
    """A topic without settings is its name alone. Nothing is filled in, and output-only fields of the request are
    ignored.
    """
    assert protos.Topic(name=TOPIC) == handlers.topic(state=1, satisfies_pzs=True)


@pytest.mark.parametrize("retention", [599, 31 * DAY + 1])
def test_topic_retention_has_bounds(handlers, retention):
    """A topic retains messages for 10 minutes to 31 days. The error has the service's words."""
    message = refused(lambda: handlers.topic(message_retention_duration=seconds(retention)))[1]
    assert message.endswith("but the value must be between 10m and 744h.")


def test_update_changes_what_the_mask_names(handlers):
    """A masked field that is left unset is cleared. Unmasked fields stay."""
    handlers.topic(labels={"a": "x"}, message_retention_duration=seconds(600))
    updated = handlers.publisher.update_topic(
        protos.UpdateTopicRequest(
            topic=protos.Topic(name=TOPIC, labels={"b": "y"}),
            update_mask=field_mask_pb2.FieldMask(paths=["message_retention_duration"]),
        )
    )
    assert protos.Topic(name=TOPIC, labels={"a": "x"}) == updated


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
        (
            [{"data": b"x", "attributes": {"ä" * 129: "x"}}],
            f'The attribute "{"ä" * 129}" in the request has a key that is too long. The length is 258 characters',
        ),
        (
            [{"data": b"x", "attributes": {"a": "ä" * 513}}],
            'The attribute "a" in the request has a value that is too long. The length is 1026 characters, but the '
            "maximum allowed is 1024. Refer to https://cloud.google.com/pubsub/quotas for more information.",
        ),
        ([{"data": b"x", "attributes": {f"a{n}": "" for n in range(101)}}], "attribute_count"),
        ([{"data": b"x", "ordering_key": "k" * 1025}], "ordering_key_size"),
        ([{"data": b"x", "ordering_key": "k"}, {"data": b"x"}], "the same ordering key"),
        ([{"data": b"x"}, {"data": b"x", "ordering_key": "k"}], "the same ordering key"),
    ],
)
def test_publish_is_all_or_nothing(pair, messages, part):
    """Every limit of a Publish request is enforced. No message of a refused request is published."""
    request = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(**each) for each in messages])
    code, message = refused(lambda: pair.publisher.publish(request.SerializeToString()))
    assert "INVALID_ARGUMENT" == code
    assert part in message
    assert [] == pair.pull()


def test_limits_are_reached_not_crossed(pair):
    """A message may have 100 attributes, names of 256 and values of 1024 bytes, and an empty value."""
    attributes = {f"a{n}": "" for n in range(99)} | {"k" * 256: "v" * 1024}
    pair.publish("x", attributes=attributes, ordering_key="k" * 1024)
    [held] = pair.pull()
    assert attributes == dict(held.message.attributes)


def test_publisher_does_not_choose_id_and_time(pair):
    """The server's id and time replace those in the request."""
    [assigned] = pair.publish("x", message_id="mine", publish_time=timestamp_pb2.Timestamp(seconds=1, nanos=1))
    [held] = pair.pull()
    assert assigned == held.message.message_id
    assert 1 < held.message.publish_time.seconds


def test_deleted_topic_leaves_a_subscription_that_can_be_drained(pair):
    """A subscription of a deleted topic names `_deleted-topic_`. A new topic of the old name does not affect it."""
    pair.publish("old")
    pair.publisher.delete_topic(protos.DeleteTopicRequest(topic=TOPIC))
    pair.topic()
    pair.publish("new")
    kept = pair.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))

    assert "_deleted-topic_" == kept.topic
    assert ["old"] == data(pair.pull())


def test_detached_subscription_is_empty_and_shut(pair):
    """A detached subscription has no backlog, is no longer listed, and refuses pulls as a failed precondition."""
    pair.publish("x")
    pair.publisher.detach_subscription(protos.DetachSubscriptionRequest(subscription=SUBSCRIPTION))
    listed = pair.publisher.list_topic_subscriptions(protos.ListTopicSubscriptionsRequest(topic=TOPIC))

    assert [] == list(listed.subscriptions)
    assert "FAILED_PRECONDITION" == refused(pair.pull)[0]
    kept = pair.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))
    assert kept.detached


def test_detached_subscription_does_not_speak_of_its_topic(handlers):
    """A detached subscription does not show its old topic's retention, which no longer applies to it."""
    handlers.topic(message_retention_duration=seconds(600))
    handlers.subscription()
    handlers.publisher.detach_subscription(protos.DetachSubscriptionRequest(subscription=SUBSCRIPTION))
    kept = handlers.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))

    assert not kept.HasField("topic_message_retention_duration")


def test_ingestion_says_that_it_does_not_happen(handlers):
    """The states of a topic with ingestion, and of its source, show that nothing is ingested."""
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
    """An ingestion source that lacks a setting to reach it is refused."""
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
    """A bucket's name must be allowed by Cloud Storage, for export and for ingestion."""
    handlers.topic()
    _, message = refused(lambda: handlers.subscription(cloud_storage_config={"bucket": bucket}))
    assert "cloud_storage_config.bucket" in message

    source = {"cloud_storage": {"bucket": bucket}}
    _, message = refused(lambda: handlers.topic(ingestion_data_source_settings=source))
    assert "cloud_storage.bucket" in message


@pytest.mark.parametrize("bucket", ["bbb", "0-my_bucket.9", "b" * 63, ".".join(["b" * 63] * 3)])
def test_bucket_may_have_dots(handlers, bucket):
    """A bucket's name with dots may be longer than 63 characters."""
    handlers.topic()

    assert bucket == handlers.subscription(cloud_storage_config={"bucket": bucket}).cloud_storage_config.bucket


def test_topic_retention_is_told_by_its_subscriptions(pair):
    """A change of the topic's retention shows in the subscription."""
    pair.publisher.update_topic(
        protos.UpdateTopicRequest(
            topic=protos.Topic(name=TOPIC, message_retention_duration=seconds(600)),
            update_mask=field_mask_pb2.FieldMask(paths=["message_retention_duration"]),
        )
    )
    kept = pair.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))
    assert 600 == kept.topic_message_retention_duration.seconds


def test_resource_that_was_returned_does_not_change(pair):
    """A returned resource does not change when another request changes it, because it may be serialised later."""
    get = protos.GetSubscriptionRequest(subscription=SUBSCRIPTION)
    first = pair.subscriber.get_subscription(get)

    pair.publisher.detach_subscription(protos.DetachSubscriptionRequest(subscription=SUBSCRIPTION))
    second = pair.subscriber.get_subscription(get)
    pair.publisher.delete_topic(protos.DeleteTopicRequest(topic=TOPIC))

    assert [(TOPIC, False), (TOPIC, True)] == [(each.topic, each.detached) for each in (first, second)]
    assert "_deleted-topic_" == pair.subscriber.get_subscription(get).topic


def test_attributes_of_google_clients_are_accepted(pair):
    """OpenTelemetry's context, which Google's clients add, is kept. Other keys that begin with `goog` are refused."""
    traced = {"googclient_traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    pair.publisher.publish(
        protos.PublishRequest(topic=TOPIC, messages=[{"data": b"a", "attributes": traced}]).SerializeToString()
    )
    [received] = pair.pull()

    assert traced == dict(received.message.attributes)
    other = protos.PublishRequest(topic=TOPIC, messages=[{"attributes": {"googclient_other": "x"}}])
    assert "key=googclient_other" in refused(lambda: pair.publisher.publish(other.SerializeToString()))[1]


def test_backlog_is_small_and_leaves_nothing(handlers):
    """A message of 100 bytes, one of a thousand in a request, takes at most 150 bytes. Deleted ones leave no memory."""
    request = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(data=b"x" * 100)] * 1000)
    raw = request.SerializeToString()
    held, left = [], []
    tracemalloc.start()
    for _ in range(4):
        handlers.topic()
        handlers.subscription()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(50):
            handlers.publisher.publish(bytes(bytearray(raw)))  # as from a socket: bytes of its own
        held.append(tracemalloc.get_traced_memory()[0] - before)
        handlers.delete_subscription()
        handlers.publisher.delete_topic(protos.DeleteTopicRequest(topic=TOPIC))
        left.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert 100 < max(held) / 50_000 < 150
    assert max(left[1:]) - left[0] < 50_000
