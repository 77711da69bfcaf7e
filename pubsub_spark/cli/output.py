"""The output of commands: JSON, a table, or the fields of a resource in lines.

On a terminal tables are rich's. A pipe gets columns of plain text, a row a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")


def progress(steps: Iterable[T], description: str) -> Iterator[T]:
    """Yield the steps, with a progress bar on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield from steps
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(steps, description, console=Console(stderr=True), transient=True)


def as_dict(message: Any) -> dict[str, Any]:
    """Return a protobuf message as JSON, with the field names of `gcloud --format=json`."""
    from google.protobuf.json_format import MessageToDict

    fields: dict[str, Any] = MessageToDict(type(message).pb(message))
    return fields


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def printed_at_the_end(as_json: bool, done: Any) -> Iterator[None]:
    """With `as_json`, print the items added to `done`, also if an error ends the block."""
    try:
        yield
    finally:
        if as_json:
            print_json(done)


def table_of(heading: Sequence[str]) -> Table:
    """Return an empty table for a terminal. Long cells continue in the next line: names are never cut."""
    from rich.table import Column, Table

    return Table(*(Column(title, overflow="fold") for title in heading), box=None, header_style="bold")


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        table = table_of(heading)
        for row in rows:
            table.add_row(*(_escaped(cell) for cell in row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    for row in (heading, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_fields(fields: dict[str, Any]) -> None:
    for line in _lines(fields, ""):
        typer.echo(line)


def _escaped(cell: str) -> Any:
    from rich.text import Text

    return Text(cell)


def _lines(value: Any, indent: str) -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else (("-", item) for item in value)
    for key, item in items:
        label = f"{indent}-" if key == "-" else f"{indent}{key}:"
        if isinstance(item, dict | list) and item:
            yield label
            yield from _lines(item, indent + "  ")
        elif isinstance(item, str) and "\n" in item:
            yield label
            yield from (f"{indent}  {line}" for line in item.splitlines())
        else:
            yield f"{label} {str(item).lower() if isinstance(item, bool) else item}"
