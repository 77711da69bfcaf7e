"""Lists in pages: sorted by name, a token says after which name the next page begins.

A token stays good when the item that it names is deleted: it marks a place in the order, not an item.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from pubsub_spark.emulator import rules
from pubsub_spark.emulator.refusal import invalid

_MARK = b"after:"  # tells our tokens from any other base64


def page(items: Iterable[str], size: int, token: str) -> tuple[list[str], str]:
    """One page of the sorted items, and the token of the next one (empty on the last)."""
    if not 0 <= size <= rules.MAX_PAGE:
        raise invalid(
            f"The value for page_size is out of bounds. You passed {size} in the request, "
            f"but the value must be between 0 and {rules.MAX_PAGE}."
        )
    after = _decode(token) if token else ""
    rest = sorted(item for item in items if item > after)
    size = size or rules.DEFAULT_PAGE
    return rest[:size], _encode(rest[size - 1]) if len(rest) > size else ""


def _encode(item: str) -> str:
    return base64.urlsafe_b64encode(_MARK + item.encode()).decode()


def _decode(token: str) -> str:
    try:
        text = base64.b64decode(token, altchars=b"-_", validate=True)
        if text.startswith(_MARK):
            return text.removeprefix(_MARK).decode()
    except (binascii.Error, ValueError):
        pass
    raise invalid(f"Invalid page token given (token={token}).")
