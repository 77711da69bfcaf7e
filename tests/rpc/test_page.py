"""The web page by HTTP: the content of each view, the effect of each form, and the limits for other sites."""

from __future__ import annotations

import html
import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from email.message import Message
from importlib import metadata
from importlib.metadata import version
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlencode

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.page.app import documentation_url
from pubsub_spark.schema.protobuf.protoc import compile_text
from tests.rpc.conftest import SUB, TOPIC, Client, parts, wait_until
from tests.servers import OwnProcess

SCHEMA = "projects/p/schemas/flight"
AVRO = """{"type": "record", "name": "Flight", "fields": [
  {"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"], "default": null}]}"""
EVIL = "<script>alert(1)</script>"


class Browser:
    """A client that asks for HTML, and follows where forms lead."""

    def __init__(self, host: str, port: int) -> None:
        self.connection = http.client.HTTPConnection(host, port, timeout=20)
        self.status = 0
        self.text = ""
        self.headers: http.client.HTTPMessage

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> str:
        self.connection.request(method, path, body, {"Accept": "text/html", **headers})
        response = self.connection.getresponse()
        self.status, self.headers, self.text = response.status, response.headers, response.read().decode()
        return self.text

    def get(self, path: str, **headers: str) -> str:
        return self.ask("GET", path, **headers)

    def act(self, action: str, *more: tuple[str, str], **fields: str) -> str:
        """Send a form and return the view that it leads to."""
        self.ask("POST", f"/page/actions/{action}", urlencode([*fields.items(), *more]))
        return self.get(self.headers["Location"]) if self.status == 303 else self.text

    @property
    def error(self) -> str:
        """The sentence in the page's alert."""
        found = re.search(r'role="alert">(.*?)</p>', self.text, re.DOTALL)
        return html.unescape(re.sub(r"<[^>]+>", "", found[1])) if found else ""

    @property
    def leases(self) -> list[str]:
        return re.findall(r'name="lease" value="(\d+)"', self.text)


@pytest.fixture(scope="module")
def running():
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def browser(running) -> Iterator[Browser]:
    running.reset()
    running.create_topic(TOPIC)
    running.create_subscription(SUB, TOPIC, ack_deadline_seconds=10)
    browser = Browser(running.host, running.port)
    yield browser
    browser.connection.close()


def test_page_is_for_browsers_alone(browser):
    """A client that does not ask for HTML gets `Ok` at `/`, as health checks expect."""
    assert "Ok\n" == browser.get("/", Accept="*/*")
    assert "text/plain; charset=utf-8" == browser.headers["Content-Type"]
    assert "<h1>Overview</h1>" in browser.get("/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")


def test_overview_has_every_resource(running, browser):
    """Topics, subscriptions with their counters, schemas with their revisions, and snapshots of every project."""
    running.create_schema(SCHEMA, "AVRO", AVRO)
    running.create_topic("projects/other/topics/typed", schema=SCHEMA)
    running.publish(TOPIC, "a", "b")
    browser.act("create-snapshot", subscription=SUB, id="before")

    page = browser.get("/")
    for name in (TOPIC, SUB, SCHEMA, "projects/other/topics/typed", "projects/p/snapshots/before"):
        assert f'href="/page/{name}"' in page
    assert "Messages of the last minute: Backlog 2, at most 2; Outstanding 0, at most 0" in page
    assert ["other", "p"] == re.findall(r'scope="rowgroup"[^>]*>(\w+)', page.partition('<h2 id="topics">')[2])[:2]
    assert "projects/other/topics/typed" in re.findall(r'scope="row"><a[^>]*title="([^"]+)', page)
    assert "projects/other/topics/typed" not in re.findall(
        r'scope="row"><a[^>]*title="([^"]+)', browser.get("/?project=p")
    )
    assert "before" not in browser.get("/?find=typed").replace("no-before", "")


