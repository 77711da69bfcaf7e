"""The web page in a real browser: what a person sees, does by mouse and by keyboard, and hears from a screen reader.

The browser is the system's Chromium. `EMULATOR_SCREENSHOTS=1` writes the pictures of docs/emulator.md anew.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT
from tests.rpc.conftest import Client

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

IMAGES = ROOT / "docs" / "images"
MAX_IMAGE_BYTES = 150_000
_WAIT_MILLISECONDS = 30_000  # for what comes at once on a machine with nothing else to do
SCHEMA, TOPIC = "projects/demo/schemas/flight", "projects/demo/topics/flights"
LIVE, ARCHIVE = "projects/demo/subscriptions/flights-live", "projects/demo/subscriptions/archive"
AVRO = """{"type": "record", "name": "Flight", "fields": [
  {"name": "carrier", "type": "string"},
  {"name": "delay", "type": ["null", "int"], "default": null},
  {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["SCHEDULED", "DEPARTED", "LANDED"]}}]}"""
EVIL = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script>"

# What a screen reader would call an element, if anything.
UNNAMED = """() => [...document.querySelectorAll('input:not([type=hidden]), select, textarea, button, a, svg, nav')]
  .filter(each => !(each.getAttribute('aria-label') || each.textContent.trim() || (each.labels && each.labels.length)
    || document.getElementById(each.getAttribute('aria-labelledby'))))
  .map(each => each.outerHTML)"""
# The contrast of each text with what is behind it, by the formula of WCAG 2.
CONTRASTS = """() => {
  const rgb = text => text.match(/[0-9.]+/g).map(Number);
  const light = colour => rgb(colour).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = each => {
    while (each && rgb(getComputedStyle(each).backgroundColor)[3] === 0) each = each.parentElement;
    return getComputedStyle(each || document.body).backgroundColor;
  };
  return [...document.querySelectorAll('h1, h2, a, th, td, p, small, button, label, caption, .hint')]
    .filter(each => each.textContent.trim())
    .map(each => {
      const [a, b] = [light(getComputedStyle(each).color), light(ground(each))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), each.outerHTML.slice(0, 80)];
    }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running():
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator) -> Emulator:
    running.reset()
    running.create_schema(SCHEMA, "AVRO", AVRO)
    running.create_topic(TOPIC, schema=SCHEMA, labels={"team": "air"})
    running.create_subscription(LIVE, TOPIC)
    running.create_subscription(ARCHIVE, TOPIC, enable_message_ordering=True)
    return running


@pytest.fixture
def page(chromium, emulator):
    """A tab of its own; what the browser complains of fails the test."""
    context = chromium.new_context(base_url=f"http://{emulator.endpoint}", viewport={"width": 1180, "height": 760})
    context.set_default_timeout(_WAIT_MILLISECONDS)
    complaints: list[str] = []

    def opened(tab):
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        # A form that is refused is answered by 4xx, which the console tells of, too.
        tab.on("console", lambda said: complaints.append(said.text) if "security policy" in said.text.lower() else None)

    context.on("page", opened)
    yield context.new_page()
    context.close()
    assert [] == complaints


def fill_in(page, carrier: str) -> None:
    form = page.get_by_role("form", name="Publish by the fields of the schema")
    form.get_by_label("carrier (string)").fill(carrier)
    form.get_by_label("delay (int, optional)").fill("7")
    form.get_by_label("state (State)").select_option("LANDED")
    form.get_by_label("Attributes").fill("origin=EWR")
    form.get_by_role("button", name="Publish").click()


def see(what) -> None:
    """Wait until it is seen."""
    playwright.expect(what).to_be_visible(timeout=_WAIT_MILLISECONDS)


def test_message_is_published_and_appears_by_itself(page):
    """A message that is published by the form of the schema appears in another tab, decoded, without a reload."""
    page.goto(f"/page/{LIVE}")
    see(page.get_by_text("There is no unacked message."))
    other = page.context.new_page()
    other.goto(f"/page/{TOPIC}")
    fill_in(other, "UA")
    see(other.get_by_role("status").get_by_text("The message is published."))

    see(page.get_by_text('{ "carrier": "UA", "delay": { "int": 7 }, "state": "LANDED" }').first)
    see(page.get_by_text("origin=EWR"))
    backlog = page.get_by_role("img", name="Backlog: 1; 1 at most in the last minute")
    see(backlog)
    page.wait_for_function("name => document.querySelector(name).getAttribute('points').split(' ').length > 1",
                           arg="[data-field=backlog] polyline")  # fmt: skip


