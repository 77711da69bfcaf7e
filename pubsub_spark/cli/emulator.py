"""`pubsub-spark emulator`: run, start, stop, wait, status, and the verbs that tests need.

A shell evaluates the output of `start` and `wait`. When they fail it is `false`: then `eval "$(...)"` also fails, and
no client calls Google Cloud by mistake.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..emulator.options import ServeOptions
from . import asyncapi, detached
from .command import Json, Project, Service, exit_with, names_of, one_sentence, seconds, with_declared
from .emulator_client import ask, is_listening, page_of, pid_at
from .help import App, Command, Group
from .messages import printable
from .output import print_json, print_table

_REPLACED = {"--detach": "start", "--stop": "stop", "--wait-ready": "wait"}
_EXPORT = "export PUBSUB_EMULATOR_HOST="
_MAX_SHOWN = 60  # characters of a payload in a table

Timeout = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait.")]
Endpoint = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="The address of the emulator.", envvar="PUBSUB_EMULATOR_HOST")
]
Port = Annotated[
    int | None, typer.Option(min=1, max=65535, metavar="NUMBER", help="The same as `--endpoint 127.0.0.1:NUMBER`.")
]
_DEFAULT = "127.0.0.1:8085"


class _Group(Group):
    """The command is `run` when none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # which is completion
            for name in args:
                if name in _REPLACED:
                    typer.echo("false")  # for the shell that evaluates it
                    exit_with(f"`{name}` is a command: `pubsub-spark emulator {_REPLACED[name]}`.", 2)
            if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
                args = ["run", *args]
        return super().parse_args(ctx, args)


class _Evaluated(Command):
    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _failing_the_shell("--json" in args):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _failing_the_shell(ctx.params["as_json"]):
            return super().invoke(ctx)


@contextmanager
def _failing_the_shell(as_json: bool) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if getattr(error, "exit_code", 1) and not as_json:
            typer.echo("false")
        raise


app = App(
    _Group,
    name="emulator",
    help="Serve Pub/Sub on this machine: in the foreground, or in the background with `start`. Without a command it is "
    "`run`.",
    no_args_is_help=False,
)


@app.command("run")
@with_declared(ServeOptions)
def run(context: typer.Context, project: Project = None, as_json: Json = False, **flags: Any) -> None:  # noqa: ARG001
    """Serve Pub/Sub until Ctrl-C or SIGTERM. Prints the environment variable that clients use."""
    options = ServeOptions(**{name: value for name, value in flags.items() if value is not None})
    _refuse_second(options)
    from ..emulator.api.messages_alone import import_messages

    import_messages()
    try:
        from ..emulator.serve import serve
    except ModuleNotFoundError as error:
        exit_with(str(error))
    prepare = None
    if options.config is not None and asyncapi.is_document(options.config):
        prepare, options.config = partial(_apply, options.config, project), None
    raise typer.Exit(serve(options, prepare, as_json))