def test_compiled_schema_is_shown_and_not_committed_by_a_form(running, browser):
    """Its files are shown as text, which is no definition that a form could commit."""
    [file] = compile_text('syntax = "proto3"; message M { int32 count = 1; }').file
    compiled = {"root_message": "M", "compiled_bytes": FileDescriptorSet(file=[file]).SerializeToString()}
    schema = protos.Schema(type_=1, compiled_proto_schema=compiled)
    Client(running.endpoint).ask("SchemaService/CreateSchema", parent="projects/p", schema_id="flight", schema=schema)

    page = browser.get(f"/page/{SCHEMA}")

    assert "root_message: M" in page and "count" in page
    assert "commit a revision with <code>CommitSchema</code>" in page
    assert "commit-schema" not in page


def test_pages_of_resources(running, browser):
    """A hundred topics are four pages, which lead to each other."""
    for number in range(99):
        running.create_topic(f"projects/p/topics/t{number:03}")

    assert "Page 1 of 4" in browser.get("/")
    assert 'rel="next" href="/?topics=2"' in browser.text
    assert "Page 4 of 4" in browser.get("/?topics=99&find=p")
    assert 'href="/?find=p&amp;topics=3"' in browser.text


def test_publish_pull_ack_and_nack(running, browser):
    """Forms publish a message, lease it, nack it, lease it again and ack it, as the API would."""
    page = browser.act("publish", topic=TOPIC, data="hello", attributes="origin=EWR\nnote=a=b", ordering_key="k")
    [message] = running.messages(SUB)
    assert f"Message {message.message_id} is published." in page

    page = browser.get(f"/page/{SUB}")
    assert "no consumer is connected" in page
    assert "<button disabled>Ack</button>" in page
    assert "Pull first: only leased messages can be acked or nacked." in page
    for shown in ("hello", "origin=EWR", "note=a=b", "<code>key k</code>"):
        assert shown in page
    assert [] == browser.leases

    page = browser.act("pull", subscription=SUB, max_messages="10")
    assert "1 message pulled, leased for 10 s." in page
    assert "leased until" in page
    assert "No message was pulled" in browser.act("pull", subscription=SUB, max_messages="10")
    assert "<button>Ack</button>" in page
    [lease] = browser.leases
    browser.act("nack", subscription=SUB, lease=lease)
    assert "to be delivered again" in browser.text
    browser.act("pull", subscription=SUB, max_messages="10")
    browser.act("ack", *[("lease", each) for each in browser.leases], subscription=SUB)
    assert "There is no unacked message." in browser.text
    assert 0 == running.backlog(SUB)


def test_publish_by_the_fields_of_the_schema(running, browser):
    """The form has a field for each field of the newest revision, and the payload is shown decoded."""
    running.create_schema(SCHEMA, "AVRO", AVRO)
    running.create_topic("projects/p/topics/typed", schema=SCHEMA)
    running.create_subscription("projects/p/subscriptions/typed", "projects/p/topics/typed")
    page = browser.get("/page/projects/p/topics/typed")
    assert "delay (int, optional)" in page
    [revision] = re.findall(r'name="revision" value="(\w+)"', page)

    form = {"topic": "projects/p/topics/typed", "revision": revision, "field.carrier": "UA"}
    browser.act("publish", **form, **{"field.delay": "soon"})
    assert (
        400,
        "INVALID_ARGUMENT The message does not fit the schema: Field `delay` must be a number, got `soon`.",
    ) == (
        browser.status,
        browser.error,
    )
    assert 'name="field.carrier" value="UA"' in browser.text
    browser.act("publish", **form, **{"field.delay": "7"})
    assert (200, "") == (browser.status, browser.error)

    [message] = running.messages("projects/p/subscriptions/typed")
    assert b"\x04UA\x02\x0e" == message.data
    page = html.unescape(browser.get("/page/projects/p/subscriptions/typed"))
    assert '"carrier": "UA"' in page
    assert f"AVRO, BINARY, revision {revision}" in page