def test_tabs_that_nobody_sees_leave_their_connections(page, emulator):
    """A browser has six connections to a server: a seventh tab opens, and one that is seen again is up to date."""
    tabs = [page, *(page.context.new_page() for _ in range(6))]
    for tab in tabs:  # a headless browser takes every tab for one that is seen
        tab.goto(f"/page/{LIVE}")
        see(tab.get_by_text("There is no unacked message."))
        turn(tab, hidden=True)
    emulator.publish(TOPIC, flight("UA", 7))

    turn(page, hidden=False)

    see(page.get_by_text('{ "carrier": "UA", "delay": { "int": 11 }, "state": "DEPARTED" }').first)


def turn(tab, *, hidden: bool) -> None:
    """Make the tab one that is hidden, or seen."""
    tab.evaluate("""hidden => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }""", hidden)  # fmt: skip


def test_message_is_acked_and_sought_back(page, emulator):
    """A person pulls, chooses and acks a message, and gets it back by a snapshot."""
    page.goto(f"/page/{TOPIC}")
    fill_in(page, "UA")
    page.goto(f"/page/{LIVE}")
    page.get_by_label("Snapshot id").fill("before")
    page.get_by_role("button", name="Create snapshot").click()
    page.get_by_role("button", name="Pull").click()
    see(page.get_by_text("leased until"))
    page.get_by_label("Choose all leased messages on this page").check()
    page.get_by_role("button", name="Ack the chosen", exact=True).click()
    see(page.get_by_text("There is no unacked message."))
    assert 0 == emulator.backlog(LIVE)

    page.get_by_role("button", name="Seek to the snapshot").click()
    see(page.get_by_text('"carrier": "UA"').first)
    assert 1 == emulator.backlog(LIVE)


def test_topic_is_created_by_keyboard_alone(page, emulator):
    """The first Tab offers to skip to the content; a form opens, is filled in and is sent by keys."""
    page.goto("/")
    page.keyboard.press("Tab")
    assert "Skip to the content" == page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    assert "main" == page.evaluate("document.activeElement.id")
    for _ in range(40):
        if "Create a topic" == page.evaluate("document.activeElement.textContent"):
            break
        page.keyboard.press("Tab")
    assert "solid" == page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Enter")

    see(page.get_by_role("heading", name="projects/demo/topics/by-keyboard"))
    assert emulator._running.engine.broker.topics["projects/demo/topics/by-keyboard"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(page, scheme):
    """Either mode of the system has its colours, each text with the contrast that WCAG asks for."""
    page.emulate_media(color_scheme=scheme)
    for path in ("/", f"/page/{TOPIC}", f"/page/{LIVE}", f"/page/{SCHEMA}", "/page/controls", "/page/calls"):
        page.goto(path)
        assert [] == page.evaluate(CONTRASTS), path
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme] == ground


def test_everything_has_a_name(page):
    """Every control, chart, region and table of every view has a name that a screen reader says."""
    page.goto(f"/page/{TOPIC}")
    fill_in(page, "UA")
    for path in ("/", f"/page/{TOPIC}", f"/page/{LIVE}", f"/page/{SCHEMA}", "/page/controls", "/page/calls"):
        page.goto(path)
        assert [] == page.evaluate(UNNAMED), path
        assert 0 == page.locator("table:not(:has(caption))").count()
        assert 1 == page.get_by_role("main").count() == page.get_by_role("heading", level=1).count()
        assert "en" == page.locator("html").get_attribute("lang")


def test_what_is_published_is_not_run(page, emulator):
    """HTML in payloads, attributes and keys is text, in the page and in lists that are fetched again."""
    emulator.create_topic("projects/demo/topics/raw")
    emulator.create_subscription("projects/demo/subscriptions/raw", "projects/demo/topics/raw")
    page.goto("/page/projects/demo/subscriptions/raw")
    see(page.get_by_text("There is no unacked message."))
    emulator.publish("projects/demo/topics/raw", {"data": EVIL.encode(), "attributes": {EVIL[:40]: EVIL}})

    see(page.get_by_text("onerror").first)
    page.reload()
    see(page.get_by_text("onerror").first)
    assert "projects/demo/subscriptions/raw" == page.title()
    assert 0 == page.locator("main img, main script").count()


