"""BigQuery's REST API, as a table calls it. The test plays the server's part."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pubsub_spark.emulator.sinks.bigquery import parts
from pubsub_spark.emulator.sinks.bigquery_rest import RestTable
from pubsub_spark.emulator.sinks.destination import DestinationError

FIELDS = [{"name": "a", "type": "INT64"}, {"name": "b", "type": "STRING", "mode": "REPEATED"}]


class Server(ThreadingHTTPServer):
    """A server that answers every request with `status` and `answer`, and keeps the requests."""

    def __init__(self) -> None:
        self.status = 200
        self.answer: Any = {}
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, json.loads(body or b"null")))
        answer = self.server.answer
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815 (its name)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def table(server: Server) -> RestTable:
    return RestTable(f"http://127.0.0.1:{server.server_port}/", "p.d.t")


def test_rows_are_inserted_with_their_types(server, table):
    """Columns are read by tables.get. Rows are sent by insertAll, with types that JSON lacks as text. Refused rows are
    returned.
    """
    server.answer = {"schema": {"fields": FIELDS}}
    assert {"a": "INTEGER", "b": "REPEATED"} == table.columns()
    server.answer = {"insertErrors": [{"index": 1, "errors": []}, {"index": 1, "errors": []}]}
    row = {"a": 1, "b": [b"\xff"], "t": datetime(2020, 1, 1, tzinfo=UTC), "d": Decimal("1.5"), "r": {"x": None}}

    assert [1] == table.insert([row, {"a": "x"}])

    sent = {"a": 1, "b": ["/w=="], "t": "2020-01-01T00:00:00+00:00", "d": "1.5", "r": {"x": None}}
    path = "/bigquery/v2/projects/p/datasets/d/tables/t"
    assert [
        ("GET", path, None),
        ("POST", f"{path}/insertAll", {"skipInvalidRows": True, "rows": [{"json": sent}, {"json": {"a": "x"}}]}),
    ] == server.requests


@pytest.mark.parametrize(
    ("status", "state"), [(404, "NOT_FOUND"), (403, "PERMISSION_DENIED"), (401, "PERMISSION_DENIED")]
)
def test_refusals_are_states(server, table, status, state):
    """A missing or forbidden table is a state of the subscription."""
    server.status = status
    with pytest.raises(DestinationError) as error:
        table.columns()

    assert (state, f"The table `p.d.t` cannot be used: the endpoint answers {status}.") == (
        error.value.state,
        str(error.value),
    )


def test_other_errors_are_tried_again(server, table):
    """A failing or missing endpoint is not a state of the table."""
    server.status = 503
    with pytest.raises(OSError, match="answers 503"):
        table.columns()
    server.status, server.answer = 200, b"<html>"
    with pytest.raises(OSError, match="answers no JSON"):
        table.columns()
    with pytest.raises(OSError, match="does not answer"):
        RestTable("http://127.0.0.1:1", "p.d.t").columns()


@pytest.mark.parametrize(
    ("table", "expected"),
    [("p.d.t", ("p", "d", "t")), ("p:d.t", ("p", "d", "t")), ("example.com:p.d.t", ("example.com:p", "d", "t"))],
)
def test_parts_of_a_table(table, expected):
    """A project may include the domain of its organisation."""
    assert expected == parts(table)
