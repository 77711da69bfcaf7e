"""The globs that choose which objects of Cloud Storage are ingested. Pure.

`*` and `?` stop at a slash, `**` does not. `[abc]`, `[!abc]` and `{one,other}` are as in Cloud Storage. A regular
expression is not used: with several stars it tries too many ways through a name, and no other thread runs meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

# The pieces of a glob of Cloud Storage. Everything else is text.
_PIECE = re.compile(r"(\*\*/)|(\*\*)|(\*)|(\?)|(\[[^\]]+\])|\{([^{}]*)\}|([^*?[{]+|.)", re.DOTALL)
_NO_SLASH = re.compile("[^/]")

_Places = set[int]  # in a name
_Match = Callable[[str, _Places], _Places]  # the possible ends of a match, by its possible beginnings


class Glob:
    """An empty glob matches all names."""

    def __init__(self, glob: str) -> None:
        self._pieces = _compiled(glob or "**")

    def matches(self, name: str) -> bool:
        return len(name) in _ends(self._pieces, name, {0})


def _compiled(glob: str) -> list[_Match]:
    return [_compile(piece) for piece in _PIECE.finditer(glob)]


def _compile(piece: re.Match[str]) -> _Match:
    folders, anything, segment, character, group, choices, text = piece.groups()
    if folders:
        return lambda name, at: at | {end + 1 for end in range(min(at), len(name)) if name[end] == "/"}
    if anything:
        return lambda name, at: set(range(min(at), len(name) + 1))
    if segment:
        return _within_segment
    if choices is not None:
        alternatives = [_compiled(choice) for choice in choices.split(",")]
        return lambda name, at: set().union(*(_ends(alternative, name, at) for alternative in alternatives))
    pattern = _characters(group) if group else None
    if character or pattern:
        accepts = (pattern or _NO_SLASH).fullmatch
        return lambda name, at: {start + 1 for start in at if accepts(name[start : start + 1])}
    text = text or group
    return lambda name, at: {start + len(text) for start in at if name.startswith(text, start)}


def _within_segment(name: str, at: _Places) -> _Places:
    ends: _Places = set()
    for start in at:
        end = start
        while end not in ends:
            ends.add(end)
            if end < len(name) and name[end] != "/":
                end += 1
    return ends


def _characters(group: str) -> re.Pattern[str] | None:
    """Return a pattern for a group such as `[a-c]` or `[!x]`, or None if it is invalid, as `[z-a]`."""
    inside = group[1:-1].replace("\\", "\\\\").replace("[", "\\[")
    try:
        return re.compile(f"[^{inside[1:]}]" if inside[0] == "!" and len(inside) > 1 else f"[{inside}]")
    except re.error:
        return None


def _ends(matches: Sequence[_Match], name: str, at: _Places) -> _Places:
    for match in matches:
        if not at:
            break
        at = match(name, at)
    return at
