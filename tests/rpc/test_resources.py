"""The rules of resources and publishing that are easiest to get wrong, each once, over real RPCs."""

from __future__ import annotations

import re

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from tests.rpc.conftest import DAY, OTHER, SUB, TOPIC, refused

SCHEMA = "projects/p/schemas/point"
V1 = '{"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}'
V2 = (
    '{"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}, '
    '{"name": "y", "type": "int", "default": 0}]}'
)


# Views


def test_get_is_full_and_lists_are_basic_by_default(client, emulator):
    """GetSchema shows the definition by default, the two lists only if the view is set to it."""
    emulator.create_schema(SCHEMA, "AVRO", V1)
    basic, full = 1, 2

    definitions = [
        client.ask("SchemaService/GetSchema", name=SCHEMA),
        client.ask("SchemaService/GetSchema", name=SCHEMA, view=basic),
        *client.ask("SchemaService/ListSchemas", parent="projects/p").schemas,
        *client.ask("SchemaService/ListSchemas", parent="projects/p", view=full).schemas,
        *client.ask("SchemaService/ListSchemaRevisions", name=SCHEMA).schemas,
        *client.ask("SchemaService/ListSchemaRevisions", name=SCHEMA, view=full).schemas,
    ]

    assert [V1, "", "", V1, "", V1] == [schema.definition for schema in definitions]


# Durations of the methods for tests


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        (-1.5, "You passed -1.5s in the request"),
        (1.9999999999, "You passed 2s in the request"),
        (float("nan"), "`message_retention_duration` must be a number of seconds, got nan."),
        (float("inf"), "`message_retention_duration` must be a number of seconds, got inf."),
    ],
)
def test_seconds_that_are_no_retention_are_told_so(emulator, seconds, sentence):
    """The error of a retention out of bounds is about the seconds, not about how a Duration is written."""
    with pytest.raises((RpcError, ValueError), match=re.escape(sentence)):
        emulator.create_topic(TOPIC, message_retention_duration=seconds)


# Expiration


def test_unused_subscription_expires_after_31_days(client, emulator, subscribe):
    """The default policy is filled in, and a subscription that is unused for that long is gone."""
    subscribe()
    assert 31 * DAY == client.subscription().expiration_policy.ttl.seconds
    emulator.advance(30 * DAY)
    assert [] == client.pull()
    emulator.advance(30 * DAY)
    assert SUB == client.subscription().name

    emulator.advance(2 * DAY)

    with refused("NOT_FOUND"):
        client.subscription()


def test_policy_without_ttl_means_never(client, emulator, subscribe):
    """A policy without ttl stays as it is, and the subscription does not expire."""
    subscribe(expiration_policy={})

    emulator.advance(1000 * DAY)

    policy = client.subscription().expiration_policy
    assert client.subscription().HasField("expiration_policy")
    assert not policy.HasField("ttl")


# Masks


def test_masked_field_that_is_unset_is_cleared(client, subscribe):
    """A field named by the mask and left out of the resource returns to its default. Others stay."""
    subscribe(ack_deadline_seconds=30, labels={"a": "b"}, retry_policy={})

    client.update("ack_deadline_seconds", "retry_policy")

    changed = client.subscription()
    assert (10, {"a": "b"}, False) == (
        changed.ack_deadline_seconds,
        dict(changed.labels),
        changed.HasField("retry_policy"),
    )


@pytest.mark.parametrize(
    "path",
    [
        "push_config.no_wrapper.write_metadata",
        "push_config.oidc_token.audience",
        "retry_policy.minimum_backoff",
        "dead_letter_policy.max_delivery_attempts",
        "cloud_storage_config.max_bytes",
    ],
)
def test_clearing_a_part_of_nothing_makes_nothing(client, subscribe, path):
    """Clearing a part of an unset policy sets none: a wrapped push stays wrapped, and immediate retries immediate."""
    subscribe(push_config={"push_endpoint": "http://127.0.0.1:9/"})
    before = client.subscription()

    client.update(path)

    assert before == client.subscription()


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("colour", "'colour' is not a known Subscription field"),
        ("ackDeadlineSeconds", "'ackDeadlineSeconds' is not a known Subscription field"),
        ("topic", "the 'topic' field in the Subscription is not mutable"),
        ("enable_message_ordering", "not mutable"),
        ("detached", "not mutable"),
        ("message_transforms.disabled", "'message_transforms.disabled' is not a known Subscription field"),
        ("labels.key", "'labels.key' is not a known Subscription field"),
    ],
)
def test_one_bad_path_changes_nothing(client, subscribe, path, sentence):
    """An update is carried out as a whole or not at all."""
    subscribe()

    with refused("INVALID_ARGUMENT", sentence):
        client.update("ack_deadline_seconds", path, ack_deadline_seconds=30)

    assert 10 == client.subscription().ack_deadline_seconds


