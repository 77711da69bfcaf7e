"""Subscriber: accepted and refused requests, filled-in fields and responses. No socket. The clock moves by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf import field_mask_pb2, timestamp_pb2

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.runtime.unanswered import Answer
from tests.unit.emulator.conftest import DAY, SUBSCRIPTION, TOPIC, data, refused, seconds


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
    """One bad path refuses the whole request."""
    request = protos.UpdateSubscriptionRequest(
        subscription=protos.Subscription(name=SUBSCRIPTION, labels={"a": "x"}),
        update_mask=field_mask_pb2.FieldMask(paths=paths),
    )
    assert message in refused(lambda: pair.subscriber.update_subscription(request))[1]
    kept = pair.subscriber.get_subscription(protos.GetSubscriptionRequest(subscription=SUBSCRIPTION))
    assert {} == dict(kept.labels)


def test_defaults_are_filled_in(handlers):
    """A plain subscription has the defaults of the service."""
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
    """Unset fields of a policy are filled in: retries after 10 s to 600 s, five attempts, no expiry."""
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
    """A subscription or snapshot without a name gets one in the project of its topic or subscription."""
    assert pair.subscription("").name.startswith("projects/p/subscriptions/s-")
    snapshot = pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(subscription=SUBSCRIPTION))
    assert snapshot.name.startswith("projects/p/snapshots/s-")


def bigtable(**key: Any) -> dict[str, Any]:
    """Return a Bigtable subscription's row key, built from fields of the message."""
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
        *(
            ({"push_config": {"push_endpoint": endpoint}}, "INVALID_ARGUMENT", "Invalid push endpoint given")
            for endpoint in ("http://a b/", "http://%zz/", "http://[::1%0a]/", "http://[::1", "http://x:0/")
        ),
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
        ({"cloud_storage_config": {"bucket": "bbb", "filename_suffix": "x\n"}}, "INVALID_ARGUMENT", "filename_suffix"),
        ({"cloud_storage_config": {"bucket": "bbb", "filename_prefix": "x\r"}}, "INVALID_ARGUMENT", "filename_prefix"),
        (
            {"cloud_storage_config": {"bucket": "bbb", "filename_prefix": ".well-known/acme-challenge/x"}},
            "INVALID_ARGUMENT",
            "filename_prefix",
        ),
        (
            {"cloud_storage_config": {"bucket": "bbb", "filename_prefix": "ü" * 513}},
            "INVALID_ARGUMENT",
            "The value for object_name_size is too large. You passed 1026",
        ),
        *(
            (
                {"cloud_storage_config": {"bucket": "bbb", "filename_datetime_format": form}},
                "INVALID_ARGUMENT",
                "filename_datetime_format",
            )
            for form in (
                "YYYY-MM-DD",  # without the time
                "YY-YYYY-MM-DD-hh-mm-ss",
                "YYYY-MMM-DD-hh-mm-ss",
                "YYYY-MM-DDThh:mm:ssTZ",
                "YYYY-MM-DDThh:mm:ssZ+00:00",
                "YYYY-MM-DD hh:mm:ss",
                "Y" * 200 + "X",  # with two ways to read each four, for ever
            )
        ),
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
            {"message_transforms": [{"ai_inference": {"endpoint": "projects/p/locations/l/endpoints/e"}}]},
            "UNIMPLEMENTED",
            "Set `disabled` to keep one of `ai_inference` without running it",
        ),
    ],
)
def test_illegal_settings_are_refused(handlers, settings, code, part):
    """Every limit of a Subscription is enforced, with the service's error message if known. Nothing is created."""
    handlers.topic()
    error = refused(lambda: handlers.subscription(**settings))
    assert code == error[0]
    assert part in error[1]
    assert {} == handlers.engine.broker.subscriptions


def test_export_says_that_it_goes_nowhere(handlers):
    """An export subscription is kept and returned with the states for an inactive export, and cannot be pulled."""
    handlers.topic()
    kept = handlers.subscription(cloud_storage_config={"bucket": "bbb"})

    assert (2, 3, 300) == (kept.state, kept.cloud_storage_config.state, kept.ack_deadline_seconds)
    assert kept.cloud_storage_config.HasField("text_config")
    assert "This method is not supported for this subscription type." == refused(handlers.pull)[1]


