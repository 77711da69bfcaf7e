"""The `pubsub-spark` command, `app`. Each family of commands is one module.

    demo, emulator   need no account                  staging   the staging area of streaming reads
    topics, subscriptions, snapshots, schemas         resources, with the flags that `gcloud pubsub` has
    messages       publish, pull, tail                backlog   backlog, seek
    dead_letters   dead-letters ls, show, redrive
    options        the options of reading and writing          asyncapi  apply, asyncapi export
    doctor         checks of this machine, Spark and Pub/Sub (in `checks`)
    command        the common parts of commands: `Service`, `--json`, exit codes    output  tables and JSON
    help           the classes of commands: `-h`, examples                          examples  the table of those

Each command imports its modules when it runs, so `--help` answers at once. An error that is ours is one sentence on
standard error. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from typing import Annotated

try:
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"The command `pubsub-spark` needs `{missing.name}`. Install pubsub-spark with its extra `cli`."
    ) from None

from . import (
    asyncapi,
    backlog,
    dead_letters,
    demo,
    doctor,
    emulator,
    messages,
    options,
    schemas,
    snapshots,
    staging,
    subscriptions,
    topics,
)
from .command import command
from .help import App

__all__ = ["app"]

app = App(
    name="pubsub-spark",
    help="Google Cloud Pub/Sub for Apache Spark: resources, messages, a doctor, an emulator and the demo.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut the names of options off on a terminal of 80 columns
)

# Of families that are commands of their own, and of those that are groups of commands.
for family in (asyncapi, doctor, messages, backlog, options, demo):
    family.register(app)
for group in (emulator, asyncapi, topics, subscriptions, snapshots, schemas, dead_letters, staging):
    app.add_typer(group.app)
# gcloud also has these three here.
command(topics.app, "publish")(messages.publish)
command(subscriptions.app, "pull")(messages.pull)
command(subscriptions.app, "seek")(backlog.seek)


def _print_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        typer.echo(f"pubsub-spark {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Google Cloud Pub/Sub for Apache Spark: resources, messages, a doctor, an emulator and the demo."""