@app.command("start", cls=_Evaluated)
@with_declared(ServeOptions)
def start(
    context: typer.Context,
    project: Project = None,  # noqa: ARG001 (the process that serves reads it)
    timeout: Timeout = 30,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Serve in the background, and return when ready. Prints the environment variable for a shell to evaluate.

    If the same emulator runs already, its variable is printed again.
    """
    flags = {name: value for name, value in flags.items() if value is not None}
    options = ServeOptions(**flags)
    asked = detached.given_options(context, ("timeout", "as_json"))
    running = detached.started(options.port) if options.port else None
    verb = "runs"
    if running is not None:
        verb = "already runs"
        if others := [option for option in asked if option[0] != "--port" and option not in running.options]:
            exit_with(
                f"The emulator at {running.endpoint} already runs, without `{' '.join(others[0])}`. "
                f"End it first: `pubsub-spark emulator stop --port {running.port}`."
            )
    else:
        _refuse_second(options)
        if options.config is not None and asyncapi.is_document(options.config):
            program, arguments = detached.RUN, [word for option in asked for word in option]
        else:
            program, arguments = detached.SERVE, [json.dumps(flags, default=str)]
        running = detached.start(program, arguments, asked, timeout)
    page = page_of(running.endpoint)
    if as_json:
        print_json({"pid": running.pid, "endpoint": running.endpoint, "page": page, "log": str(running.log)})
    else:
        typer.echo(f"{_EXPORT}{running.endpoint}")
    typer.echo(f"The emulator {verb} at {running.endpoint} (process id {running.pid}, log {running.log}).", err=True)
    typer.echo(f"Page: {page}", err=True)


@app.command("stop")
def stop(endpoint: Endpoint = _DEFAULT, port: Port = None, timeout: Timeout = 30, as_json: Json = False) -> None:
    """End the emulator that `start` started on this port, and wait for its end."""
    ended = detached.stop(port or _at(endpoint, None).rpartition(":")[2], timeout)
    if as_json:
        print_json({"pid": ended.pid, "endpoint": ended.endpoint})
    typer.echo(f"The emulator at {ended.endpoint} has ended (process id {ended.pid}).", err=True)


@app.command("wait", cls=_Evaluated)
def wait(endpoint: Endpoint = _DEFAULT, port: Port = None, timeout: Timeout = 30, as_json: Json = False) -> None:
    """Return when an emulator answers. Prints the environment variable for a shell to evaluate."""
    at = _at(endpoint, port)
    detached.wait(at, timeout)
    if as_json:
        print_json({"endpoint": at})
    else:
        typer.echo(f"{_EXPORT}{at}")


@app.command("status")
def status(endpoint: Endpoint = _DEFAULT, port: Port = None, as_json: Json = False) -> None:
    """Show the emulators that `start` started, and the one at this endpoint. Ends with 1 if none runs."""
    at = _at(endpoint, port)
    emulators = {emulator.endpoint: (emulator.pid, str(emulator.log)) for emulator in detached.all_started()}
    if at not in emulators and (pid := pid_at(at)) is not None:
        emulators[at] = pid, "-"
    if not emulators:
        exit_with(f"No emulator runs at `{at}`, and `start` started none that still runs.")
    rows = [(address, str(pid), page_of(address), log) for address, (pid, log) in emulators.items()]
    if as_json:
        print_json([dict(zip(("endpoint", "pid", "page", "log"), row, strict=True)) for row in rows])
    else:
        print_table(("endpoint", "process id", "page", "log"), rows)


@app.command("advance")
def advance(
    duration: Annotated[
        float, typer.Argument(parser=seconds, metavar="DURATION", help="Seconds, or `10s`, `5m`, `7d`.")
    ],
    endpoint: Endpoint = _DEFAULT,
    port: Port = None,
    as_json: Json = False,
) -> None:
    """Move the emulator's clock forward. Leases that run out meanwhile have run out when it returns."""
    _tell(_at(endpoint, port), as_json, f"advanced the clock by {duration:g} s", "advance", seconds=duration)


@app.command("fail")
def fail(
    rpc: Annotated[str, typer.Argument(metavar="RPC", help="The name of an RPC, such as Publish, or `*` for any.")],
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="A status, such as UNAVAILABLE.", show_default="only delayed")
    ] = None,
    times: Annotated[int, typer.Option(min=1, metavar="N", help="How many calls.")] = 1,
    delay: Annotated[
        Any, typer.Option(parser=seconds, metavar="DURATION", help="Wait this time first, on the emulator's clock.")
    ] = "0s",
    message: Annotated[str, typer.Option(metavar="TEXT", help="The message of the error.")] = "",
    endpoint: Endpoint = _DEFAULT,
    port: Port = None,
    as_json: Json = False,
) -> None:
    """Let the next calls of an RPC fail, or be late."""
    if code is None and not delay:
        exit_with("Name a status, such as UNAVAILABLE, or `--delay`.", 2)
    effect = f"fail with {code}" if code else f"take {delay:g} s longer"
    sentence = f"the next {f'{times} calls' if times > 1 else 'call'} of {rpc} will {effect}"
    fields = {"rpc": rpc, "code": code, "count": times, "delay": delay, "message": message}
    _tell(_at(endpoint, port), as_json, sentence, "fail", **fields)