def test_bad_value_changes_nothing(client, subscribe):
    """A value out of bounds also rejects the valid paths of its mask."""
    subscribe()

    with refused("INVALID_ARGUMENT", "ack_deadline=9"):
        client.update("labels", "ack_deadline_seconds", ack_deadline_seconds=9, labels={"a": "b"})

    assert {} == dict(client.subscription().labels)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("expiration_policy", {"expiration_policy": {"ttl": protos.Duration(seconds=10**18)}}),
        ("message_retention_duration", {"message_retention_duration": protos.Duration(seconds=600, nanos=2 * 10**9)}),
        ("retry_policy.minimum_backoff", {"retry_policy": {"minimum_backoff": protos.Duration(seconds=1, nanos=-1)}}),
    ],
)
def test_duration_that_is_none_is_refused(client, subscribe, path, fields):
    """A Duration out of its type's range is refused. Kept, it would break every JSON answer about the subscription."""
    subscribe()

    with refused("INVALID_ARGUMENT", "Duration is not valid"):
        client.update(path, **fields)


def test_moment_that_is_none_is_refused(client, subscribe):
    """A Timestamp that is out of its type's range is refused: of a snapshot, of a topic's source, of a Seek."""
    subscribe()
    snapshot = client.ask("Subscriber/CreateSnapshot", subscription=SUB)
    snapshot.expire_time.seconds -= 10
    snapshot.expire_time.nanos = 2 * 10**9
    mask = protos.FieldMask(paths=["expire_time"])
    source = {"cloud_storage": {"bucket": "bucket", "minimum_object_create_time": protos.Timestamp(seconds=10**15)}}

    with refused("INVALID_ARGUMENT", "Timestamp is not valid"):
        client.ask("Subscriber/UpdateSnapshot", snapshot=snapshot, update_mask=mask)
    with refused("INVALID_ARGUMENT", "Timestamp is not valid"):
        client.ask("Publisher/CreateTopic", name="projects/p/topics/fed", ingestion_data_source_settings=source)
    with refused("INVALID_ARGUMENT", "Timestamp is not valid"):
        client.ask("Subscriber/Seek", subscription=SUB, time=protos.Timestamp(seconds=1, nanos=-5))


@pytest.mark.parametrize("name", ["a" * 9000, "é" * 9000])
def test_long_refusal_arrives(client, name):
    """A long error message is cut, so that clients accept the trailers."""
    with refused("INVALID_ARGUMENT", "^Invalid resource name given .{400}") as error:
        client.ask("Publisher/GetTopic", topic=f"projects/p/topics/{name}")

    assert len(error.value.details().encode()) <= 1024


# Publish


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("attribute key that is not valid", {"attributes": {"GoOgle": "x"}}),
        ("attribute key that is not valid", {"attributes": {"": "x"}}),
        ("257 .*maximum allowed is 256", {"attributes": {"é" * 128 + "x": ""}}),
        ("1026 .*maximum allowed is 1024", {"attributes": {"k": "é" * 513}}),
        ("101 .*maximum value is 100", {"attributes": {f"k{i}": "" for i in range(101)}}),
        ("empty", {"ordering_key": "k"}),
        ("same ordering key", {"data": b"b", "ordering_key": "k"}),
    ],
)
def test_one_bad_message_refuses_the_whole_request(client, emulator, subscribe, sentence, message):
    """Nothing of a refused request is published. Limits count bytes, not characters."""
    subscribe()

    with refused("INVALID_ARGUMENT", sentence):
        client.publish({"data": b"a"}, message)

    assert 0 == emulator.backlog(SUB)


def test_what_the_limits_allow_is_published(client, emulator, subscribe):
    """A thousand messages, a hundred attributes, keys of 256 and values of 1024 bytes, an ordering key of 1024."""
    subscribe()

    client.publish(*({"data": b"a"} for _ in range(1000)))
    client.publish({"attributes": {f"k{i}": "" for i in range(99)} | {"é" * 128: "é" * 512}})
    client.publish({"data": b"a", "ordering_key": "é" * 512})

    assert 1002 == emulator.backlog(SUB)


