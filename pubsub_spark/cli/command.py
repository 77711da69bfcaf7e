"""The parts of every command: the Pub/Sub that it calls, `--json`, and exit codes.

A command whose first parameter is a `Service` is registered with `command`, which puts the options of the service in
its place. 0 is success, 1 an error (one sentence on standard error), 2 a wrong call.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_type_hints

import typer

from ..declare import Option, declared
from ..service_options import PROJECT_VARIABLES

if TYPE_CHECKING:
    from ..backend import Backend
    from ..backend.admin import Admin
    from ..names import Collection

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Project = Annotated[
    str | None,
    typer.Option(metavar="ID", help="The project of resources that are named by id.", envvar=[*PROJECT_VARIABLES]),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="An emulator, or a regional endpoint.",
        envvar="PUBSUB_EMULATOR_HOST",
        show_default="Google Cloud",
    ),
]
CredentialsFile = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="A credentials file in JSON.", show_default="Application Default Credentials"),
]

# The kinds of declared options for typer: their types (otherwise texts), and the metavar in its help.
_TYPES = {"integer": int, "boolean": bool, "list": list[str], "file": Path, "folder": Path}
_COMPLETION_SECONDS = 2.0  # for a service that does not answer: a shell waits

# Names of options in errors of `format("pubsub")`, and the flags of commands.
_FLAGS = {
    "set credentials or `backend=gcp`": "pass `--credentials-file`",
    "`backend=emulator` or PUBSUB_EMULATOR_HOST": "PUBSUB_EMULATOR_HOST",
    "`backend=emulator` if it is an emulator": "PUBSUB_EMULATOR_HOST if it is an emulator",
    "`credentialsFile`": "`--credentials-file`",
    "`endpoint`": "`--endpoint`",
    "`projectId`": "`--project`",
}
_SAID_TWICE = re.compile(r" \(Resource not found \(resource=[^)]*\)\.?\)$")  # the sentence before has it
_METAVARS = {"url": "URL", "address": "HOST:PORT", "list": "NAME"}


@dataclass(frozen=True)
class Service:
    project: str | None
    endpoint: str | None
    credentials_file: str | None
    as_json: bool

    def options(self) -> dict[str, str]:
        """Return the same as options of `format("pubsub")`."""
        options = {"projectId": self.project, "endpoint": self.endpoint, "credentialsFile": self.credentials_file}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def backend(self) -> Backend:
        """Raises OptionsError if the options cannot work."""
        return self._backend({})

    def _backend(self, more: Mapping[str, str]) -> Backend:
        from ..backend import from_options
        from ..service_options import ServiceOptions

        return from_options(ServiceOptions.parse({**self.options(), **more}, os.environ))

    @contextmanager
    def connect(self, seconds: float | None = None) -> Iterator[Admin]:
        """Yield the calls on resources. seconds: to wait for an endpoint that does not answer."""
        more = {} if seconds is None else {"connectTimeout": f"{seconds}s"}
        with self._backend(more).connect() as connection:
            yield connection.admin

    def full(self, name: str, collection: Collection, project: str | None = None) -> str:
        """Return the full name of a resource, by default in `--project`. End the command if it is not a name."""
        from .. import names

        try:
            return names.full(name, project or self.project, collection)
        except ValueError as error:
            exit_with(f"{_in_flags(str(error))}.", 2)

    def schema_or_revision(self, schema: str) -> str:
        """Return the full name of a schema, with its `@REVISION` if it has one."""
        name, at, revision = schema.partition("@")
        return self.full(name, "schemas") + at + revision

    def the_project(self) -> str:
        if not self.project:
            exit_with(f"Pass `--project ID`, or set {' or '.join(PROJECT_VARIABLES)}.", 2)
        return self.project


def choices(*words: str) -> dict[str, Any]:
    """Return the settings of a typer option: its metavar, and the completion of a shell."""
    return {
        "metavar": "|".join(words),
        "autocompletion": lambda incomplete: [word for word in words if word.startswith(incomplete.lower())],
    }


def names_of(collection: Collection, metavar: str = "NAME") -> dict[str, Any]:
    """Return the settings of a typer parameter that names a resource: see `choices`."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        logging.disable(logging.CRITICAL)  # it would appear in the shell's line
        flags = ctx.params
        service = Service(flags.get("project"), flags.get("endpoint"), flags.get("credentials_file"), False)
        with suppress(Exception), service.connect(seconds=_COMPLETION_SECONDS) as admin:
            ids = [resource.name.rpartition("/")[2] for resource in admin.listed(collection, service.the_project())]
            return [resource_id for resource_id in ids if resource_id.startswith(incomplete)]
        return []

    return {"metavar": metavar, "autocompletion": complete}


