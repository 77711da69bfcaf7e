"""The verbs at `/_emulator/`, by HTTP from outside, and in JavaScript."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess

import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT
from tests.rpc.conftest import SUB, TOPIC, Client

PAGE = (ROOT / "docs" / "emulator-reference.md").read_text()


@pytest.fixture(scope="module")
def recording():
    with Emulator(record=True, allow_hosts=["emulator.example.com"]) as emulator:
        yield emulator


@pytest.fixture
def verb(recording):
    """Call a verb and return status and content."""
    recording.reset()
    connection = http.client.HTTPConnection(recording.host, recording.port, timeout=20)

    def ask(method, name, fields=None, **headers):
        connection.request(method, f"/_emulator/{name}", None if fields is None else json.dumps(fields), headers)
        response = connection.getresponse()
        content = response.read().decode()
        return response.status, json.loads(content) if content[:1] in "{[0123456789" else content

    yield ask
    connection.close()


def test_verbs_do_what_the_methods_do(recording, verb):
    """Time, faults, chaos, records and reset work over HTTP as in process."""
    recording.create_topic(TOPIC)
    recording.create_subscription(SUB, TOPIC)
    client = Client(recording.endpoint)

    _, [message_id] = verb("POST", "publish", {"topic": TOPIC, "messages": [{"data": "aGk=", "orderingKey": "k"}]})
    assert (200, {}) == verb("POST", "fail", {"rpc": "Pull", "code": "ABORTED", "message": "no"})
    with pytest.raises(Exception, match="no"):
        client.pull()
    assert (200, {}) == verb("POST", "fail", {"rpc": "Pull", "code": "ABORTED", "count": 1000})
    assert (200, {}) == verb("POST", "clearFaults", {})
    assert [b"hi"] == client.data()
    assert 1 == verb("GET", "backlog")[1][SUB]["leased"]
    assert (200, {}) == verb("POST", "advance", {"seconds": 11})

    found = verb("GET", f"messages?subscription={SUB}")[1]
    assert [(message_id, "aGk=", "k", 1, 1, None)] == [
        tuple(each[name] for name in ("messageId", "data", "orderingKey", "deliveries", "failures", "ackDeadline"))
        for each in found
    ]
    assert ["Pull", "Pull"] == [each["rpc"] for each in verb("GET", "calls")[1]]
    assert (200, 0) == verb("GET", "streams") == verb("POST", "closeStreams", {})
    assert (200, {}) == verb("POST", "chaos", {"seed": None})
    assert (200, {}) == verb("POST", "reset", {})
    assert (200, {}) == verb("GET", "backlog")
    client.channel.close()


@pytest.mark.parametrize(
    ("method", "name", "fields", "status", "sentence"),
    [
        ("POST", "advance", {"seconds": "soon"}, 400, '`seconds` of `advance` must be a number, got "soon".'),
        ("POST", "advance", {"seconds": -1}, 400, "Time can only move on, got -1.0 seconds."),
        ("POST", "fail", {"rpc": "Pull", "code": None, "delay": -1}, 400, "A fault's `delay` must be"),
        ("GET", "advance", None, 400, "`advance` is asked for by POST, not by GET."),
        ("GET", f"messages?subscription={SUB}", None, 404, "Resource not found (resource=all)."),
        ("POST", "publish", {"topic": TOPIC, "messages": [{"data": 7}]}, 400, "`messages[0]` of `publish` must be "),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_a_sentence(verb, method, name, fields, status, sentence):
    """The answer to an invalid request is its error, in the form of the JSON API's errors."""
    found, answer = verb(method, name, fields)

    assert status == found == answer["error"]["code"]
    assert answer["error"]["message"].startswith(sentence)


def test_other_sites_are_refused(recording, verb):
    """A foreign page can neither read nor change anything: by a name of its own, or by a request for another site."""
    own = f"http://{recording.endpoint}"

    assert 403 == verb("GET", "backlog", Host="evil.example.com")[0]
    assert 403 == verb("POST", "reset", {}, Origin="http://evil.example.com")[0]
    assert (200, {}) == verb("POST", "reset", {}, Origin=own)
    assert (200, {}) == verb("GET", "backlog", Host="emulator.example.com:8085")


def test_calls_need_a_record(emulator):
    """If no calls are kept, `calls` says so, so that the answer is not read as "no calls"."""
    connection = http.client.HTTPConnection(emulator.host, emulator.port, timeout=20)
    connection.request("GET", "/_emulator/calls")
    with connection.getresponse() as response:
        assert "No calls were recorded. Start the emulator with `--record`" in response.read().decode()
    connection.close()


def test_example_in_javascript_runs(recording):
    """examples/emulator.mjs passes, against an emulator that remembers acked messages."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    script = ROOT / "examples" / "emulator.mjs"

    done = subprocess.run([node, script, recording.endpoint], capture_output=True, text=True, timeout=60)

    warned, acknowledged = done.stdout.splitlines()
    assert f"deleting every resource and message at http://{recording.endpoint}" == warned
    assert ("acknowledged 2 messages, each delivered twice", "") == (acknowledged, done.stderr)


def test_verbs_of_the_page_are_those_of_the_code():
    """docs/emulator-reference.md has each verb with its HTTP method and its fields."""
    [table] = re.findall(r"\| verb \|.*?\n\n", PAGE, re.DOTALL)
    rows = re.findall(r"^\| `(GET|POST) (\w+)` \|(.*?)\|", table, re.MULTILINE)
    documented = {name: (method, re.findall(r"`(\w+)`", fields)) for method, name, fields in rows}

    assert documented == {verb.name: (verb.http_method, list(verb.parameters)) for verb in Emulator()._verbs().values()}
