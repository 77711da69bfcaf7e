"""The rules of hosts and origins, on headers alone."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import PlainTextResponse

from pubsub_spark.emulator.transport.guard import Guard
from pubsub_spark.emulator.transport.origin import refusal, site

ALLOWED = frozenset({"emulator.example.com"})


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8085",
        "[::1]:8085",
        "10.0.0.7",
        "localhost:8085",
        "pubsub:8085",
        "a.localhost",
        "Emulator.Example.com:1",
    ],
)
def test_own_hosts_are_accepted(host):
    """Addresses, names without a dot, `*.localhost` and allowed names are hosts of the emulator."""
    assert refusal(host, None, "http", ALLOWED) is None
    assert refusal(host, f"http://{host}", "http", ALLOWED) is None


@pytest.mark.parametrize("host", ["evil.example.com:8085", "127.0.0.1.example.com", "localhost.evil.com", "1.2.3"])
def test_foreign_hosts_are_refused(host):
    """A name with a dot that is not allowed is refused, because it may have been made to resolve to this machine."""
    name = host.partition(":")[0]

    assert f"The host `{name}` is not one of this emulator's. Start it with `--allow-host {name}`." == refusal(
        host, None, "http", ALLOWED
    )


def test_every_host_is_accepted_where_none_are_told():
    """Without a list of hosts the API refuses only foreign pages."""
    assert refusal("evil.example.com", None, "http", None) is None
    assert refusal("evil.example.com", "http://other.com", "http", None) is not None


@pytest.mark.parametrize(
    "origin", ["https://127.0.0.1:8085", "http://127.0.0.1:8086", "http://127.0.0.1", "http://evil.com", "null", ""]
)
def test_other_origins_are_refused(origin):
    """Another scheme, port or host, and an origin that a browser hides, belong to another site."""
    assert (
        f"A request of `{origin}` is refused, because it is another site than `http://127.0.0.1:8085`. Open the "
        f"emulator there, or for the JSON API start it with `--allow-origin {origin}`."
    ) == refusal("127.0.0.1:8085", origin, "http", ALLOWED)


def test_allowed_origins_are_accepted():
    """A site that the user has named is accepted, with its scheme and port only."""
    allowed = [site("http://LOCALHOST:3000/")]

    assert refusal("127.0.0.1:8085", "http://localhost:3000", "http", ALLOWED, allowed) is None
    for other in ("http://localhost:3001", "https://localhost:3000", "null"):
        assert refusal("127.0.0.1:8085", other, "http", ALLOWED, allowed) is not None


@pytest.mark.parametrize("text", ["*", "localhost:3000", "http://", "http://a/b", "ftp://a", "http://a?b"])
def test_other_texts_are_no_origins(text):
    """Anything but scheme, host and port is refused when the emulator starts."""
    with pytest.raises(ValueError, match="is not the origin of a site"):
        site(text)


def test_guard_answers_for_the_application():
    """A refused request gets 403 and an error message. The application never sees it."""

    def status(**headers):
        sent = []

        async def receive():
            return {"type": "http.request"}

        async def send(event):
            sent.append(event)

        scope = {"type": "http", "method": "GET", "path": "/", "scheme": "http"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        guard = Guard(PlainTextResponse("Ok"), ["Emulator.example.com"])
        asyncio.run(guard({**scope, "headers": raw}, receive, send))
        return sent[0]["status"], sent[1]["body"].decode()

    assert (200, "Ok") == status(host="emulator.example.com")
    refused, sentence = status(host="evil.example.com")
    assert 403 == refused
    assert sentence.startswith("The host `evil.example.com` is not one of this emulator's. ")
