"""Log lines of calls, derived from their bytes."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc import call_log
from pubsub_spark.emulator.rpc.context import RpcContext

TOPIC, SUBSCRIPTION = "projects/p/topics/news", "projects/p/subscriptions/all"
MESSAGE = protos.PubsubMessage(data=b"x")


def ended(rpc, request, response=b"", error=None, messages=0):
    context = RpcContext(f"/google.pubsub.v1.Service/{rpc}", peer="ipv4:127.0.0.1:1", messages=messages)
    context.request = request if isinstance(request, bytes) else request.SerializeToString()
    return call_log.ended(context, response, error, 0.0012)


@pytest.mark.parametrize(
    ("rpc", "request_", "said"),
    [
        ("Publish", protos.PublishRequest(topic=TOPIC, messages=[MESSAGE] * 2), f"{TOPIC}, 2 messages, "),
        ("Acknowledge", protos.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=["a"]),
         f"{SUBSCRIPTION}, 1 message, "),
        ("UpdateTopic", protos.UpdateTopicRequest(topic=protos.Topic(name=TOPIC)), f"{TOPIC}, "),
        ("ListTopics", protos.ListTopicsRequest(project="projects/p"), "projects/p, "),
        ("GetTopic", b"\xff", ""),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_sentence_names_resource_and_messages(rpc, request_, said):
    """A call is logged with the resource that its path has in the JSON API, and the number of its messages."""
    assert f"{rpc}, {said}1.2 ms, from ipv4:127.0.0.1:1, OK" == ended(rpc, request_).sentence


def test_messages_of_a_pull_are_those_of_its_response():
    """A Pull is logged with the number of messages it got, a stream with the number it delivered."""
    received = protos.PullResponse(received_messages=[protos.ReceivedMessage(message=MESSAGE)] * 3).SerializeToString()
    pull = ended("Pull", protos.PullRequest(subscription=SUBSCRIPTION, max_messages=9), received)
    stream = ended("StreamingPull", protos.StreamingPullRequest(subscription=SUBSCRIPTION), messages=1234)

    assert (SUBSCRIPTION, 3) == (pull.fields["resource"], pull.fields["messages"])
    assert (SUBSCRIPTION, 1234) == (stream.fields["resource"], stream.fields["messages"])


def test_errors_have_their_sentence():
    """A failed call has the code and the message. A call that was cancelled or failed by a bug has the code."""
    refused = ended("GetTopic", b"", error=RpcError("NOT_FOUND", "None."))

    assert refused.sentence.endswith("NOT_FOUND: None.")
    assert ("NOT_FOUND", "None.") == (refused.fields["code"], refused.fields["error"])
    assert "CANCELLED" == ended("GetTopic", b"", error=asyncio.CancelledError()).fields["code"]
    assert "INTERNAL" == ended("GetTopic", b"", error=ZeroDivisionError()).fields["code"]


def test_json_is_one_line():
    """A record is a line of JSON with the fields of the call, and its exception if it has one."""
    formatter = call_log.JsonFormatter()
    record = logging.LogRecord("emulator", logging.INFO, "", 0, "%s", ("Hällo\nall",), None)
    record.fields = {"rpc": "Publish", "messages": 2}
    line = formatter.format(record)

    assert 1 == len(line.splitlines())
    found = json.loads(line)
    assert ("INFO", "Hällo\nall", "Publish", 2) == tuple(
        found[name] for name in ("severity", "message", "rpc", "messages")
    )
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        failed = logging.LogRecord(
            "emulator", logging.ERROR, "", 0, "failed", (), (type(error), error, error.__traceback__)
        )
    assert "ZeroDivisionError" in json.loads(formatter.format(failed))["exception"]
