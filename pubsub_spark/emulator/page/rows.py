"""Lists in pages, and the format of times and amounts on the page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

COLLECTIONS = ("topics", "subscriptions", "schemas", "snapshots")
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


class Page(NamedTuple):
    rows: Sequence[Any]
    number: int  # from 1 on
    pages: int
    total: int

    def map(self, row: Any) -> Page:
        return self._replace(rows=[row(item) for item in self.rows])


def page(items: Iterable[str], number: int, size: int) -> Page:
    """Return a page of the sorted items, the nearest one if the number is out of range."""
    everything = sorted(items)
    number, pages = nearest_page(number, size, len(everything))
    return Page(everything[(number - 1) * size : number * size], number, pages, len(everything))


def nearest_page(number: int, size: int, total: int) -> tuple[int, int]:
    pages = max(1, -(-total // size))
    return min(max(number, 1), pages), pages


def is_resource(name: str) -> bool:
    fields = name.split("/")
    return len(fields) == 4 and fields[0] == "projects" and fields[2] in COLLECTIONS


def address(name: str) -> str:
    return f"/page/{quote(name)}"


def query(values: Iterable[tuple[str, object]]) -> str:
    text = urlencode([(name, value) for name, value in values if value not in ("", None)], safe="/")
    return f"?{text}" if text else ""


def moment(seconds: float | None) -> str:
    """Format a time in UTC, or return an empty text for None."""
    if seconds is None:
        return ""
    try:
        return (
            datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
        )
    except (ValueError, OverflowError, OSError):  # the clock was advanced beyond the year 9999
        return f"{seconds:,.0f} s after 1970"


def time_of_day(seconds: float | None) -> str:
    """Format the time of `moment` without its date."""
    text = moment(seconds)
    return text[11:23] if text.endswith(" UTC") else text


def ahead(seconds: float) -> str:
    """Format the lead of the emulator's clock over the machine's."""
    return f"{duration(round(seconds))} ahead" if seconds >= 0.5 else ""


def client(name: str) -> str:
    """Return the address without gRPC's scheme, also in a text."""
    return name.replace("ipv4:", "").replace("ipv6:", "").replace("%5B", "[").replace("%5D", "]")


def duration(seconds: float | None) -> str:
    """Format a length of time in at most two units: `3.2 s`, `5 min 10 s`, `2 d 3 h`."""
    if seconds is None:
        return "none"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    remaining, said = float(seconds), list[str]()
    for unit, name in (*_UNITS, (1.0, "s")):
        if remaining >= unit and len(said) < 2:
            said.append(f"{remaining // unit:,.0f} {name}")
            remaining %= unit
    return " ".join(said)


def amount(number: float) -> str:
    """Format a number with thousands separators. A fraction below ten has one decimal."""
    return f"{number:,.1f}" if number < 10 and number != int(number) else f"{number:,.0f}"
