"""REST clients in a browser: pages of other sites, which `--allow-origin` names or not, call the JSON API."""

from __future__ import annotations

import http.client
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pubsub_spark.emulator import Emulator

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SITE = "http://localhost:3000"
TOPIC = "/v1/projects/p/topics/news"
# A page creates a topic, publishes with a header that needs a preflight, reads an error, and moves the clock.
SCRIPT = """async endpoint => {
  const ask = async (method, path, body) => {
    const headers = {"Content-Type": "application/json", "x-goog-request-params": "a"};
    try {
      const response = await fetch(endpoint + path, {method, headers, body: body && JSON.stringify(body)});
      return [response.status, await response.json()];
    } catch (error) { return error.name; }
  };
  return [
    await ask("PUT", "/v1/projects/p/topics/news", {}),
    (await ask("POST", "/v1/projects/p/topics/news:publish", {messages: [{data: "YQ=="}]}))[0],
    (await ask("GET", "/v1/projects/p/topics/none"))[0],
    await ask("POST", "/_emulator/advance", {seconds: 1}),
  ];
}"""


@pytest.fixture
def site() -> Iterator[str]:
    """Yield the origin of a site with an empty page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>site</title>")

        def log_message(self, *_: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(emulator: Emulator, method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of an answer."""
    connection = http.client.HTTPConnection(emulator.host, emulator.port, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.headers.items()}


def test_preflight_and_answer_name_the_site():
    """The preflight of an allowed site is answered, and so is its request. Another site is refused."""
    asks = {"Access_Control_Request_Method": "PATCH", "Access_Control_Request_Headers": "authorization,x-goog-a"}
    with Emulator(allow_origins=[SITE]) as emulator:
        emulator.create_topic(TOPIC[4:])
        status, headers = ask(emulator, "OPTIONS", TOPIC, Origin=SITE, **asks)
        assert (200, SITE) == (status, headers["access-control-allow-origin"])
        assert "PATCH" in headers["access-control-allow-methods"]
        assert "x-goog-a" in headers["access-control-allow-headers"]
        status, headers = ask(emulator, "GET", TOPIC, Origin=SITE)
        assert (200, SITE) == (status, headers["access-control-allow-origin"])
        for refused in (ask(emulator, "GET", TOPIC, Origin="http://evil.com"), ask(emulator, "GET", "/", Origin=SITE)):
            assert "access-control-allow-origin" not in refused[1]
        assert 403 == ask(emulator, "GET", TOPIC, Origin="http://evil.com")[0]
        assert 403 == ask(emulator, "GET", "/metrics", Origin=SITE)[0]


def test_no_site_is_allowed_by_default():
    """Without `allow_origins` neither a preflight nor a request of another site is accepted."""
    with Emulator() as emulator:
        assert 403 == ask(emulator, "OPTIONS", TOPIC, Origin=SITE, Access_Control_Request_Method="GET")[0]
        assert 403 == ask(emulator, "GET", TOPIC, Origin=SITE)[0]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("is_allowed", [True, False])
def test_page_of_another_origin_calls_the_api(site, is_allowed):
    """In Chromium a page of an allowed site uses the API and the verbs. A page of another site gets nothing."""
    playwright = pytest.importorskip("playwright.sync_api")
    allowed = [site] if is_allowed else ["http://localhost:1"]
    with Emulator(allow_origins=allowed) as emulator, playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(site)

        answers = page.evaluate(SCRIPT, f"http://{emulator.endpoint}")

        browser.close()
        if is_allowed:
            assert [[200, {"name": TOPIC[4:]}], 200, 404, [200, {}]] == answers
        else:
            assert ["TypeError", "T", "T", "TypeError"] == answers
