"""`pubsub-spark demo`, which needs no account."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command import Json, exit_with
from .output import print_json


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A Pub/Sub emulator to use instead of the embedded one."),
    ] = None,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the tables, the picture and Spark's log.")
    ] = Path("demo-output"),
    rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N flights, if the emulator is slow.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish a year of flights, read them into a table, and prove that none is missing."""
    from rich.console import Console

    from ..errors import PubSubError

    try:
        from ..demo import run

        complete = run(endpoint, output, rows, Console(stderr=as_json))
    except ModuleNotFoundError as error:
        exit_with(f"The demo needs `{error.name}`. Install pubsub-spark with its extra `demo`.")
    except (PubSubError, LookupError, RuntimeError) as error:
        exit_with(str(error))
    if as_json:
        print_json({"complete": complete, "output": str(output)})
    if not complete:
        raise typer.Exit(1)