def test_request_is_limited_to_ten_million_bytes(client, emulator, subscribe):
    """The limit is decimal and counts the request, not the data."""
    subscribe()

    with refused("INVALID_ARGUMENT", r"The value for request_size is too large\. .* the maximum value is 10000000\."):
        client.publish({"data": bytes(10_000_000)})

    client.publish({"data": bytes(9_999_000)})
    assert 1 == emulator.backlog(SUB)


def test_publisher_cannot_set_id_and_time(client, emulator, subscribe):
    """The server's own values replace the client's."""
    subscribe()

    response = client.publish({"data": b"a", "message_id": "7", "publish_time": {"seconds": 5}})

    [received] = client.pull()
    assert response.message_ids == [received.message.message_id]
    assert "7" != received.message.message_id
    assert received.message.publish_time.seconds > 1_600_000_000


def test_unknown_fields_of_a_message_are_dropped(client, emulator, subscribe):
    """A field that the API does not know, even a group of protobuf's oldest kind, does no harm and is not
    delivered."""
    subscribe(filter="attributes:a")
    known = protos.PubsubMessage(data=b"x", attributes={"a": ""}).SerializeToString()
    group, number = b"\x7b\x12\x03\x0a\x01b\x7c", b"\x78\x01"  # field 15, as a group with something in it, and as 1
    body = known + group + number
    name = TOPIC.encode()
    request = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(body)]) + body

    client.channel.unary_unary("/google.pubsub.v1.Publisher/Publish")(request, timeout=10)

    [received] = client.pull()
    assert (b"x", {"a": ""}) == (received.message.data, dict(received.message.attributes))
    received.message.ClearField("message_id")
    received.message.ClearField("publish_time")
    assert known == received.message.SerializeToString()


# And the rest


def test_page_token_outlives_the_item_it_points_at(client, emulator):
    """Pages are sorted by name. Deleting the last item of a page does not break the next."""
    names = [f"projects/p/topics/topic-{letter}" for letter in "abcd"]
    for name in names:
        emulator.create_topic(name)
    first = client.ask("Publisher/ListTopics", project="projects/p", page_size=2)
    client.ask("Publisher/DeleteTopic", topic=names[1])

    second = client.ask("Publisher/ListTopics", project="projects/p", page_size=2, page_token=first.next_page_token)

    assert names == [topic.name for topic in (*first.topics, *second.topics)]
    assert "" == second.next_page_token


def test_names_are_given_where_none_is(client, subscribe):
    """A subscription created without a name gets one in the project of its topic."""
    subscribe()

    created = client.ask("Subscriber/CreateSubscription", topic=TOPIC)

    assert re.fullmatch(r"projects/p/subscriptions/[a-z].{2,}", created.name)
    assert created == client.subscription(created.name)


def test_durations_of_the_methods_for_tests_are_seconds(client, subscribe):
    """Durations passed to `Emulator.create_subscription` are seconds, in any field and of any precision."""
    subscribe(retry_policy={"minimum_backoff": 5, "maximum_backoff": 60.5}, message_retention_duration=600.25)

    kept = client.subscription()
    durations = kept.retry_policy.minimum_backoff, kept.retry_policy.maximum_backoff, kept.message_retention_duration
    assert [5_000, 60_500, 600_250] == [duration.ToMilliseconds() for duration in durations]


@pytest.mark.parametrize(
    ("slip", "sentence"),
    [
        (lambda emulator: emulator.fail("Publish", "NOT_A_CODE"), r"A fault must be one of .*, got NOT_A_CODE"),
        (lambda emulator: emulator.fail("Publish", "INTERNAL", count=0), "at least once"),
        (lambda emulator: emulator.fail("Publish", None, delay=-1), "got -1"),
        (
            lambda emulator: emulator.fail("Publsh", "UNAVAILABLE"),
            r"`Publsh` is not an RPC\. \* is every one of Acknowledge, .*, Publish, ",
        ),
        (lambda emulator: emulator.close_streams("NOT_A_CODE"), r"A stream must end with one of .*, got NOT_A_CODE"),
        (lambda emulator: emulator.fail_acks(0), "An ack must fail with .*, 0 times"),
        (lambda emulator: emulator.fail_acks(outcome="LOST"), "An ack must fail with .*, got LOST"),
        (lambda emulator: emulator.advance(float("nan")), "Time can only move on, got nan"),
        (
            lambda emulator: emulator.create_topic(TOPIC, SCHEMA, "XML"),
            "`encoding` must be one of JSON, BINARY, got XML",
        ),
        (
            lambda emulator: emulator.create_schema(SCHEMA, "JSON", V1),
            "`type` must be one of PROTOCOL_BUFFER, AVRO, got JSON",
        ),
    ],
)
def test_wrong_argument_of_a_method_for_tests_is_an_error(emulator, slip, sentence):
    """A fault that no call could meet is an error: a test that orders it would pass without it."""
    with pytest.raises(ValueError, match=sentence):
        slip(emulator)