@pytest.mark.parametrize("table", ["p.d.t", "p:d.t", "example.com:p.d.t"])
def test_table_of_any_project_is_taken(handlers, table):
    """A table of any project is accepted, including a project of a domain (`example.com:p`)."""
    handlers.topic()
    assert table == handlers.subscription(bigquery_config={"table": table}).bigquery_config.table


def test_bigtable_that_is_not_there_is_a_permission_denied(handlers):
    """A missing Bigtable table is the state PERMISSION_DENIED, because NOT_FOUND is unused."""
    handlers.topic()
    kept = handlers.subscription(**bigtable(key_fields=["a", "b"], delimiter=b"#"))

    permission_denied = 4
    assert (2, permission_denied) == (kept.state, kept.bigtable_config.state)


def test_disabled_transform_is_kept(handlers):
    """A disabled transform, which would not run anyway, is kept."""
    transform = {"javascript_udf": {"function_name": "f", "code": "function f(m) {}"}, "disabled": True}
    assert "f" == handlers.topic(message_transforms=[transform]).message_transforms[0].javascript_udf.function_name


def test_idle_subscription_expires(handlers):
    """A subscription expires after its ttl without use. A used one stays."""
    handlers.topic()
    handlers.subscription(expiration_policy={"ttl": seconds(DAY)})
    handlers.engine.advance(DAY - 1)
    handlers.pull()
    handlers.engine.advance(DAY - 1)
    assert [] == handlers.pull()
    handlers.engine.advance(DAY + 1)
    assert "NOT_FOUND" == refused(handlers.pull)[0]


def test_shortened_deadline_is_for_what_comes(pair):
    """An update changes new leases. A masked field that is left unset goes back to its default."""
    for deadline, expected in ((60, 60), (0, 10)):
        request = protos.UpdateSubscriptionRequest(
            subscription=protos.Subscription(name=SUBSCRIPTION, ack_deadline_seconds=deadline),
            update_mask=field_mask_pb2.FieldMask(paths=["ack_deadline_seconds"]),
        )
        assert expected == pair.subscriber.update_subscription(request).ack_deadline_seconds


@pytest.mark.parametrize("ack_id", ["not-an-ack-id", "", "x" * 190])
def test_malformed_ack_ids_are_refused(pair, ack_id):
    """A malformed ack id is refused, with the id in the error message."""
    request = protos.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=[ack_id])
    assert (
        "INVALID_ARGUMENT",
        f"You have passed an invalid ack ID to the service (ack_id={ack_id}).",
    ) == refused(lambda: pair.subscriber.acknowledge(request.SerializeToString()))


def test_ack_id_of_another_subscription_is_malformed(pair):
    """The ack id of another subscription is refused as malformed."""
    pair.subscription("projects/p/subscriptions/other")
    pair.publish("x")
    [held] = pair.pull()
    assert "INVALID_ARGUMENT" == refused(lambda: pair.ack(held, subscription="projects/p/subscriptions/other"))[0]


def test_ack_id_of_a_deleted_subscription_acknowledges_nothing_of_its_successor(pair):
    """An ack id of a deleted subscription acknowledges nothing of a new one of the same name."""
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
    """The deadline of a message is 0 to 600 seconds."""
    pair.publish("x")
    [held] = pair.pull()
    message = refused(lambda: pair.modify(amount, held))[1]
    assert f"(ack_deadline={amount}). The ack deadline must be between 0 and 600 seconds." in message


def test_pull_needs_a_positive_number(pair):
    """A Pull of zero or fewer messages is refused."""
    assert "(argument=max_messages)" in refused(lambda: pair.pull(most=0))[1]


def test_waiting_pull_ends_with_its_subscription(pair):
    """A successor of the same name is another subscription. A Pull that waits for the first fails with NOT_FOUND."""
    waiting = pair.begin_pull()
    with pair.engine.open():  # so that the Pull checks again when both are done
        pair.delete_subscription()
        pair.subscription()

    assert "NOT_FOUND" == refused(lambda: waiting.result(timeout=5))[0]