@app.command("reset")
def reset(endpoint: Endpoint = _DEFAULT, port: Port = None, as_json: Json = False) -> None:
    """Delete every resource, message and fault of the emulator, and set its clock back."""
    at = _at(endpoint, port)
    _tell(at, as_json, f"deleted everything at {at}", "reset")


@app.command("calls")
def calls(
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show at most the latest N calls.")] = 50,
    endpoint: Endpoint = _DEFAULT,
    port: Port = None,
    as_json: Json = False,
) -> None:
    """List the latest calls (500 are kept), the newest last."""
    recent = ask(_at(endpoint, port), "GET", "recentCalls")[-limit:]
    if as_json:
        print_json(recent)
        return
    rows = [
        (_time(call["began"]), call["rpc"], call["status"] or "open", f"{call['seconds'] * 1000:.1f}", call["resource"])
        for call in recent
    ]
    print_table(("time (UTC)", "rpc", "status", "ms", "resource"), rows)


@app.command("messages")
def messages(
    subscription: Annotated[str, typer.Argument(**names_of("subscriptions", "SUBSCRIPTION"))],
    project: Project = None,
    endpoint: Endpoint = _DEFAULT,
    port: Port = None,
    as_json: Json = False,
) -> None:
    """Show the history of each message of a subscription. Acknowledged ones are kept with `emulator --record`."""
    at = _at(endpoint, port)
    name = Service(project, at, None, as_json).full(subscription, "subscriptions")
    records = ask(at, "GET", "messages", subscription=name)
    if as_json:
        print_json(records)
        return
    if not records:
        typer.echo("No unacknowledged message. `emulator run --record` also keeps acknowledged ones.", err=True)
    heading = ("message id", "published (UTC)", "state", "deliveries", "failures", "data")
    print_table(heading, [_message_row(record) for record in records])


def _message_row(record: dict[str, Any]) -> tuple[str, ...]:
    import base64

    lease = record["ackDeadline"]
    state = "acked" if record["acked"] else "waiting" if lease is None else f"leased until {_time(lease)}"
    data = printable(base64.b64decode(record["data"]).decode(errors="replace"))
    shown = data if len(data) <= _MAX_SHOWN else f"{data[:_MAX_SHOWN]}..."
    published = _time(record["publishTime"])
    return record["messageId"], published, state, str(record["deliveries"]), str(record["failures"]), shown


def _time(since_epoch: float) -> str:
    return datetime.datetime.fromtimestamp(since_epoch, datetime.UTC).strftime("%H:%M:%S.%f")[:-3]


def _tell(endpoint: str, as_json: bool, sentence: str, verb: str, **fields: Any) -> None:
    answer = ask(endpoint, "POST", verb, **fields)
    if as_json:
        print_json(answer)
    else:
        typer.echo(sentence)


def _at(endpoint: str, port: int | None) -> str:
    from ..service_options import is_endpoint

    if port is not None:
        return f"127.0.0.1:{port}"
    if not is_endpoint(endpoint):
        exit_with(
            f"`--endpoint` and PUBSUB_EMULATOR_HOST must be `host:port` without `http://`, such as `{_DEFAULT}`. Got "
            f"`{endpoint}`.",
            2,
        )
    return endpoint


def _refuse_second(options: ServeOptions) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    endpoint = f"{host}:{options.port}"
    if options.port and is_listening(options.host, options.port) and (pid := pid_at(endpoint)) is not None:
        exit_with(
            f'An emulator already runs at `{endpoint}` (process id {pid}). Use it with `eval "$(pubsub-spark emulator '
            f'wait --endpoint {endpoint})"`, end it, or choose another `--port`.'
        )


def _apply(document: Path, project: str | None, endpoint: str) -> None:
    with one_sentence():
        if asyncapi.run(Service(project, endpoint, None, False), document, quiet=True).conflicts:
            raise typer.Exit(1)
