"""Partial responses of the JSON API: `fields=nextPageToken,topics(name,labels)` and the selected part of an answer.

Pure. A selection is a list of paths: `a,b` selects two fields, `a/b` (or `a.b`) a field within a field, `a(b,c)`
several of them, `*` all fields. In a list it applies to each item, in a map to its keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import descriptor

_TOKEN = re.compile(r"[^,/.()]+|[,/.()]")
_WELL_KNOWN = "google.protobuf."  # Duration and Timestamp are texts in JSON

Path = tuple[str, ...]


def paths(text: str, message: descriptor.Descriptor) -> list[Path]:
    """Raise ValueError if a path does not exist."""
    tokens = _TOKEN.findall(text)
    try:
        selected = list(_list(tokens))
    except RecursionError:
        raise ValueError("Error expanding 'fields' parameter. The selection is nested too deeply.") from None
    if tokens:
        raise ValueError(f"Error expanding 'fields' parameter. Invalid selection '{text}'.")
    return [_checked(path, message) for path in selected]


def select(document: Any, selected: Sequence[Path]) -> Any:
    if () in selected:
        return document
    if isinstance(document, list):
        return [select(item, selected) for item in document]
    if not isinstance(document, dict):
        return document
    within = {name: [path[1:] for path in selected if path[0] in (name, "*")] for name in document}
    return {name: select(value, within[name]) for name, value in document.items() if within[name]}


def _list(tokens: list[str]) -> Iterator[Path]:
    """Parse `path,path` and remove the parsed tokens."""
    yield from _path(tokens)
    while tokens and tokens[0] == ",":
        tokens.pop(0)
        yield from _path(tokens)


def _path(tokens: list[str]) -> Iterator[Path]:
    """Parse `name`, `name/path` or `name(list)`."""
    if not tokens or tokens[0] in ",/.()":
        raise ValueError("Error expanding 'fields' parameter. A name is missing in the selection.")
    name, follows = tokens.pop(0).strip(), tokens[0] if tokens else ""
    if follows in ("/", "."):
        tokens.pop(0)
        yield from ((name, *path) for path in _path(tokens))
    elif follows == "(":
        tokens.pop(0)
        yield from ((name, *path) for path in list(_list(tokens)))
        if not tokens or tokens.pop(0) != ")":
            raise ValueError("Error expanding 'fields' parameter. A closing parenthesis is missing in the selection.")
    else:
        yield (name,)


def _checked(path: Path, message: descriptor.Descriptor) -> Path:
    """Return the path in the spelling of JSON. Any name is valid behind a `*` and as the key of a map."""
    within: descriptor.Descriptor | None = message
    names: list[str] = []
    for index, name in enumerate(path):
        if name == "*" or (within is not None and within.GetOptions().map_entry):
            return (*names, *path[index:])
        field = within and (within.fields_by_camelcase_name.get(name) or within.fields_by_name.get(name))
        if not field:
            raise ValueError(
                f"Error expanding 'fields' parameter. Cannot find matching fields for path '{'/'.join(path)}'."
            )
        names.append(field.json_name)
        is_text = field.message_type is None or field.message_type.full_name.startswith(_WELL_KNOWN)
        within = None if is_text else field.message_type
    return tuple(names)
