"""Clients of the JSON API that others wrote: Google's Python client over REST, and gcloud."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.pubsub_v1 import PublisherClient, PubsubMessage, SubscriberClient

TOPIC, SUB = "projects/p/topics/news", "projects/p/subscriptions/all"


def test_python_client_speaks_rest(emulator):
    """Google's Python client with transport="rest" creates, publishes, pulls and acknowledges."""
    options = ClientOptions(api_endpoint=f"http://{emulator.endpoint}")
    nobody = AnonymousCredentials()
    publisher = PublisherClient(credentials=nobody, transport="rest", client_options=options)
    subscriber = SubscriberClient(credentials=nobody, transport="rest", client_options=options)
    with publisher, subscriber:
        publisher.create_topic(name=TOPIC)
        subscriber.create_subscription(name=SUB, topic=TOPIC)
        publisher.publish(topic=TOPIC, messages=[PubsubMessage(data=b"hello", attributes={"k": "v"})])

        [received] = subscriber.pull(subscription=SUB, max_messages=1).received_messages
        subscriber.acknowledge(subscription=SUB, ack_ids=[received.ack_id])

        assert b"hello" == received.message.data
        assert [TOPIC] == [topic.name for topic in publisher.list_topics(project="projects/p")]
    assert 0 == emulator.backlog(SUB)


@pytest.fixture
def gcloud(emulator, tmp_path):
    """Run `gcloud pubsub` against the emulator; the answer is its JSON."""
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not installed")
    environment = os.environ | {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB": f"http://{emulator.endpoint}/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CONFIG": str(tmp_path),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_CORE_PROJECT": "p",
    }

    def run(*arguments):
        command = ["gcloud", "pubsub", *arguments, "--format=json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert 0 == done.returncode, done.stderr
        return json.loads(done.stdout)

    return run


def test_gcloud_works_with_an_overridden_endpoint(gcloud, emulator):
    """`gcloud pubsub` creates, updates, publishes and pulls when its endpoint is the emulator's."""
    gcloud("topics", "create", "news", "--labels=a=b")
    gcloud("subscriptions", "create", "all", "--topic=news", "--ack-deadline=20")
    gcloud("subscriptions", "update", "all", "--ack-deadline=30")
    gcloud("topics", "publish", "news", "--message=hello", "--attribute=k=v")

    [received] = gcloud("subscriptions", "pull", "all", "--auto-ack")

    assert ("aGVsbG8=", {"k": "v"}) == (received["message"]["data"], received["message"]["attributes"])
    assert 0 == emulator.backlog(SUB)
