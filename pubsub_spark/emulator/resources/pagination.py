"""Lists in pages, sorted by name. A token has the name that the next page begins after.

So it stays good when that item is deleted. It is good only in its own list.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from pubsub_spark.emulator.api.errors import invalid
from pubsub_spark.emulator.resources import limits


def page(items: Iterable[str], request: Any) -> tuple[list[str], str]:
    """Return a page, and the token of the next one (empty on the last)."""
    size = request.page_size
    if not 0 <= size <= limits.MAX_PAGE_SIZE:
        raise limits.out_of_bounds("page_size", size, 0, limits.MAX_PAGE_SIZE)
    mark = _mark(request)
    after = _decode(request.page_token, mark) if request.page_token else ""
    remaining = sorted(item for item in items if item > after)
    size = size or limits.DEFAULT_PAGE_SIZE
    return remaining[:size], _encode(remaining[size - 1], mark) if len(remaining) > size else ""


def of_project(resources: Mapping[str, Any], request: Any) -> tuple[list[Any], str]:
    limits.check_project(request.project)
    names, token = page((name for name in resources if name.startswith(f"{request.project}/")), request)
    return [resources[name].resource for name in names], token


def _mark(request: Any) -> bytes:
    """The prefix tells a list's page tokens from those of other lists and from other base64."""
    of = request.DESCRIPTOR.fields_by_number[1].name
    return f"{zlib.crc32(f'{request.DESCRIPTOR.name} {getattr(request, of)}'.encode()):08x}:".encode()


def _encode(item: str, mark: bytes) -> str:
    return base64.urlsafe_b64encode(mark + item.encode()).decode()


def _decode(token: str, mark: bytes) -> str:
    try:
        text = base64.b64decode(token, altchars=b"-_", validate=True)
        if text.startswith(mark):
            return text.removeprefix(mark).decode()
    except (binascii.Error, ValueError):
        pass
    raise invalid(f"Invalid page token given (token={token}).")
