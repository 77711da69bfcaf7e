"""The web page in a real browser: its display, use by mouse and by keyboard, and use with a screen reader.

The browser is the system's Chromium. `EMULATOR_SCREENSHOTS=1` rewrites the pictures of docs/emulator.md.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT
from tests.engine import until
from tests.rpc.conftest import Client

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]

IMAGES = ROOT / "docs" / "images"
MAX_IMAGE_BYTES = 150_000
_WAIT_MILLISECONDS = 30_000  # for things that are immediate on an idle machine
SCHEMA, TOPIC = "projects/demo/schemas/flight", "projects/demo/topics/flights"
DEAD, WAREHOUSE = "projects/demo/topics/dead-letters", "projects/demo/subscriptions/to-the-warehouse"
LIVE, ARCHIVE = "projects/demo/subscriptions/flights-live", "projects/demo/subscriptions/archive"
AVRO = """{"type": "record", "name": "Flight", "fields": [
  {"name": "carrier", "type": "string"},
  {"name": "delay", "type": ["null", "int"], "default": null},
  {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["SCHEDULED", "DEPARTED", "LANDED"]}}]}"""
EVIL = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script>"

# The name that a screen reader would use for an element, if any.
UNNAMED = """() => [...document.querySelectorAll('input:not([type=hidden]), select, textarea, button, a, svg, nav')]
  .filter(each => !(each.getAttribute('aria-label') || each.textContent.trim() || (each.labels && each.labels.length)
    || document.getElementById(each.getAttribute('aria-labelledby'))))
  .map(each => each.outerHTML)"""
# The contrast of each text with its background, by the formula of WCAG 2.
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
    """Yield a tab of its own. An error in its console fails the test."""
    context = chromium.new_context(base_url=f"http://{emulator.endpoint}", viewport={"width": 1180, "height": 760})
    context.set_default_timeout(_WAIT_MILLISECONDS)
    complaints: list[str] = []

    def opened(tab):
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        # A form that is refused is answered by 4xx, which the console also reports.
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


def exists(emulator: Emulator, name: str) -> bool:
    with closing(HTTPConnection(emulator.endpoint, timeout=20)) as connection:
        connection.request("GET", f"/v1/{name}")
        return {200: True, 404: False}[connection.getresponse().status]


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
    see(other.get_by_role("status").get_by_text("is published."))

    see(page.get_by_text('{ "carrier": "UA", "delay": { "int": 7 }, "state": "LANDED" }').first)
    see(page.get_by_text("origin=EWR"))
    see(page.get_by_role("img", name="Messages of the last minute: Backlog 1, at most 1; Outstanding 0, at most 0"))
    page.wait_for_function("() => document.querySelector('dd[data-field=backlog]').textContent === '1'")


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
    see(page.get_by_text("1 message pulled, leased for 10 s."))
    see(page.get_by_text("leased until"))
    ack = page.get_by_role("button", name="Ack", exact=True)
    assert ack.is_disabled()
    see(page.get_by_text("Choose messages first."))
    page.get_by_label("All leased on this page").check()
    assert "" == page.locator(".choice .reason").text_content()
    ack.click()
    see(page.get_by_text("There is no unacked message."))
    assert 0 == emulator.backlog(LIVE)

    page.get_by_role("button", name="Seek to the snapshot").click()
    see(page.get_by_text('"carrier": "UA"').first)
    assert 1 == emulator.backlog(LIVE)


def test_topic_is_created_by_keyboard_alone(page, emulator):
    """The first Tab offers to skip to the content. A form is opened, filled in and sent by keys."""
    page.goto("/")
    page.keyboard.press("Tab")
    assert "Skip to the content" == page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    assert "main" == page.evaluate("document.activeElement.id")
    for _ in range(60):
        if "Create a topic" == page.evaluate("document.activeElement.textContent"):
            break
        page.keyboard.press("Tab")
    assert "solid" == page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Enter")

    see(page.get_by_role("heading", name="by-keyboard"))
    assert exists(emulator, "projects/demo/topics/by-keyboard")


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
    """Every control, chart, region and table of every view has a name for screen readers."""
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
    """The page asks before an irreversible action, and "no" cancels it."""
    page.goto(f"/page/{ARCHIVE}")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Delete this subscription").click()
    assert exists(emulator, ARCHIVE)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete this subscription").click()
    see(page.get_by_text("It is deleted."))
    assert not exists(emulator, ARCHIVE)


def test_refused_form_keeps_what_was_typed(page):
    """The error of the API is on the page, and the form keeps its values."""
    page.goto("/")
    page.get_by_text("Create a schema", exact=True).click()
    form = page.locator("form[action$=create-schema]")
    form.get_by_label("Schema id").fill("broken")
    form.get_by_label("Definition").fill("{no schema")
    form.get_by_role("button", name="Create schema").click()

    see(page.get_by_role("alert").get_by_text("INVALID_ARGUMENT"))
    assert "{no schema" == page.locator("form[action$=create-schema]").get_by_label("Definition").input_value()


@pytest.fixture
def furnished(emulator: Emulator) -> list[str]:
    """Yield an emulator with something in every view, and the views."""
    other = "projects/another-project"
    emulator.create_topic(f"{other}/topics/orders-of-the-day")
    emulator.create_topic(DEAD)
    policy = {"dead_letter_topic": DEAD, "max_delivery_attempts": 5}
    emulator.create_subscription(WAREHOUSE, f"{other}/topics/orders-of-the-day", dead_letter_policy=policy)
    order = '{"order": %d, "customer": "Ada Lovelace", "total": 12.5, "items": ["pen", "paper", "a ruler of 30 cm"]}'
    for number in range(6):
        data = (order % number).encode()
        emulator.publish(f"{other}/topics/orders-of-the-day", {"data": data, "attributes": {"origin": "EWR"}})
    emulator.publish(TOPIC, *(flight(each, 7) for each in ("UA", "AA", "DL")))
    client = Client(emulator.endpoint)
    client.modack(0, *(each.ack_id for each in client.pull(WAREHOUSE, 4)), subscription=WAREHOUSE)
    client.pull(WAREHOUSE, 2)
    client.ack(*(each.ack_id for each in client.pull(LIVE, 2)), subscription=LIVE)
    with pytest.raises(grpc.RpcError):
        client.ask("Publisher/GetTopic", topic="projects/demo/topics/missing")
    client.ask("Subscriber/CreateSnapshot", name="projects/demo/snapshots/before", subscription=LIVE)
    client.channel.close()
    emulator.advance(0.5)
    emulator.fail("Seek", "ABORTED")
    names = (WAREHOUSE, LIVE, TOPIC, SCHEMA, "projects/demo/snapshots/before")
    return ["/", "/page/calls", "/page/controls", f"/page/{LIVE}?show=done", *(f"/page/{name}" for name in names)]


WIDTHS = {390: 844, 1280: 800}
# Elements that reach beyond the window, except the parts that a clipping element around them cuts.
TOO_WIDE = """() => [...document.body.querySelectorAll('*')].filter(each => {
  for (let around = each.parentElement; around !== document.body; around = around.parentElement)
    if (getComputedStyle(around).overflowX !== 'visible') return false;
  const box = each.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 0.5 || box.left < -0.5) && !each.matches('.skip');
}).map(each => each.outerHTML.slice(0, 120))
  .concat(document.documentElement.scrollWidth > innerWidth ? ['scrolls sideways'] : [])"""
# Ids, methods, statuses and times that are cut, or that are on more than one line.
BROKEN = """() => {
  const texts = each => [...each.childNodes].flatMap(node => node.nodeType === 3 ? [node]
    : node.matches?.('.full, small') ? [] : texts(node));
  const lines = each => new Set(texts(each).filter(node => node.textContent.trim()).flatMap(node => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return [...range.getClientRects()].map(box => Math.round(box.top / 6));
  })).size;
  return [...document.querySelectorAll('main .id, main time, .calls th, .calls td > span, dd, td.number')]
  .filter(each => each.getBoundingClientRect().width)
  .filter(each => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display !== 'inline'
    || lines(each) > 1).map(each => each.outerHTML.slice(0, 120));
}"""
# Texts that a chart is drawn over.
COVERED = """() => [...document.querySelectorAll('.chart svg')].flatMap(svg => {
  const a = svg.getBoundingClientRect();
  return [...document.querySelectorAll('main *')].filter(each => !each.closest('svg') && !each.matches('.unseen, .full')
    && [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
    .filter(each => { const b = each.getBoundingClientRect();
      return each.checkVisibility() && a.left < b.right - 1
        && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1; })
    .map(each => each.outerHTML.slice(0, 120));
})"""


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(page, furnished, width):
    """On a phone and on a desk nothing scrolls sideways, no id, time or number is broken, no chart is over text."""
    page.set_viewport_size({"width": width, "height": WIDTHS[width]})
    for path in furnished:
        page.goto(path)
        assert [] == page.evaluate(TOO_WIDE), path
        assert [] == page.evaluate(BROKEN), path
        assert [] == page.evaluate(COVERED), path
    page.goto("/")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert [] == page.evaluate(TOO_WIDE)


def test_long_names_are_cut_and_not_broken(page, emulator):
    """A name of 255 characters makes no view wider, and stays on one line of a list."""
    long = "projects/demo/topics/" + "t" * 255
    emulator.create_topic(long)
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        for path in ("/", f"/page/{long}"):
            page.goto(path)
            assert [] == page.evaluate(TOO_WIDE), path
        page.goto("/")
        assert 30 > page.locator(f'th [title="{long}"]').bounding_box()["height"]


def test_rows_are_cards_on_a_phone(page, furnished):
    """Below 700 px a row is a card with its labels. Above, it is a row of a table, with its numbers at the right."""
    style = "(each, name) => getComputedStyle(each)[name]"
    page.set_viewport_size({"width": 699, "height": 844})
    page.goto("/")
    assert "flex" == page.locator("tr[data-name]").first.evaluate(style, "display")
    assert not page.locator("thead").first.is_visible()
    assert "Backlog" in page.locator("td[data-label=Backlog]").first.evaluate(
        "each => getComputedStyle(each, '::before').content + getComputedStyle(each, '::before').display"
    )
    page.goto(f"/page/{WAREHOUSE}")
    assert "block" == page.locator(".settings td").first.evaluate(style, "display")
    page.goto("/")
    page.set_viewport_size({"width": 700, "height": 844})
    assert "table-row" == page.locator("tr[data-name]").first.evaluate(style, "display")
    assert {"right"} == {each.evaluate(style, "textAlign") for each in page.locator("td.number").all()}


def test_six_messages_fit_in_two_screens_of_a_phone(page, furnished):
    """Payload, attribute, state and history: six messages end within two screens, each card within 150 px."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/page/{WAREHOUSE}")
    boxes = [each.bounding_box() for each in page.locator(".messages > li").all()]

    assert 6 == len(boxes)
    assert max(each["height"] for each in boxes) <= 150
    assert boxes[-1]["y"] + boxes[-1]["height"] <= 2 * 844


def test_life_is_on_one_line_of_a_desk(page, furnished):
    """Published, delivered, nacked, delivered: one line."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"/page/{WAREHOUSE}")
    lives = page.locator(".life").all()

    assert "nacked" in "".join(each.text_content() for each in lives)
    assert 24 > max(each.bounding_box()["height"] for each in lives)


def test_chart_is_a_line_from_its_first_second(page, furnished):
    """At once a line goes from edge to edge. A pointer on it shows the values and how long ago they were."""
    page.goto(f"/page/{WAREHOUSE}")
    line = page.locator("[data-line=backlog]").bounding_box()
    chart = page.locator("[data-chart=messages] svg").bounding_box()
    assert page.locator("[data-chart=messages] .axis").text_content().endswith("s agonow")
    assert line["width"] > 0.98 * chart["width"]
    pointed = page.locator("[data-chart=messages] [data-pointed]")

    def values() -> Any:
        """Return the text after a move of the pointer. It shows the values of that moment."""
        box = page.locator("[data-chart=messages] svg").bounding_box()
        for pixels in (2, 3):
            page.mouse.move(box["x"] + box["width"] - pixels, box["y"] + 20)
        return pointed.text_content()

    until(lambda: "6 / 2, 0 s ago" == values(), "the values at the end of the line", _WAIT_MILLISECONDS / 1000)
    assert "visible" == page.locator("[data-chart=messages] [data-cursor]").evaluate("each => each.style.visibility")
    page.mouse.move(5, 5)
    assert "" == pointed.text_content()


def test_full_names_are_copied(page, furnished):
    """A selected id is copied as the full name, which is also its title. A button copies the name of a view."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/")
    link = page.locator(f'th a[title="{WAREHOUSE}"]')
    assert WAREHOUSE == link.evaluate(
        "each => { getSelection().selectAllChildren(each); return String(getSelection()) }"
    )
    page.get_by_role("button", name="Copy the line for the shell").click()
    see(page.get_by_text("Copied"))
    host = page.url.split("/")[2]
    assert f"export PUBSUB_EMULATOR_HOST={host}" == page.evaluate("navigator.clipboard.readText()")
    page.goto(f"/page/{WAREHOUSE}")
    page.get_by_role("button", name="Copy the name").click()
    see(page.get_by_text("Copied"))
    assert WAREHOUSE == page.evaluate("navigator.clipboard.readText()")


