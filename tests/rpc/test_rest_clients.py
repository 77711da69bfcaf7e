"""Clients of the JSON API that others wrote: Google's Python client over REST, gcloud, and Java's HttpClient."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess

import pytest
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.pubsub_v1 import PublisherClient, PubsubMessage, SubscriberClient

from pubsub_spark.emulator import Emulator

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
    """Run `gcloud pubsub` against the emulator and return its JSON."""
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


JAVA = """
import java.net.URI;
import java.net.http.*;

public class Main {
  public static void main(String[] arguments) throws Exception {
    HttpClient client = HttpClient.newHttpClient();
    String topic = arguments[0] + "/v1/projects/p/topics/news";
    String messages = "{\\"messages\\": [{\\"data\\": \\"YQ==\\"}]}";
    for (var request : new HttpRequest[] {
        HttpRequest.newBuilder(URI.create(topic)).PUT(HttpRequest.BodyPublishers.ofString("{}")).build(),
        HttpRequest.newBuilder(URI.create(topic + ":publish"))
            .POST(HttpRequest.BodyPublishers.ofString(messages)).build(),
        HttpRequest.newBuilder(URI.create(topic)).build()})
      System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
  }
}
"""


def has_jdk() -> bool:
    """Return whether `java` runs a source file: a JRE has no compiler."""
    java = shutil.which("java")
    return java is not None and b"jdk.compiler" in subprocess.run([java, "--list-modules"], capture_output=True).stdout


@pytest.mark.skipif(not has_jdk(), reason="There is no JDK")
def test_java_http_client(tmp_path, caplog):
    """Java's HttpClient, which offers `h2c` with each request, is answered, and nothing is logged."""
    source = tmp_path / "Main.java"
    source.write_text(JAVA)
    with Emulator() as emulator:
        command = ["java", str(source), f"http://{emulator.endpoint}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert ["200"] * 3 == done.stdout.split(), done.stderr
    assert [] == caplog.records


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_offer_to_upgrade_is_declined_without_a_word(caplog, offer):
    """A request that offers another protocol is answered over HTTP/1.1, and so is the next on its connection."""
    with Emulator() as emulator:
        connection = http.client.HTTPConnection(emulator.host, emulator.port, timeout=10)
        headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": offer, "HTTP2-Settings": "AAEAAEAA"}
        for topic in ("first", "second"):
            connection.request("PUT", f"/v1/projects/p/topics/{topic}", "{}", headers)
            response = connection.getresponse()
            assert (200, topic) == (response.status, json.loads(response.read())["name"].rpartition("/")[2])
        connection.close()

    assert [] == caplog.records
