"""The documents, verbs and the page that an emulator serves over HTTP, apart from the JSON API."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pubsub_spark.emulator.transport.verbs import Verb

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Document = Callable[[], Any]  # a text, or a value that JSON can represent


class Page(Protocol):
    """It has its own guard."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def close(self) -> None:
        """End the open responses."""


class HttpContent(NamedTuple):
    documents: Mapping[str, Document]  # by path, for everyone
    verbs: Mapping[str, Verb]  # by name, behind the guard
    metrics: Callable[[], str]  # in Prometheus' text format, behind the guard
    page: Callable[[], Page]  # made when a browser first requests it
    allowed_hosts: Collection[str]  # names of this server, in addition to those that the guard knows
    allowed_origins: Collection[str]  # sites whose pages may call the API and the verbs