def exit_with(sentence: str, code: int = 1) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(code)


@contextmanager
def one_sentence() -> Iterator[None]:
    """End the command with the message of a PubSubError that the block raises."""
    from ..errors import OptionsError, PubSubError

    try:
        yield
    except OptionsError as error:
        exit_with(_in_flags(" ".join(f"{problem.rstrip('.')}." for problem in error.problems)), 2)
    except PubSubError as error:
        exit_with(_in_flags(str(error)))


def _in_flags(sentence: str) -> str:
    for option, flag in _FLAGS.items():
        sentence = sentence.replace(option, flag)
    return _SAID_TWICE.sub("", sentence)


def command(
    app: typer.Typer, *names: str, flags: Mapping[str, Any] | None = None, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function under each name, with the service's options instead of its first parameter, a `Service`.

    flags: further parameters and their types, which the function receives as keywords, or None if they are absent.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def run(
            project: str | None = None,
            endpoint: str | None = None,
            credentials_file: str | None = None,
            as_json: bool = False,
            **arguments: Any,
        ) -> None:
            with one_sentence():
                function(Service(project, endpoint, credentials_file, as_json), **arguments)

        _, *own = _own_parameters(function)
        last = {
            **(flags or {}),
            "project": Project,
            "endpoint": Endpoint,
            "credentials_file": CredentialsFile,
            "as_json": Json,
        }
        parameters = [
            *own,
            *(_parameter(name, hint, False if name == "as_json" else None) for name, hint in last.items()),
        ]
        _set_parameters(run, parameters)
        run.__doc__ = function.__doc__
        for name in names:
            app.command(name, **settings)(run)
        return function

    return register


def with_declared(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command with a dataclass's declared options, which are keywords by the names of its fields."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        defaults = inspect.signature(options).parameters
        context, *own = _own_parameters(function)
        flags = [
            _parameter(name, _flag(option), None if option.kind == "list" else defaults[name].default)
            for name, option in declared(options).items()
        ]
        _set_parameters(function, [context, *flags, *own])
        return function

    return decorate


def _flag(option: Option) -> Any:
    kind: Any = Literal.__getitem__(option.choices) if option.choices else _TYPES.get(option.kind, str)
    return Annotated[
        kind | None,
        typer.Option(
            f"--{option.name}",
            help=option.sentence,
            metavar=_METAVARS.get(option.kind),
            min=option.low,
            max=option.high,
            dir_okay=option.kind != "file",
            file_okay=option.kind != "folder",
        ),
    ]


def _own_parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return [_parameter(p.name, hints[p.name], p.default) for p in parameters if p.kind is not p.VAR_KEYWORD]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _set_parameters(function: Any, parameters: list[inspect.Parameter]) -> None:
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def seconds(text: str) -> float:
    """Return the seconds of a duration such as `10s` or `7d`, for typer's `parser`."""
    from ..declare import duration

    try:
        return duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, got `{text}`") from None


def pairs(texts: list[str] | None) -> dict[str, str]:
    """Return the entries of `KEY=VALUE` texts. A text may hold several, separated by commas before a next `KEY=`."""
    entries: dict[str, str] = {}
    for text in texts or ():
        last = None
        for piece in text.split(","):
            key, equals, value = piece.partition("=")
            if equals and key:
                entries[key], last = value, key
            elif last is not None:
                entries[last] += f",{piece}"
            else:
                exit_with(f"`{text}` is not of the form `KEY=VALUE`.", 2)
    return entries