@pytest.mark.parametrize(
    "use", [lambda emulator: emulator.publish(TOPIC, b"a"), Emulator.reset, Emulator.streams, lambda e: e.advance(1)]
)
def test_emulator_that_does_not_run_says_so(use):
    """An emulator's methods raise before its start and after its end."""
    emulator = Emulator()
    with pytest.raises(RuntimeError, match=r"The emulator is not running\. Start it"):
        use(emulator)
    with emulator:
        pass
    with pytest.raises(RuntimeError, match=r"The emulator is not running\. Start it"):
        use(emulator)


def test_emulator_that_runs_is_not_started_again(client, emulator, subscribe):
    """A second `start` is an error. The first start's state stays, for RPCs and for the methods for tests."""
    subscribe()

    with pytest.raises(RuntimeError, match="The emulator is already running"):
        emulator.start()

    emulator.publish(TOPIC, b"a")
    assert [b"a"] == client.data()


def test_exports_and_transforms_do_not_pretend(client, emulator, subscribe):
    """The state of an export without a destination says so. A transform of an unsupported kind is refused."""
    subscribe(bigquery_config={"table": "p.d.t"})
    function = {"ai_inference": {"endpoint": "projects/p/locations/l/endpoints/e"}}

    kept = client.subscription()

    resource_error, active = 2, 1
    assert resource_error == kept.state
    assert kept.bigquery_config.state not in (0, active)
    with refused("UNIMPLEMENTED"):
        client.ask("Subscriber/CreateSubscription", name=OTHER, topic=TOPIC, message_transforms=[function])


def test_push_format_stays_unless_it_is_named(client, subscribe):
    """ModifyPushConfig without `x-goog-version` changes the endpoint and keeps the format."""
    endpoint = "http://127.0.0.1:9/"
    subscribe(push_config={"push_endpoint": endpoint, "attributes": {"x-goog-version": "v1beta2"}})

    client.ask("Subscriber/ModifyPushConfig", subscription=SUB, push_config={"push_endpoint": f"{endpoint}other"})

    config = client.subscription().push_config
    assert (f"{endpoint}other", {"x-goog-version": "v1beta2"}) == (config.push_endpoint, dict(config.attributes))


@pytest.mark.parametrize("rpc", ["ModifyPushConfig", "UpdateSubscription"])
def test_push_format_is_kept_by_a_pull_subscription(client, subscribe, rpc):
    """A push subscription that becomes a pull subscription, and a push subscription again, has its `x-goog-version`."""
    first = {"push_endpoint": "http://127.0.0.1:9/", "attributes": {"x-goog-version": "v1beta1"}}
    subscribe(push_config=first)

    for config in ({}, {"push_endpoint": "http://127.0.0.1:9/other"}):
        if rpc == "ModifyPushConfig":
            client.ask("Subscriber/ModifyPushConfig", subscription=SUB, push_config=protos.PushConfig(**config))
        else:
            client.update("push_config", push_config=protos.PushConfig(**config))
        kept = client.subscription().push_config
        assert (config.get("push_endpoint", ""), first["attributes"]) == (kept.push_endpoint, dict(kept.attributes))


def test_push_format_is_always_said(client, subscribe):
    """`Get` returns a valid version, also where the subscription was created without one."""
    subscribe(push_config={"push_endpoint": "http://127.0.0.1:9/"})

    assert {"x-goog-version": "v1"} == dict(client.subscription().push_config.attributes)


def test_push_format_that_does_not_exist_is_refused(client, subscribe):
    subscribe()
    config = {"push_endpoint": "http://127.0.0.1:9/", "attributes": {"x-goog-version": "v2"}}

    with refused("INVALID_ARGUMENT", "v2"):
        client.ask("Subscriber/ModifyPushConfig", subscription=SUB, push_config=config)
