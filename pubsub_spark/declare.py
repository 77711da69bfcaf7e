"""Declared options: name, kind, default, bounds and one sentence, in the metadata of a dataclass field.

Parsing, its errors, the command line and the tables of docs/ are read from the declaration.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar, Literal, TypeVar

T = TypeVar("T")
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
    """Return the seconds of a duration such as `10s`. Raises ValueError as `Option.parse` does."""
    return _quantity(text, "duration", "`500ms`, `10s` or `5m`")


def size(text: str) -> int:
    """Return the bytes of a size such as `64m` or `1g`. Raises ValueError for another text."""
    return int(min(_quantity(text, "size", "`64m` or `1g`"), 2.0 * _LONG))  # a float may be infinite


def timestamp(text: str) -> datetime.datetime:
    """Return the time of an ISO 8601 text, UTC without a zone. Raises ValueError as `Option.parse` does."""
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
    "integer": _integer,
    "boolean": _boolean,
    "duration": duration,
    "size": size,
    "timestamp": timestamp,
    "list": _list,
}

Scalar = Literal["string", "integer", "boolean", "duration", "size", "timestamp"]
Kind = Literal[Scalar, "list", "choice", "file", "folder", "url", "address"]


@dataclass(frozen=True)
class Option:
    name: str
    kind: Kind
    default: str
    sentence: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False

    def parse(self, text: str) -> Any:
        """Raises ValueError with the rest of a sentence that begins with the option's name."""
        if self.kind == "choice":
            chosen = next((choice for choice in self.choices if choice.lower() == text.lower()), None)
            if chosen is None:
                raise ValueError(f"must be one of {', '.join(f'`{c}`' for c in self.choices)}, got `{text}`")
            return chosen
        try:
            value = _PARSERS.get(self.kind, _text)(text)
        except ValueError as error:
            raise ValueError(f"{error}, got `{text}`") from None
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise ValueError(f"must be {self.bounds}, got `{text}`")
        if isinstance(value, int) and value > _LONG:
            raise ValueError(f"must be at most {_LONG}, got `{text}`")
        if self.kind in ("string", "list") and not value:
            raise ValueError("must not be empty")
        return value

    @property
    def bounds(self) -> str:
        """The allowed range in words, empty when any value will do."""
        if self.low is not None and self.high is not None:
            return f"between {self._shown(self.low)} and {self._shown(self.high)}"
        if self.low is not None:
            return f"at least {self._shown(self.low)}"
        return "" if self.high is None else f"at most {self._shown(self.high)}"

    @property
    def cells(self) -> str:
        """The cells of its row in a Markdown table: kind, default, meaning."""
        kind = " \\| ".join(f"`{choice}`" for choice in self.choices) or self.kind
        bounds = f" ({self.bounds})" if self.bounds else ""
        return f"| {kind} | {self.default} | {self.sentence}{bounds} |"

    def _shown(self, value: float) -> str:
        if self.kind == "duration":
            seconds = _UNITS["duration"]
            unit = next((u for u in ("d", "h", "m") if value >= seconds[u] and value % seconds[u] == 0), "s")
            return f"{value / seconds[unit]:g}{unit}"
        if self.kind == "size":
            return f"{value / 1e6:g} MB" if value >= 1e6 else "1 byte" if value == 1 else f"{value:g} bytes"
        return f"{value:.0f}"


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
    """Return a dataclass field that carries its option. `shown` is the default as a user would write it."""
    if shown is None:
        shown = {True: "true", False: "false"}[default] if isinstance(default, bool) else str(default)
        shown = "" if default in (None, ()) else shown
    option = Option(name, kind, shown, sentence, low, high, choices, secret)
    return field(default=default, repr=not secret, metadata={"option": option})


class Declared:
    purpose: ClassVar[str] = ""  # of the options, for the error about an option of another class
    elsewhere: ClassVar[Mapping[str, str]] = {}  # option names of another product, and the reply to each

    def items(self) -> Iterator[tuple[Option, Any]]:
        """Yield the options, each with its parsed value."""
        for name, option in declared(type(self)).items():
            yield option, getattr(self, name)

    @classmethod
    def declared(cls) -> tuple[Option, ...]:
        """Return all options of this class, in the order of the table of docs/options.md."""
        return tuple(declared(cls).values())

    @classmethod
    def values(cls, options: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
        """Return the values of `options` (any case of names, values as text), and a sentence for each mistake."""
        fields = {option.name.lower(): (name, option) for name, option in declared(cls).items()}
        values: dict[str, Any] = {}
        problems: list[str] = []
        for key, text in options.items():
            if key.lower() not in fields:
                problems.append(_unknown(key, cls))
                continue
            name, option = fields[key.lower()]
            try:
                values[name] = option.parse(text)
            except ValueError as error:
                complaint = f"`{option.name}` {error}"
                problems.append(
                    complaint.replace(f"`{text}`", "a secret that is not shown") if option.secret else complaint
                )
        return values, problems


def declared(options: type[Any]) -> dict[str, Option]:
    """Return the declared options of a dataclass by the names of its fields."""
    return {fld.name: fld.metadata["option"] for fld in dataclasses.fields(options) if "option" in fld.metadata}


def suggest_keywords(cls: type[T]) -> type[T]:
    """Decorate a dataclass so that an unknown keyword is a TypeError that names the nearest field."""
    init = cls.__init__

    @wraps(init)
    def __init__(self: T, *args: Any, **keywords: Any) -> None:  # noqa: N807
        names = [fld.name for fld in dataclasses.fields(cls) if fld.init]  # type: ignore[arg-type]
        if unknown := [key for key in keywords if key not in names]:
            raise TypeError(f"`{unknown[0]}` is not an option{hint(unknown[0], names, ', '.join(names))}")
        init(self, *args, **keywords)

    cls.__init__ = __init__  # type: ignore[assignment, method-assign]
    return cls


def _unknown(key: str, options: type[Declared]) -> str:
    for name, reply in options.elsewhere.items():
        if key.lower() == name.lower():
            return f"`{name}` {reply}"
    beside: list[type[Any]] = options.__bases__[0].__subclasses__()
    for other in beside:
        for option in other.declared():
            if key.lower() == option.name.lower():
                return f"`{option.name}` is an option of {other.purpose}, not of {options.purpose}"
    nearest = hint(key, [option.name for option in options.declared()], "`pubsub-spark options` lists them")
    return f"`{key}` is not an option{nearest}"


def hint(key: str, names: Iterable[str], otherwise: str) -> str:
    """Return the end of a sentence about an unknown name: the nearest known name, if one is near."""
    lowered = {name.lower(): name for name in names}
    nearest = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.6)
    return f"; did you mean `{lowered[nearest[0]]}`?" if nearest else f"; {otherwise}"