def test_resources_are_created_and_deleted(running, browser):
    """Every kind of resource is made by a form, found at its own address, and deleted there."""
    assert SCHEMA in browser.act("create-schema", project="p", id="flight", type="AVRO", definition=AVRO)
    browser.act(
        "create-topic", project="p", id="typed", schema=SCHEMA, encoding="JSON", settings='{"labels": {"team": "blue"}}'
    )
    assert "&#34;team&#34;: &#34;blue&#34;" in browser.text
    browser.act(
        "create-subscription", project="p", id="typed", topic="projects/p/topics/typed", filter='attributes.a = "b"',
        ack_deadline_seconds="20", enable_message_ordering="1", settings='{"retryPolicy": {"minimumBackoff": "5s"}}',
    )  # fmt: skip
    for shown in ("ackDeadlineSeconds", "enableMessageOrdering", "minimumBackoff", "filter"):
        assert shown in browser.text
    browser.act("create-snapshot", subscription=SUB, id="now")
    assert "It has 0 messages" in browser.get("/page/projects/p/snapshots/now")

    for name in ("subscriptions/typed", "topics/typed", "schemas/flight", "snapshots/now"):
        assert "It is deleted." in browser.act("delete", name=f"projects/p/{name}")
        browser.get(f"/page/projects/p/{name}")
        assert 404 == browser.status


def test_page_says_why_a_message_waits(running, browser):
    """Leased, behind its key, backing off, waiting for a consumer: each message shows its state, and until when."""
    ordered = "projects/p/subscriptions/ordered"
    retry_policy = {"minimum_backoff": 300, "maximum_backoff": 300}
    running.create_subscription(ordered, TOPIC, enable_message_ordering=True, retry_policy=retry_policy)

    def why() -> list[str]:
        """Return where each message is, without its times."""
        return [each.strip() for each in re.findall(r'class="state">([^<]*)<', browser.get(f"/page/{ordered}"))]

    running.publish(TOPIC, {"data": b"a", "ordering_key": "k"}, "c")
    browser.act("pull", subscription=ordered, max_messages="10")
    held = browser.leases
    running.publish(TOPIC, {"data": b"b", "ordering_key": "k"}, "d")
    assert [
        "leased until",
        "leased until",
        "behind its ordering key: an earlier message of it is leased",
        "no consumer is connected",
    ] == why()

    browser.act("nack", *[("lease", each) for each in held], subscription=ordered)
    backs_off = "its ordering key backs off until"
    assert ["backs off until", backs_off, backs_off, "no consumer is connected"] == why()


def test_data_directory_has_the_page_too(tmp_path):
    """With a journal forms are kept before they are answered, and restored resources are shown."""
    for turn in range(2):
        with Emulator(data_dir=tmp_path) as emulator:
            browser = Browser(emulator.host, emulator.port)
            if not turn:
                browser.act("create-topic", project="p", id="news")
                browser.act("create-subscription", project="p", id="all", topic=TOPIC)
                browser.act("publish", topic=TOPIC, data="kept")
                browser.act("pull", subscription=SUB, max_messages="1")
            assert "kept" in browser.get(f"/page/{SUB}")
            assert "leased until" in browser.text
            browser.connection.close()


def test_schema_revisions_and_their_differences(running, browser):
    """A schema shows its revisions with their changes. Older ones can be restored, or deleted."""
    running.create_schema(SCHEMA, "AVRO", AVRO)
    [first] = re.findall(r"<h3><code>(\w+)", browser.get(f"/page/{SCHEMA}"))
    more = AVRO.replace("null}]", 'null}, {"name": "gate", "type": "string", "default": ""}]')
    browser.act("commit-schema", name=SCHEMA, type="AVRO", definition=more)

    assert 2 == len(re.findall(r"<h3><code>(\w+)", browser.text))
    assert "gate" in "".join(re.findall(r'class="added">(.*?)</span>', browser.text))
    browser.act("rollback-schema", name=SCHEMA, revision=first)
    assert 3 == len(re.findall(r"<h3><code>(\w+)", browser.text))
    assert "gate" in "".join(re.findall(r'class="removed">(.*?)</span>', browser.text))
    browser.act("delete-revision", name=SCHEMA, revision=first)
    assert 2 == len(re.findall(r"<h3><code>(\w+)", browser.text))