def test_page_is_small_and_asks_only_its_own_server(page, furnished, emulator):
    """Each view with its script and stylesheet is below 100 KB, and nothing is requested from anywhere else."""
    for number in range(30):
        emulator.create_subscription(f"projects/demo/subscriptions/many-{number}", TOPIC)
        emulator.publish(TOPIC, flight("UA", number))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in furnished:
        view = page.goto(path)
        files = [page.request.get(f"/page/static/page.{kind}") for kind in ("css", "js")]
        assert 15_000 < sum(len(each.body()) for each in (view, *files)) < 100_000, path
        page.wait_for_timeout(500)
    assert [] == [url for url in asked if not url.startswith((f"http://{emulator.endpoint}/", "data:,"))]


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_axe_finds_nothing(page, furnished, axe, scheme, width):
    """axe-core's rules of WCAG 2.1 A and AA hold in every view, light on a phone and dark on a desk."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": WIDTHS[width]})
    for path in [*furnished, "/page/projects/demo/topics/missing"]:
        page.goto(path)
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        page.evaluate(axe)
        found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
        assert 10 < len(found["passes"])
        assert [] == [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]], path


@pytest.fixture(scope="module")
def axe() -> str:
    """Return the text of axe-core."""
    for folder in (os.environ.get("NODE_PATH", ""), str(Path(sys.prefix, "node_modules"))):
        if (script := Path(folder, "axe-core", "axe.min.js")).is_file():
            return script.read_text()
    pytest.skip("axe-core is not here: `make test` brings it where npm reaches its registry, or NODE_PATH")


def test_page_works_without_script(chromium, emulator):
    """With scripts switched off everything works, by reloading."""
    context = chromium.new_context(base_url=f"http://{emulator.endpoint}", java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/page/{TOPIC}")
    fill_in(page, "UA")
    page.goto(f"/page/{LIVE}")
    see(page.get_by_text('"carrier": "UA"').first)
    context.close()


def test_pictures_of_the_documentation(page, emulator):
    """docs/emulator.md shows four pictures, each small enough. EMULATOR_SCREENSHOTS=1 takes new ones."""
    if os.environ.get("EMULATOR_SCREENSHOTS") == "1":
        take_pictures(page, emulator)
    pictures = re.findall(r"\(images/emulator-(\w+)\.png\)", (ROOT / "docs" / "emulator.md").read_text())

    assert ["overview", "subscription", "topic", "phone"] == pictures
    for picture in pictures:
        content = (IMAGES / f"emulator-{picture}.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < MAX_IMAGE_BYTES


def take_pictures(page, emulator: Emulator) -> None:
    """Take the overview, a subscription with its messages on a desk and a phone, and in dark a topic with its form."""
    IMAGES.mkdir(exist_ok=True)
    page.set_viewport_size({"width": 1280, "height": 800})
    emulator.create_topic(DEAD)
    emulator.create_subscription("projects/demo/subscriptions/dead-letters", DEAD)
    emulator.create_topic("projects/shop/topics/orders")
    emulator.create_subscription("projects/shop/subscriptions/warehouse", "projects/shop/topics/orders")
    page.goto("/")
    for number in range(12):  # a chart needs some seconds
        carriers = ["UA", "AA", "DL", "B6"] * (1 + number * 5 % 7)
        emulator.publish(TOPIC, *(flight(each, number + index) for index, each in enumerate(carriers)))
        if number % 2:
            client = Client(emulator.endpoint)
            held = [each.ack_id for each in client.pull(LIVE, 11)]
            client.ack(*held[:-1], subscription=LIVE)
            client.modack(0, held[-1], subscription=LIVE)
            client.channel.close()
        page.wait_for_timeout(1000)
    page.screenshot(path=IMAGES / "emulator-overview.png")
    page.set_viewport_size({"width": 1280, "height": 1000})
    page.goto(f"/page/{LIVE}")
    page.get_by_label("How many").fill("3")
    page.get_by_role("button", name="Pull").click()
    page.locator("details[data-key] summary").nth(1).click()
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(2500)
    page.screenshot(path=IMAGES / "emulator-subscription.png")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/page/{LIVE}")
    page.screenshot(path=IMAGES / "emulator-phone.png")
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="dark")
    page.goto(f"/page/{TOPIC}")
    page.wait_for_timeout(2500)
    page.screenshot(path=IMAGES / "emulator-topic.png")


def flight(carrier: str, number: int) -> dict[str, Any]:
    """Return a message of the schema, in Avro's binary encoding."""
    data = bytes([4, *carrier.encode(), 2, 2 * (number * 13 % 40), 2 * (number % 3)])
    return {"data": data, "attributes": {"origin": ("EWR", "JFK", "LGA")[number % 3]}, "ordering_key": carrier}
