"""`pubsub-spark demo` and `pubsub-spark emulator`, which need no account."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from . import asyncapi, detached
from .command import Json, Project, Service, exit_with, one_sentence
from .output import print_json

_NOT_SERVING = (
    "detach",
    "stop",
    "wait_ready",
    "timeout",
    "as_json",
)  # options that are not for the process that serves


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command()(demo)
    app.command()(emulator)


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
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8085,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log every call, its resource, messages and duration, to standard error.")
    ] = False,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Lines of text, or of JSON.")] = "text",
    config: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="YAML file of topics, subscriptions and schemas, or an AsyncAPI document."),
    ] = None,
    project: Project = None,
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
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name with a dot by which browsers may open the emulator's page."),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Keep calls and acked messages for `/_emulator/calls` and `/messages`.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Chaos: reorder, redeliver, end leases early; the same seed, the same choices."),
    ] = None,
    allow_well_known_imports: Annotated[
        bool,
        typer.Option("--allow-well-known-imports", help="Protobuf schemas may import `google/protobuf/*.proto`."),
    ] = False,
    storage_root: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Folder of buckets, gs:// or s3://, for Cloud Storage subscriptions."),
    ] = None,
    bigquery_root: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder of DuckDB files, one a project, for BigQuery subscriptions."),
    ] = None,
    bigquery_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="A server of BigQuery's REST API, in place of those files.")
    ] = None,
    kinesis_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="A server of Kinesis' API (moto), from which topics ingest.")
    ] = None,
    kafka_endpoint: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A Kafka broker, which stands for Event Hubs, MSK and Confluent Cloud."),
    ] = None,
    kafka_config: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="librdkafka's settings for TLS or a login there, `name=value` a line."),
    ] = None,
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
) -> None:
    """Serve Pub/Sub until Ctrl-C or SIGTERM; prints the environment variable that clients use."""
    if detach + stop + wait_ready > 1:
        exit_with("Give one of `--detach`, `--stop` and `--wait-ready`.", 2)
    if stop:
        ended = detached.stop(port, timeout)
        if as_json:
            print_json(ended._asdict())
        typer.echo(f"The emulator at {ended.endpoint} has ended (process id {ended.pid}).", err=True)
        return
    if wait_ready:
        endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
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
    if config is not None and asyncapi.is_document(config):
        prepare, config = partial(_apply, config, project), None
    code = serve(
        host,
        port,
        verbose,
        config,
        prepare,
        data_dir,
        fsync,
        allow_hosts=allow_host or (),
        record=record,
        log_format=log_format,
        seed=seed,
        allow_well_known_imports=allow_well_known_imports,
        storage_root=storage_root,
        bigquery_root=bigquery_root,
        bigquery_endpoint=bigquery_endpoint,
        kinesis_endpoint=kinesis_endpoint,
        kafka_endpoint=kafka_endpoint,
        kafka_config=kafka_config,
        as_json=as_json,
    )
    raise typer.Exit(code)


def _apply(document: Path, project: str | None, endpoint: str) -> None:
    """Create what an AsyncAPI document describes on an emulator that has just started."""
    with one_sentence():
        if asyncapi.run(Service(project, endpoint, None, False), document, quiet=True).conflicts:
            raise typer.Exit(1)