def test_seek_to_a_time_and_to_a_snapshot(running, browser):
    """A backlog is dropped by a seek to a time to come, and comes back with a snapshot."""
    running.publish(TOPIC, "a", "b")
    browser.act("create-snapshot", subscription=SUB, id="full")

    browser.act("seek", subscription=SUB, time="2100-01-01T00:00:00")
    assert 0 == running.backlog(SUB)
    browser.act("seek", subscription=SUB, snapshot="projects/p/snapshots/full")
    assert 2 == running.backlog(SUB)
    browser.act("seek", subscription=SUB, time="yesterday")
    assert "INVALID_ARGUMENT `time` must be a time as 2030-01-31T12:00:00, got `yesterday`." == browser.error


def test_clock_faults_and_chaos(running, browser):
    """Time moves, the next calls fail, and chaos is switched on and off, as by the methods for tests."""
    running.publish(TOPIC, "a")
    browser.act("pull", subscription=SUB, max_messages="1")
    browser.act("advance", seconds="11")
    assert "The clock is advanced." in browser.text
    assert "to be delivered again" in browser.get(f"/page/{SUB}")

    browser.act("fail", rpc="Pull", code="ABORTED", count="2", delay="0", message="not now")
    assert '<td data-label="Code">ABORTED</td>' in browser.text
    browser.act("pull", subscription=SUB, max_messages="1")
    assert (409, "ABORTED not now") == (browser.status, browser.error)
    browser.act("chaos", seed="7")
    assert "It is on, with the seed 7." in browser.text
    browser.act("chaos")
    assert "It is off." in browser.text
    browser.act("advance", seconds="-1")
    assert "INVALID_ARGUMENT Time can only move on, got -1.0 seconds." == browser.error


def test_calls_are_logged(browser):
    """The log has each call with its time, status and sentence, the newest first. The date is shown on hover."""
    browser.act("pull", subscription="projects/p/subscriptions/none", max_messages="1")
    browser.act("publish", topic=TOPIC, data="x")

    page = browser.get("/page/calls")
    assert ["Publish", "Pull"] == re.findall(r'scope="row">(\w+)', page)[:2]
    assert ["OK", "NOT_FOUND"] == re.findall(r'class="(?:ok|failed)">(\w+)', page)[:2]
    assert "Resource not found (resource=none)." in page
    assert re.search(r'<time title="\d{4}-\d\d-\d\d [\d:.]+ UTC">\d\d:\d\d:\d\d\.\d{3}</time>', page)


def test_calls_are_filtered_in_pages(running, browser):
    """The log has pages, filters by method, status, resource and text, and its resources are links."""
    client = Client(running.endpoint)
    for _ in range(60):
        client.ask("Publisher/GetTopic", topic=TOPIC)
    client.channel.close()
    browser.act("pull", subscription="projects/p/subscriptions/none", max_messages="1")

    def methods(**query: str) -> list[str]:
        return re.findall(r'scope="row">(\w+)', browser.get("/page/calls?" + urlencode(query)))

    assert ["Pull", *["GetTopic"] * 49] == methods()
    assert 'rel="next" href="/page/calls?calls=2"' in browser.text
    assert f'href="/page/{TOPIC}" title="{TOPIC}"' in browser.text
    assert "GetTopic" in methods(calls="2")
    assert {"GetTopic"} == set(methods(rpc="GetTopic"))
    assert 'rel="next" href="/page/calls?rpc=GetTopic&amp;calls=2"' in browser.text
    assert "Pull" == methods(status="NOT_FOUND")[0]
    assert {"GetTopic"} == set(methods(resource="topics/news", rpc="GetTopic"))
    assert "Pull" == methods(text="(resource=none)")[0]
    assert [] == methods(text="no call says this")
    assert "There is no such call." in browser.text


