"""Declared options: name, kind, default, bounds and one sentence, in the metadata of a dataclass field.

Parsing, its errors and the table of docs/options.md are read from the declaration, so they cannot disagree. Pure.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

_UNITS: dict[str, dict[str, float]] = {
    "duration": {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400},
    "size": {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30},
}
_WORDS: dict[str, dict[str, float]] = {
    "duration": {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400},
    "size": {},
}
_LONG = 2**63 - 1  # the largest number of Spark and of Pub/Sub
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[a-zA-Z]*)")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError("must be `true` or `false`") from None


def _quantity(text: str, kind: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is not None:
        unit = match["unit"].lower()
        factor = _UNITS[kind].get(unit) or _WORDS[kind].get(unit.removesuffix("s"))
        if factor is not None:
            return float(match["number"]) * factor
    raise ValueError(f"must be a {kind} such as {example}")


def duration(text: str) -> float:
    """The seconds of a duration such as `10s`; ValueError with the rest of a sentence."""
    return _quantity(text, "duration", "`500ms`, `10s` or `5m`")


def size(text: str) -> int:
    """The bytes of a size such as `64m` or `1g`; ValueError when it is none."""
    return int(min(_quantity(text, "size", "`64m` or `1g`"), 2.0 * _LONG))  # a float may be infinite


def timestamp(text: str) -> datetime.datetime:
    """The time of an ISO 8601 text, UTC without a zone; ValueError with the rest of a sentence."""
    try:
        if text.isdigit() and len(text) > len("20260131"):  # Kafka's milliseconds: those of March 2024 would be in 1711
            raise ValueError
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a timestamp such as `2026-01-31T00:00:00Z`") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _text(text: str) -> str:
    return text


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: dict[str, Callable[[str], Any]] = {
    "string": _text,
    "integer": _integer,
    "boolean": _boolean,
    "duration": duration,
    "size": size,
    "timestamp": timestamp,
    "list": _list,
}

Kind = Literal["string", "integer", "boolean", "duration", "size", "timestamp", "list", "choice"]


@dataclass(frozen=True)
class Option:
    """One declared option, as the table of docs/options.md shows it."""

    name: str
    kind: Kind
    default: str
    sentence: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False

    def parse(self, text: str) -> Any:
        """The parsed value of `text`; ValueError with the rest of a sentence that begins with the option's name."""
        if self.kind == "choice":
            chosen = next((choice for choice in self.choices if choice.lower() == text.lower()), None)
            if chosen is None:
                raise ValueError(f"must be one of {', '.join(f'`{c}`' for c in self.choices)}, got `{text}`")
            return chosen
        try:
            value = _PARSERS[self.kind](text)
        except ValueError as error:
            raise ValueError(f"{error}, got `{text}`") from None
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise ValueError(f"must be {self.bounds}, got `{text}`")
        if isinstance(value, int) and value > _LONG:
            raise ValueError(f"must be {_LONG} or less, got `{text}`")
        if self.kind in ("string", "list") and not value:
            raise ValueError("must not be empty")
        return value

    @property
    def bounds(self) -> str:
        """The allowed range in words, empty when any value will do."""
        if self.low is not None and self.high is not None:
            return f"between {self._shown(self.low)} and {self._shown(self.high)}"
        if self.low is not None:
            return f"{self._shown(self.low)} or more"
        return "" if self.high is None else f"{self._shown(self.high)} or less"

    def _shown(self, value: float) -> str:
        """A bound as a user would write it: `31d`, not 2.6784e+06."""
        if self.kind == "duration":
            seconds = _UNITS["duration"]
            unit = next((u for u in ("d", "h", "m") if value >= seconds[u] and value % seconds[u] == 0), "s")
            return f"{value / seconds[unit]:g}{unit}"
        return f"{value:.0f}{' bytes' if self.kind == 'size' else ''}"


def declare(
    name: str,
    kind: Kind,
    default: Any,
    sentence: str,
    *,
    shown: str | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A dataclass field that carries its option; `shown` is the default as a user would write it."""
    if shown is None:
        shown = (
            {True: "true", False: "false", None: ""}.get(default) if not default or default is True else str(default)
        )
    option = Option(name, kind, shown or "", sentence, low, high, choices, secret)
    return field(default=default, repr=not secret, metadata={"option": option})


class Declared:
    """A dataclass whose fields are declared options."""

    purpose: ClassVar[str] = ""  # of the options, for the error about an option of another class
    elsewhere: ClassVar[Mapping[str, str]] = {}  # option names of another product, and the reply to each

    def items(self) -> Iterator[tuple[Option, Any]]:
        """The options, each with its parsed value."""
        for fld in _fields(type(self)):
            yield fld.metadata["option"], getattr(self, fld.name)

    @classmethod
    def declared(cls) -> tuple[Option, ...]:
        """All options of this class, in the order of the table of docs/options.md."""
        return tuple(fld.metadata["option"] for fld in _fields(cls))

    @classmethod
    def values(cls, given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
        """The parsed values of `given` (any case of names, values as text), and a sentence for each mistake."""
        fields = {fld.metadata["option"].name.lower(): fld for fld in _fields(cls)}
        values: dict[str, Any] = {}
        problems: list[str] = []
        for key, text in given.items():
            if key.lower() not in fields:
                problems.append(_unknown(key, cls))
                continue
            fld = fields[key.lower()]
            option: Option = fld.metadata["option"]
            try:
                values[fld.name] = option.parse(text)
            except ValueError as error:
                complaint = f"`{option.name}` {error}"
                problems.append(
                    complaint.replace(f"`{text}`", "a secret that is not shown") if option.secret else complaint
                )
        return values, problems


def _fields(options: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(fld for fld in dataclasses.fields(options) if "option" in fld.metadata)


def _unknown(key: str, options: type[Declared]) -> str:
    for name, reply in options.elsewhere.items():
        if key.lower() == name.lower():
            return f"`{name}` {reply}"
    beside: list[type[Any]] = options.__bases__[0].__subclasses__()
    for other in beside:
        for option in other.declared():
            if key.lower() == option.name.lower():
                return f"`{option.name}` is an option of {other.purpose}, not of {options.purpose}"
    lowered = {option.name.lower(): option.name for option in options.declared()}
    nearest = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.6)
    hint = f"; did you mean `{lowered[nearest[0]]}`?" if nearest else "; `pubsub-spark options` lists them"
    return f"`{key}` is not an option{hint}"


def table(options: type[Declared]) -> str:
    """The Markdown table of a class's options, as docs/options.md shows it."""
    lines = ["| option | kind | default | meaning |", "|---|---|---|---|"]
    for option in options.declared():
        kind = " \\| ".join(f"`{choice}`" for choice in option.choices) or option.kind
        bounds = f" ({option.bounds})" if option.bounds else ""
        lines.append(f"| `{option.name}` | {kind} | {option.default} | {option.sentence}{bounds} |")
    return "\n".join(lines)
