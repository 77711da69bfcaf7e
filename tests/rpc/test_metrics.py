"""`/metrics` as Prometheus scrapes it, and its table in docs/emulator-reference.md."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import ROOT
from tests.rpc.conftest import SUB, Client, refused

PAGE = (ROOT / "docs" / "emulator-reference.md").read_text()


def scrape(emulator, **headers):
    request = urllib.request.Request(f"http://{emulator.endpoint}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert "text/plain; version=0.0.4; charset=utf-8" == answer.headers["Content-Type"]
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


def values(family):
    """Return the samples of a family by the values of their labels, in the order of the labels' names."""
    return {tuple(each.labels.values()): each.value for each in family.samples}


def test_calls_and_messages_are_in_the_metrics(emulator, client: Client, subscribe):
    """Google's names with project and id as labels, RPCs with their status, the memory of the process."""
    subscribe()
    client.publish({"data": b"a"}, {"data": b"b"})
    first, _ = client.pull()
    client.ack(first.ack_id)
    with refused("NOT_FOUND"):
        client.pull("projects/p/subscriptions/none")

    found = scrape(emulator)

    assert {("p", "all"): 1} == values(found["subscription_num_undelivered_messages"])
    assert {("p", "OK", "news"): 1} == values(found["topic_send_request_count"])
    assert {("p", "news"): 2} == values(found["topic_send_message_operation_count"])
    assert {("p", "all"): 1} == values(found["subscription_ack_message_count"])
    rpcs = values(found["pubsub_emulator_rpcs"])
    assert (1, 1, 1) == tuple(rpcs[each] for each in (("OK", "Publish"), ("OK", "Pull"), ("NOT_FOUND", "Pull")))
    assert values(found["process_resident_memory_bytes"])[()] > 1_000_000


def test_open_streams_are_in_the_metrics(emulator, client: Client, subscribe):
    """A StreamingPull is counted while it is open."""
    subscribe()
    first = b"\x0a" + bytes((len(SUB),)) + SUB.encode() + b"\x28\x0a"
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter([first]))
    stream.initial_metadata()

    assert {("p", "all")} == set(values(scrape(emulator)["subscription_open_streaming_pulls"]))
    stream.cancel()


def test_foreign_pages_cannot_read_metrics(emulator):
    """The metrics are behind the guard."""
    with pytest.raises(urllib.error.HTTPError) as error:
        scrape(emulator, Host="evil.example.com")
    assert 403 == error.value.code
    error.value.close()


def test_metrics_of_the_page_are_those_of_the_code(emulator):
    """docs/emulator-reference.md names every metric and no other."""
    [table] = re.findall(r"\| metric \|.*?\n\n", PAGE, re.DOTALL)
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    text = set(scrape(emulator))

    assert documented == {name for name in text if not name.startswith("process_")}