def life(page: str) -> list[list[str]]:
    """Return the steps of each message, without their times."""
    lines = re.findall(r'class="life">(.*?)</p>', page, re.DOTALL)
    texts = [html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<time.*?</time>", "", line))) for line in lines]
    return [[step.strip() for step in text.split("\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}")] for text in texts]


def test_life_of_a_message_is_on_its_line(running, browser):
    """A message shows its receivers, its redelivery and its dead-lettering, with a link to its new place."""
    dead = "projects/p/topics/dead"
    running.create_topic(dead)
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    running.create_subscription("projects/p/subscriptions/fragile", TOPIC, dead_letter_policy=policy)
    running.publish(TOPIC, "a")
    fragile = "projects/p/subscriptions/fragile"
    assert f'Dead letters go to <a class="id" href="/page/{dead}"' in browser.get(f"/page/{fragile}")

    browser.act("pull", subscription=fragile, max_messages="1")
    browser.act("nack", subscription=fragile, lease=browser.leases[0])
    browser.act("pull", subscription=fragile, max_messages="1")
    running.advance(11)
    delivered = "delivered to Pull of this page"
    assert [["published", delivered, "nacked", delivered, "lease expired"]] == life(browser.get(f"/page/{fragile}"))

    for _ in range(3):
        browser.act("pull", subscription=fragile, max_messages="1")
        browser.act("nack", subscription=fragile, lease=browser.leases[0])
    [steps] = life(browser.get(f"/page/{fragile}?show=done"))
    assert ["published", "5 more", "nacked"] == steps[:3]
    assert "dead-lettered to projects/p/topics/dead" == steps[-1]
    assert f'<a href="/page/{dead}">' in browser.text
    browser.act("pull", subscription=SUB, max_messages="1")
    browser.act("ack", subscription=SUB, lease=browser.leases[0])
    assert [["published", delivered, "acked"]] == life(browser.get(f"/page/{SUB}?show=done"))
    assert ">a</span>" in browser.text


def test_messages_are_searched(running, browser):
    """A text is found in payloads, attributes and keys, also if the payload is binary. Pages keep the search."""
    running.create_schema(SCHEMA, "AVRO", AVRO)
    running.create_topic("projects/p/topics/typed", schema=SCHEMA)
    typed = "projects/p/subscriptions/typed"
    running.create_subscription(typed, "projects/p/topics/typed")
    running.publish("projects/p/topics/typed", {"data": b"\x04UA\x02\x0e"}, {"data": b"\x04AA\x02\x10"})
    running.publish(TOPIC, {"data": b"red", "attributes": {"origin": "EWR"}}, {"data": b"blue", "ordering_key": "k1"})
    running.publish(TOPIC, *["green"] * 30)

    def found(subscription: str, text: str) -> list[str]:
        page = browser.get(f"/page/{subscription}?{urlencode({'find': text})}")
        return [html.unescape(each) for each in re.findall(r'class="preview">([^<]*)', page)]

    assert ["red"] == found(SUB, "EWR")
    assert ["blue"] == found(SUB, "k1")
    assert "1 of 32 unacked messages" in browser.text
    assert 20 == len(found(SUB, "green"))
    assert "Page 1 of 2" in browser.text and "find=green&amp;messages=2" in browser.text
    assert ['{ "carrier": "UA", "delay": { "int": 7 } }'] == found(typed, '"int": 7')
    assert [] == found(SUB, "nowhere")
    assert "No message has that text." in browser.text


def test_messages_of_a_topic_without_a_subscription(running, browser):
    """The page of a topic shows recently published messages, also if no subscription has them."""
    running.create_topic("projects/p/topics/alone")
    assert "Nothing was published lately." in browser.get("/page/projects/p/topics/alone")
    running.publish("projects/p/topics/alone", "first", "second")

    page = browser.get("/page/projects/p/topics/alone")

    assert ["second", "first"] == re.findall(r'class="preview">(\w+)', page)
    assert "The topic has no subscription" in page


def test_purge_and_reset(running, browser):
    """A subscription is purged, and the emulator reset, by a button that asks first."""
    assert "There is nothing to purge." in browser.get(f"/page/{SUB}")
    running.publish(TOPIC, "a", "b")
    assert '<button class="danger">Purge</button>' in browser.get(f"/page/{SUB}")
    assert "Purged: every message published so far is acked." in browser.act("purge", subscription=SUB)
    assert 0 == running.backlog(SUB)

    running.advance(100)
    assert 'data-confirm="Delete everything in this emulator?"' in browser.get("/page/controls")
    assert "Everything is deleted" in browser.act("reset")
    assert "There is no topic." in browser.text
    assert "<b data-ahead></b>" in browser.text


def test_clock_of_the_header(running, browser):
    """Every view has the clock, how far it is ahead, and a form that advances it and stays on the view."""
    assert "<b data-ahead></b>" in browser.get(f"/page/{SUB}")
    browser.ask("POST", "/page/actions/advance", urlencode({"seconds": "60", "on": f"/page/{SUB}"}))
    assert f"/page/{SUB}?done=advance" == browser.headers["Location"]
    assert "<b data-ahead>1 min ahead</b>" in browser.get(f"/page/{SUB}")
    assert "1 min ahead of the machine's time" in browser.get("/page/controls")
    browser.ask("POST", "/page/actions/advance", urlencode({"seconds": "1", "on": "//evil.example.com/page/"}))
    assert "/page/controls?done=advance" == browser.headers["Location"]


def test_what_a_person_copies(running, browser, monkeypatch):
    """The line for the shell, the full names, the version, and the documentation that the package's metadata names."""
    line = f"export PUBSUB_EMULATOR_HOST={running.endpoint}"
    page = browser.get("/")
    assert f'data-copy="{line}"' in page
    assert f'data-copy="{SUB}"' in browser.get(f"/page/{SUB}")
    assert f"pubsub-spark {version('pubsub-spark')}" in page
    assert 'href="https://cloud.google.com/pubsub/docs/reference/rpc"' in page
    installed = Message()
    installed["Project-URL"] = "Documentation, https://code.example.com/project#readme"
    monkeypatch.setattr(metadata, "metadata", lambda _: installed)
    assert "https://code.example.com/project#readme" == documentation_url()


def test_sentences_of_what_was_done_are_not_the_addresss(browser):
    """A link cannot put words into the page: only numbers are taken from it."""
    for query in ("publish:<b>", "publish", "publish:1:x", "pull:1", "none:1", "pull:a:b"):
        assert 'role="status"' not in browser.get("/?" + urlencode({"done": query})), query
    assert "Message 7 is published." in browser.get("/?done=publish:7")


@pytest.mark.parametrize(
    ("action", "fields", "sentence"),
    [
        ("create-topic", {"project": "p", "id": "x"}, "INVALID_ARGUMENT "),
        ("create-topic", {"project": "p", "id": "news"}, "ALREADY_EXISTS Resource already exists"),
        ("create-topic", {"project": "p", "id": "good", "settings": '{"x": 1}'},
         "INVALID_ARGUMENT `settings` must be JSON as in the API: "),
        ("create-subscription", {"project": "p", "id": "sub", "topic": "projects/p/topics/none"}, "NOT_FOUND "),
        ("create-schema", {"project": "p", "id": "schema", "type": "AVRO", "definition": "{"}, "INVALID_ARGUMENT "),
        ("publish", {"topic": TOPIC, "data": "x", "attributes": "x"},
         "INVALID_ARGUMENT `attributes` must be lines of `name=value`, got `x`."),
        ("publish", {"topic": TOPIC, "data": "?", "is_base64": "1"}, "INVALID_ARGUMENT `data` is not base64"),
        ("publish", {"topic": TOPIC, "data": ""}, "INVALID_ARGUMENT One or more messages"),
        ("ack", {"subscription": SUB}, "INVALID_ARGUMENT No message is chosen"),
        ("ack", {"subscription": SUB, "lease": "x"}, "INVALID_ARGUMENT `lease` must be a whole number, got `x`."),
        ("pull", {"subscription": SUB, "max_messages": "many"}, "INVALID_ARGUMENT `max_messages` must be a whole"),
        ("advance", {"seconds": "[" * 3000}, "INVALID_ARGUMENT `seconds` of `advance` must be a number"),
        ("delete", {"name": "projects/p/topics/none"}, "NOT_FOUND "),
        ("delete", {"name": "//evil.example.com"}, "NOT_FOUND "),
    ],
)  # fmt: skip
def test_what_is_refused_is_said_on_the_page(browser, action, fields, sentence):
    """The view is shown again with the sentence of the API."""
    browser.act(action, **fields)

    assert browser.error.startswith(sentence)
    assert 400 <= browser.status < 500


def test_everything_is_escaped(running, browser):
    """Labels, payloads, attributes, keys, filters, names and errors are text, whatever is in them."""
    browser.act("publish", topic=TOPIC, data=EVIL, attributes=f"a={EVIL}\nb=<b>", ordering_key=EVIL)
    evil = "projects/p/subscriptions/evil"
    running.create_subscription(evil, TOPIC, filter=f'attributes.a = "{EVIL}"')
    browser.act("fail", rpc="Seek", code="ABORTED", message=EVIL)
    browser.act("seek", subscription=SUB, time="2100-01-01T00:00:00")
    assert f"ABORTED {EVIL}" == browser.error
    pages = [browser.text, browser.act("create-topic", project=EVIL, id=EVIL, settings=EVIL)]
    labels = json.dumps({"labels": {"evil": EVIL}})  # such a label is refused, with a sentence that quotes it
    pages.append(browser.act("create-topic", project="p", id="labelled", settings=labels))
    query = urlencode({"rpc": EVIL, "find": EVIL, "project": EVIL, "topics": EVIL})
    paths = [f"/page/{SUB}", f"/page/{evil}", "/page/calls"]
    pages += [browser.get(path) for path in (*paths, "/?" + query, "/page/calls?" + query)]

    for page in pages:
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "<script>" not in page
        assert "<b>" not in page


def test_other_sites_are_refused(running, browser):
    """A foreign page can neither look, by a name of its own, nor send a form, nor show the page in a frame."""
    assert "`evil.example.com` is not one of this emulator's" in browser.get("/", Host="evil.example.com")
    assert 403 == browser.status
    body = urlencode({"name": TOPIC})
    browser.ask("POST", "/page/actions/delete", body, Origin="http://evil.example.com")
    assert 403 == browser.status
    browser.ask("GET", "/page/live", Host="evil.example.com")
    assert 403 == browser.status
    browser.get("/page/actions/delete?name=" + TOPIC)
    assert 404 == browser.status

    assert f"/page/{TOPIC}" in browser.get("/", Origin=f"http://{running.endpoint}")
    assert "frame-ancestors 'none'" in browser.headers["Content-Security-Policy"]
    assert "script-src 'self'" in browser.headers["Content-Security-Policy"]


def test_form_leads_nowhere_else(browser):
    """Where a form leads is a view of this server, whatever its fields say."""
    browser.ask("POST", "/page/actions/pull", urlencode({"subscription": "//evil.example.com", "max_messages": "1"}))
    assert 404 == browser.status
    browser.ask("POST", "/page/actions/chaos", urlencode({"next": "//evil.example.com"}))
    assert "/page/controls?done=chaos" == browser.headers["Location"]


def test_hundred_thousand_messages_stay_quick(running, browser):
    """Each page of a backlog of 100,000 messages, including the last, costs about as much as one of a hundred."""
    running.publish(TOPIC, *[f"{number}" for number in range(20)])
    few = cost(browser, f"/page/{SUB}")
    raw = [b"x" * 100] * 1000
    with parts(running).engine.open() as (broker, now):
        for _ in range(100):
            broker.publish(broker.topics[TOPIC], [b"\x0a\x64" + each for each in raw], "", now)

    assert "100,020 unacked messages" in browser.get(f"/page/{SUB}")
    assert "Page 5001 of 5001" in browser.get(f"/page/{SUB}?messages=5001")
    assert cost(browser, f"/page/{SUB}") < 5 * few
    assert cost(browser, f"/page/{SUB}?messages=5001") < 5 * few
    assert cost(browser, "/") < 5 * few


def cost(browser: Browser, path: str) -> float:
    """Return the processor seconds of the quickest of five requests, the server's and the client's together."""
    costs = []
    for _ in range(5):
        begun = time.process_time()
        browser.get(path)
        costs.append(time.process_time() - begun)
    return min(costs)


def test_streams_show_their_flow_control(running, browser):
    """A stream is listed with its limits, and messages that it has no room for say why they wait."""
    client, requests = Client(running.endpoint), SimpleQueue[Any]()
    first = protos.StreamingPullRequest(
        subscription=SUB, stream_ack_deadline_seconds=30, max_outstanding_messages=1, max_outstanding_bytes=5000
    )
    requests.put(first)
    method = "/google.pubsub.v1.Subscriber/StreamingPull"
    pull = client.channel.stream_stream(
        method, protos.StreamingPullRequest.SerializeToString, protos.StreamingPullResponse.FromString
    )
    stream = pull(iter(requests.get, None))
    running.publish(TOPIC, "a", "b")
    assert 1 == len(next(stream).received_messages)

    page = browser.get(f"/page/{SUB}")
    shown = [each.strip() for each in re.findall(r"<td[^>]*>([^<]*)</td>", page)]
    assert re.search(r'scope="row">StreamingPull of 127.0.0.1:\d+<', page)
    assert ["1 of 1", "30 s", "flow-controlled"] == [shown[0], *shown[2:4]]
    assert re.fullmatch(r"\d+ of 5,000", shown[1])
    assert "flow control: every consumer has as much as it takes" in page
    assert "under way" in browser.get("/page/calls")
    browser.act("close-streams", code="ABORTED")
    with pytest.raises(grpc.RpcError):
        next(stream)
    requests.put(None)
    client.channel.close()


def test_an_export_cannot_be_pulled(running, browser):
    """The page of an export says that its messages wait for the export, and shows its state. It offers no Pull."""
    name = f"{SUB}-export"
    running.create_subscription(name, TOPIC, bigquery_config={"table": "p.d.t"})
    running.publish(TOPIC, "a")

    view = browser.get(f"/page/{name}")

    assert "waits to be exported, the state is NOT_FOUND" in view
    assert "<button disabled>Pull</button>" in view
    assert "Messages of this subscription are delivered by export." in view
    assert "<button>Pull</button>" in browser.get(f"/page/{SUB}")


def test_events_are_live(running, browser):
    """The events of a view have the counters of its subscriptions, and grow with what happens."""
    browser.connection.request("GET", f"/page/live?name={SUB}")
    response = browser.connection.getresponse()
    assert "text/event-stream; charset=utf-8" == response.headers["Content-Type"]

    def event() -> Any:
        [line, _] = response.readline(), response.readline()
        return json.loads(line.decode().removeprefix("data: "))

    before = event()
    running.publish(TOPIC, "a", "b", "c")
    after = event()
    assert "3" == after["fields"][SUB]["backlog"]
    assert "3" == after["charts"]["messages"]["values"]["backlog"][-1]
    assert after["messages"] > before["messages"]
    response.close()


def test_page_of_the_command(tmp_path):
    """`pubsub-spark emulator` prints the address of its page: a topic made there is the topic that clients see."""
    process = OwnProcess(tmp_path)
    process.start()
    try:
        printed = [f"Page: http://{process.endpoint}/", f"export PUBSUB_EMULATOR_HOST={process.endpoint}"]
        wait_until(lambda: printed == (tmp_path / "emulator.log").read_text().splitlines())
        host, _, port = process.endpoint.partition(":")
        browser = Browser(host, int(port))
        assert "The topic is created." in browser.act("create-topic", project="p", id="news")
        client = Client(process.endpoint)
        assert TOPIC == client.ask("Publisher/GetTopic", topic=TOPIC).name
        client.channel.close()
        browser.connection.close()
    finally:
        process.kill()


def test_page_is_imported_when_it_is_asked_for():
    """Until the page is opened, nothing of it is in memory. Without Jinja2 the answer names the extra to install."""
    script = """
import sys, urllib.error, urllib.request
from pubsub_spark.emulator import Emulator
with Emulator() as emulator:
    print(sorted(name for name in sys.modules if name == "jinja2" or name.startswith("pubsub_spark.emulator.page")))
    sys.modules["jinja2"] = None
    try:
        urllib.request.urlopen(urllib.request.Request(f"http://{emulator.endpoint}/", headers={"Accept": "text/html"}))
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    sentence = "501 The page needs `jinja2`. Install pubsub-spark with its extra `emulator`."
    assert (["[]", sentence], "") == (done.stdout.splitlines(), done.stderr)
