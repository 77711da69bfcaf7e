"""Message transforms over RPCs: at Publish, before Pull, StreamingPull and push. Errors, order, dead letters."""

from __future__ import annotations

import json
import threading
import time

import grpc
import pytest
from google.protobuf import field_mask_pb2

from pubsub_spark.emulator.api import protos
from tests.rpc.conftest import SUB, TOPIC, Client, refused, wait_until
from tests.rpc.test_push import Endpoint

UPPER = "function f(m, d) { m.data = m.data.toUpperCase(); m.attributes.key = d.ordering_key || 'none'; return m; }"
PICKY = """function f(m, d) {
  if (m.data == "drop") return null;
  if (m.data.startsWith("bad")) throw new Error("no " + m.data);
  if (m.data == "loop") while (true);
  m.data += "!"; m.attributes = {id: d.message_id}; return m;
}"""


def udf(code: str, name: str = "f") -> dict[str, object]:
    return {"javascript_udf": {"function_name": name, "code": code}}


def create(client: Client, topic: list[object] | None = None, subscription: list[object] | None = None, **settings):
    client.ask("Publisher/CreateTopic", name=TOPIC, message_transforms=topic)
    client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC, message_transforms=subscription, **settings)


def test_topic_transforms_at_publish(client):
    """The output of the functions, in their order, is published. The key stays."""
    again = udf("function g(m) { m.data += '?'; return m; }", "g")
    create(client, topic=[udf(UPPER), again])

    client.publish({"data": b"a", "ordering_key": "k", "attributes": {"x": "1"}})

    [received] = client.pull()
    assert (b"A?", {"x": "1", "key": "k"}, "k") == (
        received.message.data, dict(received.message.attributes), received.message.ordering_key,
    )  # fmt: skip


def test_dropped_messages_have_ids_and_are_not_delivered(client, emulator):
    """A Publish returns an id for each message, in order. Dropped messages are nowhere."""
    create(client, topic=[udf(PICKY)])

    ids = client.publish({"data": b"a"}, {"data": b"drop"}, {"data": b"b"}).message_ids
    assert 3 == len(set(ids))
    assert [(b"a!", ids[0]), (b"b!", ids[2])] == [
        (each.message.data, each.message.message_id) for each in client.pull()
    ]
    assert 1 == len(client.publish({"data": b"drop"}).message_ids)
    assert 2 == emulator.backlog(SUB)


def test_failed_publish_publishes_nothing(client, emulator):
    """If a function throws, the whole request is refused, with the function, the topic and the message."""
    create(client, topic=[udf(PICKY)])

    with refused("INVALID_ARGUMENT", r"The message transform `f`: Error: no bad \(topic=.*, message=1\)\."):
        client.publish({"data": b"a"}, {"data": b"bad"})
    with refused("INVALID_ARGUMENT", "not UTF-8"):
        client.publish({"data": b"\xff"})
    assert 0 == emulator.backlog(SUB)


def test_endless_loop_holds_up_nobody_else(client, emulator):
    """While one topic's function loops, and other Publishes wait for it, another topic is published to at once."""
    create(client, topic=[udf(PICKY)])
    other, message = "projects/p/topics/other", protos.PubsubMessage(data=b"x")
    client.ask("Publisher/CreateTopic", name=other)
    sentences: list[str] = []

    def loop() -> None:
        try:
            client.publish({"data": b"loop"})
        except grpc.RpcError as error:
            sentences.append(error.details())

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for each in threads:
        each.start()
    wait_until(lambda: bool(sentences))  # the first has failed, others wait
    begun = time.monotonic()
    for _ in range(5):
        client.ask("Publisher/Publish", topic=other, messages=[message])
    took = time.monotonic() - begun
    assert len(sentences) < 4, "the loops had ended"
    for each in threads:
        each.join()
    assert took < 1.5
    assert ["The message transform `f`: it took longer than 500 ms"] * 4 == [
        each.partition(" (")[0] for each in sentences
    ]


def test_schema_is_that_of_what_is_made(client, emulator):
    """A topic with a schema checks the output of its functions."""
    emulator.create_schema(
        "projects/p/schemas/word",
        "AVRO",
        '{"type": "record", "name": "W", "fields": [{"name": "w", "type": "string"}]}',
    )
    wrap = "function f(m) { m.data = JSON.stringify({w: m.data}); return m; }"
    settings = {"schema": "projects/p/schemas/word", "encoding": "JSON"}
    client.ask("Publisher/CreateTopic", name=TOPIC, schema_settings=settings, message_transforms=[udf(wrap)])

    assert 1 == len(client.publish({"data": b"hi"}).message_ids)


def test_refusal_counts_the_messages_of_the_request(client, emulator):
    """A message that a function has dropped counts, too: the index is that of the caller."""
    emulator.create_schema("projects/p/schemas/number", "AVRO", '{"type": "int"}')
    settings = {"schema": "projects/p/schemas/number", "encoding": "JSON"}
    drop = "function f(m) { return m.data === 'drop' ? null : m; }"
    client.ask("Publisher/CreateTopic", name=TOPIC, schema_settings=settings, message_transforms=[udf(drop)])

    with refused("INVALID_ARGUMENT", "Message 2 of the request does not match revision"):
        client.publish({"data": b"1"}, {"data": b"drop"}, {"data": b"x"})


