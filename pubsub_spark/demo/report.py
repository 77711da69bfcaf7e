"""The terminal output of the demo: progress bars, the table, and the proof."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text


@contextmanager
def bar(console: Console, verb: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar. Yields the function that sets its position."""
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(verb, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def watch(count: Callable[[], int], advance: Callable[[int], None]) -> Iterator[None]:
    """Move a bar to `count()` twice a second while the block works."""
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.wait(0.5):
            advance(count())

    watcher = threading.Thread(target=poll, name="demo-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()


def pivot(departures: pa.Table, column: str) -> tuple[list[int], list[str], dict[tuple[int, str], float]]:
    """Return the hours, the carriers, and the value of `column` for each pair that has one."""
    hours, carriers, values = (departures[name].to_pylist() for name in ("hour", "carrier", column))
    cells = dict(zip(zip(hours, carriers, strict=True), values, strict=True))
    return sorted(set(hours)), sorted(set(carriers)), cells


def print_departures(console: Console, departures: pa.Table) -> None:
    for column, title, style in (
        ("departures", "Departures by scheduled hour and carrier", _plain),
        ("mean_delay", "Mean departure delay in minutes", _heat),
    ):
        hours, carriers, cells = pivot(departures, column)
        console.print(title, style="italic")
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for heading in ("", *carriers):
            table.add_column(heading, justify="right", no_wrap=True)
        for hour in hours:
            table.add_row(f"{hour:02}", *(style(cells.get((hour, carrier))) for carrier in carriers))
        console.print(table)
        console.print()


def _plain(value: float | None) -> Text:
    return Text("" if value is None else str(round(value)))


def _heat(value: float | None) -> Text:
    colour = "" if value is None else "green" if value < 5 else "yellow" if value < 20 else "red"
    return Text("" if value is None else str(round(value)), style=colour)


def print_proof(console: Console, source: Mapping[str, int], result: Mapping[str, int]) -> bool:
    """Returns whether all are equal."""
    console.print("Is everything there?", style="italic")
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("source file", "through Pub/Sub"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for name, expected in source.items():
        actual = result[name]
        verdict = Text("equal", style="green") if expected == actual else Text("DIFFERENT", style="bold red")
        table.add_row(name, f"{expected:,}", f"{actual:,}", verdict)
    console.print(table)
    different = [name for name, expected in source.items() if expected != result[name]]
    if different:
        console.print(f"NOT EQUAL: {', '.join(different)}", style="bold red")
    else:
        console.print("Equal: every flight arrived, once.", style="bold green")
    return not different