def test_successor_of_a_subscription_that_a_pull_waited_on_expires(pair):
    """The trace that a Pull leaves on a deleted subscription does not count as activity of its successor."""
    waiting = pair.begin_pull()
    pair.delete_subscription()
    refused(lambda: waiting.result(timeout=5))
    pair.subscription()

    pair.engine.advance(32 * DAY)

    assert "NOT_FOUND" == refused(pair.pull)[0]


def test_late_ack_is_no_error_without_exactly_once(pair):
    """A late ack acknowledges nothing, and is no error without exactly-once delivery."""
    pair.publish("x")
    [held] = pair.pull()
    pair.engine.advance(11)
    pair.ack(held)
    assert ["x"] == data(pair.pull())


def test_exactly_once_tells_failures_by_id(handlers):
    """The stale id is reported, the good one of the same request counts, and a repeated ack is not an error."""
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
    """The injected failure applies to one request, and nothing of that request is acked."""
    handlers.topic()
    handlers.subscription(enable_exactly_once_delivery=True)
    handlers.publish("a")
    held = handlers.pull()
    handlers.faults.inject(1, "TRANSIENT_FAILURE_UNORDERED_ACK_ID")
    with pytest.raises(RpcError) as error:
        handlers.ack(*held)
    assert {held[0].ack_id: "TRANSIENT_FAILURE_UNORDERED_ACK_ID"} == error.value.metadata
    handlers.ack(*held)


def test_filter_lets_through_what_matches(handlers):
    """Messages that do not match are acked automatically, and a seek does not bring them back."""
    handlers.topic(message_retention_duration=seconds(600))
    handlers.subscription(filter='attributes.kind = "good"')
    handlers.publish("a", attributes={"kind": "good"})
    handlers.publish("b", attributes={"kind": "bad"})
    assert ["a"] == data(handlers.pull())
    handlers.snapshots.seek(protos.SeekRequest(subscription=SUBSCRIPTION, time=timestamp_pb2.Timestamp()))
    assert ["a"] == data(handlers.pull())


def test_failing_message_goes_to_the_dead_letter_topic(handlers):
    """A message that failed five times is copied to the dead-letter topic with its origin, and leaves the source."""
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
    """A message whose last lease expires goes to the dead-letter topic at its deadline, even without a Pull."""
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
    """A message whose dead-letter topic was deleted is neither forwarded nor lost."""
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
    """An update checks again only the fields that it changes."""
    handlers.topic()
    handlers.topic("projects/p/topics/dead")
    handlers.subscription(dead_letter_policy={"dead_letter_topic": "projects/p/topics/dead"})
    handlers.publisher.delete_topic(protos.DeleteTopicRequest(topic="projects/p/topics/dead"))
    request = protos.UpdateSubscriptionRequest(
        subscription=protos.Subscription(name=SUBSCRIPTION, labels={"a": "x"}),
        update_mask=field_mask_pb2.FieldMask(paths=["labels"]),
    )
    assert {"a": "x"} == dict(handlers.subscriber.update_subscription(request).labels)


def test_ack_ids_of_a_request_of_nodes_client_fit(pair):
    """3,000 ack ids, as Node's client packs them, are below the limit. Above it the error is the service's."""
    pair.publish("x")
    [received] = pair.pull()
    request = protos.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=[received.ack_id] * 3000)
    pair.subscriber.acknowledge(request.SerializeToString())

    request.ack_ids.extend([received.ack_id] * 200)
    assert ("INVALID_ARGUMENT", "Request payload size exceeds the limit: 524288 bytes.") == refused(
        lambda: pair.subscriber.acknowledge(request.SerializeToString())
    )


def test_pull_waits_for_the_response_to_the_publish(pair):
    """A Pull delivers a message only after the response to its Publish was written. If its client leaves before that,
    the message returns to the queue.
    """
    answer = Answer()
    request = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(data=b"x")])
    pair.publisher.publish(request.SerializeToString(), answer)

    async def leave() -> None:
        pull = protos.PullRequest(subscription=SUBSCRIPTION, max_messages=1).SerializeToString()
        await asyncio.wait_for(pair.subscriber.pull(pull, RpcContext("Pull")), 0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    pair.engine.unanswered.written(answer)
    [again] = pair.pull()
    assert 0 == again.delivery_attempt