def test_subscription_transforms_before_delivery(client, emulator):
    """A pull gets the output of the functions, drops are acked, and another subscription sees the original."""
    create(client, subscription=[udf(PICKY)])
    other = "projects/p/subscriptions/other"
    client.ask("Subscriber/CreateSubscription", name=other, topic=TOPIC)

    [first, _, third] = client.publish({"data": b"a"}, {"data": b"drop"}, {"data": b"b"}).message_ids
    received = client.pull()
    assert [(b"a!", {"id": first}), (b"b!", {"id": third})] == [
        (each.message.data, dict(each.message.attributes)) for each in received
    ]
    assert [b"a", b"drop", b"b"] == client.data(other)
    client.ack(*(each.ack_id for each in received))
    assert 0 == emulator.backlog(SUB)


def test_messages_that_fail_become_dead_letters(client, emulator):
    """A message on which a function fails is nacked, and forwarded as it was after the attempts that are allowed."""
    dead, dead_sub = "projects/p/topics/dead", "projects/p/subscriptions/dead"
    client.ask("Publisher/CreateTopic", name=dead)
    client.ask("Subscriber/CreateSubscription", name=dead_sub, topic=dead)
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    create(client, subscription=[udf(PICKY)], dead_letter_policy=policy)

    client.publish({"data": b"bad"}, {"data": b"good"})
    found = [data for _ in range(6) for data in client.data()]

    assert [b"good!"] == found
    assert [b"bad"] == client.data(dead_sub)


def test_key_waits_for_its_failed_message(client, emulator):
    """Messages after a failed message of its key are delivered after it, not before."""
    create(client, subscription=[udf(PICKY)], enable_message_ordering=True)
    client.publish({"data": b"bad", "ordering_key": "k"}, {"data": b"b", "ordering_key": "k"})
    client.publish({"data": b"free", "ordering_key": "other"})

    assert {b"free!"} == {data for _ in range(3) for data in client.data()}
    mask = field_mask_pb2.FieldMask(paths=["message_transforms"])
    client.ask("Subscriber/UpdateSubscription", subscription=protos.Subscription(name=SUB), update_mask=mask)
    assert [b"bad", b"b"] == client.data()


def test_stream_gets_what_functions_make(client, emulator):
    """A StreamingPull drops and changes as a Pull does, and continues after a response that was dropped whole."""
    create(client, subscription=[udf(PICKY)])
    done = threading.Event()

    def requests():
        yield protos.StreamingPullRequest(subscription=SUB, stream_ack_deadline_seconds=10)
        done.wait(20)

    pull = client.channel.stream_stream(
        "/google.pubsub.v1.Subscriber/StreamingPull",
        protos.StreamingPullRequest.SerializeToString,
        protos.StreamingPullResponse.FromString,
    )
    stream = pull(requests())
    client.publish({"data": b"drop"})
    wait_until(lambda: emulator.backlog(SUB) == 0)
    client.publish({"data": b"a"})
    assert [b"a!"] == [each.message.data for each in next(stream).received_messages]
    done.set()
    stream.cancel()


def test_push_sends_what_functions_make(client, emulator):
    """An endpoint is pushed the output of the functions. Dropped messages are acked without a request."""
    endpoint = Endpoint()
    create(client, subscription=[udf(PICKY)], push_config={"push_endpoint": endpoint.url})
    client.publish({"data": b"drop"}, {"data": b"a"})

    [(_, _, body)] = endpoint.wait_for(1)
    assert "YSE=" == json.loads(body)["message"]["data"]
    wait_until(lambda: emulator.backlog(SUB) == 0)
    assert 1 == len(endpoint.requests)
    endpoint.close()


@pytest.mark.parametrize(
    ("transforms", "code", "sentence"),
    [
        ([udf("function f(")], "INVALID_ARGUMENT", "The message transform `f` cannot be run: .*SyntaxError"),
        ([udf("let x = 1;")], "INVALID_ARGUMENT", "the code has no function of that name"),
        ([udf("while (true);")], "INVALID_ARGUMENT", "took longer than 500 ms to load"),
        ([udf("function f(m) { return m; }" + " " * 20_480)], "INVALID_ARGUMENT", "javascript_udf.code"),
        (
            [udf(f"function f{n}(m) {{ return m; }}", f"f{n}") for n in range(6)],
            "INVALID_ARGUMENT",
            "message_transforms",
        ),
        (
            [{"compression": {"compression_algorithm": 1, "compression_mode": 1}}],
            "UNIMPLEMENTED",
            "of JavaScript only",
        ),
    ],
    ids=["syntax", "name", "loop", "size", "six", "kind"],
)
def test_what_cannot_be_run_is_refused(client, emulator, transforms, code, sentence):
    """Code is checked when it is set, on a topic and on a subscription, at creation and at update."""
    with refused(code, sentence):
        client.ask("Publisher/CreateTopic", name=TOPIC, message_transforms=transforms)
    create(client)
    mask = field_mask_pb2.FieldMask(paths=["message_transforms"])
    with refused(code, sentence):
        changed = protos.Subscription(name=SUB, message_transforms=transforms)
        client.ask("Subscriber/UpdateSubscription", subscription=changed, update_mask=mask)


def test_transforms_are_updated(client, emulator):
    """Other functions hold for the next message. Without any, messages are as they were published."""
    create(client, topic=[udf(UPPER)])
    mask = field_mask_pb2.FieldMask(paths=["message_transforms"])
    client.publish({"data": b"a"})
    changed = protos.Topic(name=TOPIC, message_transforms=[udf("function f(m) { m.data += '2'; return m; }")])
    client.ask("Publisher/UpdateTopic", topic=changed, update_mask=mask)
    client.publish({"data": b"a"})
    client.ask("Publisher/UpdateTopic", topic=protos.Topic(name=TOPIC), update_mask=mask)
    client.publish({"data": b"a"})

    assert [b"A", b"a2", b"a"] == client.data()
