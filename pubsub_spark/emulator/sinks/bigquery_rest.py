"""BigQuery's tables behind the REST endpoint of an emulator of BigQuery or another server of its API.

`tables.get` returns the columns, `tabledata.insertAll` writes the rows. No credentials are sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import urllib3

from pubsub_spark.emulator.sinks.bigquery import parts
from pubsub_spark.emulator.sinks.bigquery_rows import Row
from pubsub_spark.emulator.sinks.destination import DestinationError, State

_ALIASES = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}
_TIMEOUT_SECONDS = 30.0
_REFUSED: dict[int, State] = {
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.FORBIDDEN: "PERMISSION_DENIED",
    HTTPStatus.UNAUTHORIZED: "PERMISSION_DENIED",
}


class RestTable:
    """A table behind an endpoint such as `http://localhost:9050`."""

    def __init__(self, endpoint: str, table: str) -> None:
        project, dataset, name = (quote(part, safe="") for part in parts(table))
        base = endpoint.rstrip("/")
        self._url = f"{base}/bigquery/v2/projects/{project}/datasets/{dataset}/tables/{name}"
        self._table = table
        self._pool = urllib3.PoolManager(timeout=_TIMEOUT_SECONDS, retries=False)

    def columns(self) -> Mapping[str, str]:
        fields = self._ask("GET", self._url).get("schema", {}).get("fields", [])
        return {field["name"]: _type(field) for field in fields}

    def insert(self, rows: Sequence[Row]) -> Sequence[int]:
        body = {"skipInvalidRows": True, "rows": [{"json": _json(row)} for row in rows]}
        answer = self._ask("POST", f"{self._url}/insertAll", body)
        return sorted({int(error["index"]) for error in answer.get("insertErrors", [])})

    def _ask(self, method: str, url: str, body: Any = None) -> Any:
        try:
            answer = self._pool.request(method, url, json=body) if body is not None else self._pool.request(method, url)
        except urllib3.exceptions.HTTPError as problem:
            raise OSError(f"The BigQuery endpoint does not answer at `{url}`: {problem}") from None
        if answer.status in _REFUSED:
            said = f"The table `{self._table}` cannot be used: the endpoint answers {answer.status}."
            raise DestinationError(_REFUSED[answer.status], said)
        if answer.status != HTTPStatus.OK:
            raise OSError(f"The BigQuery endpoint answers {answer.status} at `{url}`: {answer.data[:200]!r}")
        try:
            return json.loads(answer.data or b"{}")
        except ValueError:
            raise OSError(f"The BigQuery endpoint answers no JSON at `{url}`: {answer.data[:200]!r}") from None


def _type(field: Mapping[str, str]) -> str:
    return "REPEATED" if field.get("mode") == "REPEATED" else _ALIASES.get(field["type"], field["type"])


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
