"""The `pubsub-spark` command: the demo, the emulator and the staging area from a shell.

Each command imports what it needs when it runs, so `--help` answers at once. An error that is ours is one sentence on
standard error and exit code 1; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from .read.staged_streams import StagedStream

app = typer.Typer(
    name="pubsub-spark",
    help="Google Cloud Pub/Sub for Apache Spark: the demo, an emulator, and the staging area.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


staging = typer.Typer(help="Look at and clean the staging area of streaming reads.", no_args_is_help=True)
app.add_typer(staging, name="staging")

_Location = Annotated[
    str | None, typer.Argument(help="The `stagingLocation`: a path or URL.", show_default="this user's default")
]


def _print_version(asked: bool) -> None:
    if asked:
        from . import __version__

        typer.echo(f"pubsub-spark {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Google Cloud Pub/Sub for Apache Spark: the demo, an emulator, and the staging area."""


@app.command()
def demo(
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A Pub/Sub emulator to use instead of the embedded one."),
    ] = None,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the tables, the picture and Spark's log.")
    ] = Path("demo-output"),
    rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N flights, for an emulator that is slow.")
    ] = None,
) -> None:
    """Publish a year of flights, read them into a table, and prove that none is missing."""
    from rich.console import Console

    from .errors import PubSubError

    try:
        from .demo import run

        complete = run(endpoint, output, rows, Console())
    except ModuleNotFoundError as error:
        _exit_with(f"The demo needs `{error.name}`; run `pip install 'pubsub-spark[demo]'`.")
    except (PubSubError, LookupError, RuntimeError) as error:
        _exit_with(str(error))
    if not complete:
        raise typer.Exit(1)


@app.command()
def emulator(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8085,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every call to standard error.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="YAML file of topics, subscriptions and schemas to create."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder that keeps everything, for the next start with it."),
    ] = None,
    fsync: Annotated[
        Literal["group", "call", "never"],
        typer.Option(
            help="When that folder must be on the disk: before a group of calls is answered, each one, never."
        ),
    ] = "group",
) -> None:
    """Serve Pub/Sub from memory until Ctrl-C or SIGTERM; prints the environment variable that clients use."""
    try:
        from .emulator.serve import serve
    except ModuleNotFoundError as error:
        _exit_with(str(error))
    raise typer.Exit(serve(host, port, verbose, config, data_dir, fsync))


@staging.command("ls")
def staging_ls(location: _Location = None) -> None:
    """List the streams that have files in the staging area, those unchanged for longest first."""
    heading = ("subscription", "stream", "batches", "files", "bytes", "unchanged since")
    rows = [
        (
            stream.staging.subscription,
            stream.staging.stream,
            ",".join(map(str, sorted(stream.batches))) or "-",
            str(stream.files),
            f"{stream.bytes:,}",
            f"{stream.changed:%Y-%m-%d %H:%M:%S} UTC",
        )
        for stream in _streams(location)
    ]
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    for row in (heading, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@staging.command("clean")
def staging_clean(
    location: _Location = None,
    stream: Annotated[list[str] | None, typer.Option(metavar="ID", help="Remove this stream; may be repeated.")] = None,
    older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Remove streams unchanged for so many days.")
    ] = None,
) -> None:
    """Remove the files of streams that are gone. Pub/Sub redelivers the messages that they had not acknowledged."""
    import datetime

    from .errors import PubSubError

    if not stream and older_than is None:
        _exit_with("Nothing is removed unasked: name streams with `--stream ID`, or say `--older-than DAYS`.")
    now = datetime.datetime.now(datetime.UTC)
    named, streams = set(stream or ()), _streams(location)
    unknown = named.difference(found.staging.stream for found in streams)
    if unknown:
        ids = " or ".join(f"`{each}`" for each in sorted(unknown))
        _exit_with(f"No stream has the id {ids}, so nothing is removed. `pubsub-spark staging ls` lists what there is.")
    for found in streams:
        old = older_than is not None and now - found.changed > datetime.timedelta(days=older_than)
        if old or found.staging.stream in named:
            try:
                removed = found.remove()
            except PubSubError as error:
                _exit_with(str(error))
            left = f", left {found.files - removed} that are not ours" if removed < found.files else ""
            typer.echo(f"removed {removed} files of stream {found.staging.stream}{left}")


def _streams(location: str | None) -> list[StagedStream]:
    from .errors import PubSubError
    from .read.staged_streams import find
    from .read.staging import default_location

    try:
        return find(location or default_location())
    except PubSubError as error:
        _exit_with(str(error))


def _exit_with(sentence: str) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(1)
