"""Lists in pages, times and amounts as the page writes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

COLLECTIONS = ("topics", "subscriptions", "schemas", "snapshots")
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


class Page(NamedTuple):
    """One page of a list: its rows, and where it is in the whole."""

    rows: Sequence[Any]
    number: int  # from 1 on
    pages: int
    total: int

    def map(self, row: Any) -> Page:
        """The page with each row made into another by `row`."""
        return self._replace(rows=[row(each) for each in self.rows])


def page(items: Iterable[str], number: int, size: int) -> Page:
    """The page of that number of the sorted items; the nearest one where there is none."""
    everything = sorted(items)
    number, pages = place(number, size, len(everything))
    return Page(everything[(number - 1) * size : number * size], number, pages, len(everything))


def place(number: int, size: int, total: int) -> tuple[int, int]:
    """The number of the page nearest to the one asked for, and how many pages there are."""
    pages = max(1, -(-total // size))
    return min(max(number, 1), pages), pages


def is_resource(name: str) -> bool:
    """Whether a name is that of a topic, subscription, schema or snapshot, which has a page."""
    fields = name.split("/")
    return len(fields) == 4 and fields[0] == "projects" and fields[2] in COLLECTIONS


def address(name: str) -> str:
    """The path of the page of a resource."""
    return f"/page/{quote(name)}"


def query(values: Iterable[tuple[str, object]]) -> str:
    """The query of an address; empty values are left out."""
    text = urlencode([(name, value) for name, value in values if value not in ("", None)], safe="/")
    return f"?{text}" if text else ""


def moment(seconds: float | None) -> str:
    """A time as the page writes it, in UTC; empty for none."""
    if seconds is None:
        return ""
    try:
        return (
            datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
        )
    except (ValueError, OverflowError, OSError):  # the clock was advanced beyond the year 9999
        return f"{seconds:,.0f} s after 1970"


def time_of_day(seconds: float | None) -> str:
    """The time of `moment` without its date; empty for none."""
    text = moment(seconds)
    return text[11:23] if text.endswith(" UTC") else text


def ahead(seconds: float) -> str:
    """How far the emulator's clock is ahead of the machine's; empty if it is not."""
    return f"{duration(round(seconds))} ahead" if seconds >= 0.5 else ""


def client(name: str) -> str:
    """A client's address, or a text with one, without gRPC's scheme."""
    return name.replace("ipv4:", "").replace("ipv6:", "").replace("%5B", "[").replace("%5D", "]")


def duration(seconds: float | None) -> str:
    """A length of time, of two units at most: `3.2 s`, `5 min 10 s`, `2 d 3 h`."""
    if seconds is None:
        return "none"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    rest, said = float(seconds), list[str]()
    for unit, name in (*_UNITS, (1.0, "s")):
        if rest >= unit and len(said) < 2:
            said.append(f"{rest // unit:,.0f} {name}")
            rest %= unit
    return " ".join(said)


def amount(number: float) -> str:
    """A number with separators of thousands; of those below ten, one decimal where there is one."""
    return f"{number:,.1f}" if number < 10 and number != int(number) else f"{number:,.0f}"