def test_deletion_asks_first(page, emulator):
    """What cannot be undone is asked for; no means no."""
    page.goto(f"/page/{ARCHIVE}")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Delete this subscription").click()
    assert ARCHIVE in emulator._running.engine.broker.subscriptions
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete this subscription").click()
    see(page.get_by_text("It is deleted."))
    assert ARCHIVE not in emulator._running.engine.broker.subscriptions


def test_refused_form_keeps_what_was_typed(page):
    """The sentence of the API stands on the page, and the form is as it was left."""
    page.goto("/")
    page.get_by_text("Create a schema", exact=True).click()
    form = page.locator("form[action$=create-schema]")
    form.get_by_label("Schema id").fill("broken")
    form.get_by_label("Definition").fill("{no schema")
    form.get_by_role("button", name="Create schema").click()

    see(page.get_by_role("alert").get_by_text("INVALID_ARGUMENT"))
    assert "{no schema" == page.locator("form[action$=create-schema]").get_by_label("Definition").input_value()


def test_page_works_without_script(chromium, emulator):
    """With scripts switched off everything is there, by reloading."""
    context = chromium.new_context(base_url=f"http://{emulator.endpoint}", java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/page/{TOPIC}")
    fill_in(page, "UA")
    page.goto(f"/page/{LIVE}")
    see(page.get_by_text('"carrier": "UA"').first)
    context.close()


def test_pictures_of_the_documentation(page, emulator):
    """docs/emulator.md shows three pictures, each small enough; EMULATOR_SCREENSHOTS=1 takes them anew."""
    if os.environ.get("EMULATOR_SCREENSHOTS") == "1":
        take_pictures(page, emulator)
    pictures = re.findall(r"\((images/emulator-\w+\.png)\)", (ROOT / "docs" / "emulator.md").read_text())

    assert ["images/emulator-overview.png", "images/emulator-subscription.png", "images/emulator-topic.png"] == pictures
    for picture in pictures:
        content = (ROOT / "docs" / picture).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < MAX_IMAGE_BYTES


def take_pictures(page, emulator: Emulator) -> None:
    """The overview, a subscription whose messages are leased and wait, and in dark a topic with its form."""
    IMAGES.mkdir(exist_ok=True)
    emulator.create_topic("projects/demo/topics/dead-letters")
    emulator.create_subscription("projects/demo/subscriptions/dead-letters", "projects/demo/topics/dead-letters")
    page.goto("/")
    for number in range(12):  # a chart needs some seconds
        carriers = ["UA", "AA", "DL", "B6"] * (1 + number * 5 % 7)
        emulator.publish(TOPIC, *(flight(each, number + index) for index, each in enumerate(carriers)))
        if number % 2:
            client = Client(emulator.endpoint)
            client.ack(*(each.ack_id for each in client.pull(LIVE, 11)), subscription=LIVE)
            client.channel.close()
        page.wait_for_timeout(1000)
    page.screenshot(path=IMAGES / "emulator-overview.png")
    page.goto(f"/page/{LIVE}")
    page.get_by_label("How many").fill("3")
    page.get_by_role("button", name="Pull").click()
    page.locator("details[data-key] summary").first.click()
    page.wait_for_timeout(2500)
    page.screenshot(path=IMAGES / "emulator-subscription.png")
    page.emulate_media(color_scheme="dark")
    page.goto(f"/page/{TOPIC}")
    page.wait_for_timeout(2500)
    page.screenshot(path=IMAGES / "emulator-topic.png")


def flight(carrier: str, number: int) -> dict[str, Any]:
    """A message of the schema, in Avro's binary encoding."""
    data = bytes([4, *carrier.encode(), 2, 2 * (number * 13 % 40), 2 * (number % 3)])
    return {"data": data, "attributes": {"origin": ("EWR", "JFK", "LGA")[number % 3]}, "ordering_key": carrier}
