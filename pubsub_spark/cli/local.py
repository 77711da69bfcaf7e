"""`pubsub-spark demo` and `pubsub-spark emulator`, which need no account."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..emulator.options import ServeOptions
from . import asyncapi, detached
from .command import Json, Project, Service, exit_with, one_sentence, with_declared
from .output import print_json

# Options that are not for the process that serves.
_NOT_SERVING = ("detach", "stop", "wait_ready", "timeout", "as_json")


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command()(demo)
    app.command()(with_declared(ServeOptions)(emulator))


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
    as_json: Json = False,
) -> None:
    """Publish a year of flights, read them into a table, and prove that none is missing."""
    from rich.console import Console

    from ..errors import PubSubError

    try:
        from ..demo import run

        complete = run(endpoint, output, rows, Console(stderr=as_json))
    except ModuleNotFoundError as error:
        exit_with(f"The demo needs `{error.name}`; install pubsub-spark with its extra `demo`.")
    except (PubSubError, LookupError, RuntimeError) as error:
        exit_with(str(error))
    if as_json:
        print_json({"complete": complete, "output": str(output)})
    if not complete:
        raise typer.Exit(1)


def emulator(
    context: typer.Context,
    project: Project = None,
    detach: Annotated[bool, typer.Option("--detach", help="Serve in the background, and return when ready.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the emulator that was detached on this port, and wait for its end.")
    ] = False,
    wait_ready: Annotated[
        bool, typer.Option("--wait-ready", help="Return when an emulator answers at this host and port.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long `--detach`, `--stop` and `--wait-ready` wait.")
    ] = 30,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Serve Pub/Sub until Ctrl-C or SIGTERM; prints the environment variable that clients use."""
    options = ServeOptions(**{name: value for name, value in given.items() if value is not None})
    if detach + stop + wait_ready > 1:
        exit_with("Give one of `--detach`, `--stop` and `--wait-ready`.", 2)
    if stop:
        ended = detached.stop(options.port, timeout)
        if as_json:
            print_json(ended._asdict())
        typer.echo(f"The emulator at {ended.endpoint} has ended (process id {ended.pid}).", err=True)
        return
    if wait_ready:
        host = f"[{options.host}]" if ":" in options.host else options.host
        endpoint = f"{host}:{options.port}"
        detached.wait_ready(endpoint, timeout)
        if as_json:
            print_json({"endpoint": endpoint})
        else:
            typer.echo(f"export PUBSUB_EMULATOR_HOST={endpoint}")
        return
    if detach:
        arguments = detached.arguments_of(context.command, context.params, _NOT_SERVING)
        running = detached.start(arguments, timeout)
        if as_json:
            print_json({**running._asdict(), "log": str(detached.log_of(running))})
        else:
            typer.echo(f"export PUBSUB_EMULATOR_HOST={running.endpoint}")
        about = f"process id {running.pid}, log {detached.log_of(running)}"
        typer.echo(f"The emulator runs at {running.endpoint} ({about}).", err=True)
        return
    try:
        from ..emulator.serve import serve
    except ModuleNotFoundError as error:
        exit_with(str(error))
    prepare = None
    if options.config is not None and asyncapi.is_document(options.config):
        prepare, options.config = partial(_apply, options.config, project), None
    raise typer.Exit(serve(options, prepare, as_json))


def _apply(document: Path, project: str | None, endpoint: str) -> None:
    """Create what an AsyncAPI document describes on an emulator that has just started."""
    with one_sentence():
        if asyncapi.run(Service(project, endpoint, None, False), document, quiet=True).conflicts:
            raise typer.Exit(1)
