"""`pubsub-spark staging`: list and clean the staging area of streaming reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .command import CredentialsFile, Json, exit_with, one_sentence
from .help import App
from .output import print_json, print_table, printed_at_the_end, progress

if TYPE_CHECKING:
    from ..read.staging.streams import StagedStream

app = App(name="staging", help="Show and clean the staging area of streaming reads.")

_Location = Annotated[
    str | None,
    typer.Argument(
        metavar="LOCATION", help="The `stagingLocation`: a path or URL.", show_default="this user's default"
    ),
]


@app.command("ls")
def ls(location: _Location = None, credentials_file: CredentialsFile = None, as_json: Json = False) -> None:
    """List the streams that have files in the staging area, those unchanged for longest first."""
    streams = _streams(location, credentials_file)
    if not streams:
        from ..read.staging.store import default_location

        exit_with(f"No stream has files in `{location or default_location()}`.")
    if as_json:
        print_json(
            [
                {
                    "subscription": stream.staging.subscription,
                    "stream": stream.staging.stream,
                    "batches": sorted(stream.batches),
                    "files": stream.files,
                    "bytes": stream.bytes,
                    "unchangedSince": stream.changed.isoformat(),
                }
                for stream in streams
            ]
        )
        return
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
        for stream in streams
    ]
    print_table(heading, rows)


@app.command("clean")
def clean(
    location: _Location = None,
    stream: Annotated[list[str] | None, typer.Option(metavar="ID", help="Remove this stream. May be repeated.")] = None,
    older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Remove streams unchanged for so long, used or not.")
    ] = None,
    credentials_file: CredentialsFile = None,
    as_json: Json = False,
) -> None:
    """Remove the files of streams whose queries are gone. Pub/Sub redelivers the messages that were not acknowledged.

    A query that runs, or starts again later, cannot repeat a batch whose files are removed.
    """
    import datetime

    if not stream and older_than is None:
        exit_with("Nothing is removed unasked: name streams with `--stream ID`, or say `--older-than DAYS`.", 2)
    now = datetime.datetime.now(datetime.UTC)
    named, streams = set(stream or ()), _streams(location, credentials_file)
    unknown = named.difference(staged.staging.stream for staged in streams)
    if unknown:
        ids = " or ".join(f"`{stream_id}`" for stream_id in sorted(unknown))
        exit_with(f"No stream has the id {ids}, so nothing is removed. `pubsub-spark staging ls` lists the streams.")
    done: list[dict[str, object]] = []
    with printed_at_the_end(as_json, done):
        for staged in progress(streams, "removing"):
            old = older_than is not None and now - staged.changed > datetime.timedelta(days=older_than)
            if old or staged.staging.stream in named:
                with one_sentence():
                    removed = staged.staging.delete()
                done.append({"stream": staged.staging.stream, "removed": removed, "left": staged.files - removed})
                left = f", left {staged.files - removed} that are not ours" if removed < staged.files else ""
                if not as_json:
                    typer.echo(f"removed {removed} files of stream {staged.staging.stream}{left}")


@one_sentence()
def _streams(location: str | None, credentials_file: str | None) -> list[StagedStream]:
    from ..backend import credentials_json
    from ..read.staging.store import default_location
    from ..read.staging.streams import find
    from ..service_options import ServiceOptions

    options = {} if credentials_file is None else {"credentialsFile": credentials_file}
    return find(location or default_location(), credentials_json(ServiceOptions.parse(options, {})))
