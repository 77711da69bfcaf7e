"""The behaviour of `pubsub-spark tail` when the service is lost while it follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from pubsub_spark.cli import app
from pubsub_spark.cli.command import Service
from pubsub_spark.errors import ForbiddenError, PubSubError, ServiceError


class Lost:
    """The calls of `tail`, with pulls that all fail."""

    def __init__(self, error: PubSubError) -> None:
        self._error = error
        self.deleted: list[str] = []

    def create(self, *_: Any) -> None:
        """Create the temporary subscription."""

    def topic(self, _: str) -> Any:
        return SimpleNamespace(schema_settings=SimpleNamespace(schema=""))

    def pull(self, *_: Any) -> NoReturn:
        raise self._error

    def delete(self, collection: str, *_: Any) -> None:
        self.deleted.append(collection)


@pytest.mark.parametrize(
    ("error", "deleted"),
    [
        (ServiceError("`127.0.0.1:8085` did not answer."), []),
        (ForbiddenError("Permission to pull is denied."), ["subscriptions"]),
    ],
)
def test_a_service_that_is_lost_is_not_asked_to_delete(
    monkeypatch: pytest.MonkeyPatch, error: PubSubError, deleted: list[str]
):
    """`tail` ends with the error of its pull. It deletes its subscription only if the service still answers."""
    lost = Lost(error)

    @contextmanager
    def connect(_: Service) -> Iterator[Lost]:
        yield lost

    monkeypatch.setattr(Service, "connect", connect)
    result = CliRunner().invoke(app, ["tail", "flights", "--project", "my-project", "--endpoint", "127.0.0.1:8085"])

    assert (1, deleted) == (result.exit_code, lost.deleted)
    assert str(error) == result.stderr.splitlines()[-1]
