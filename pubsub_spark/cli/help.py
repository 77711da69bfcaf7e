"""The groups and commands of `pubsub-spark`: `-h`, `help` before a command, plain usage lines, and examples."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from .examples import EXAMPLES

Function = TypeVar("Function", bound=Callable[..., Any])

HELP = {"help_option_names": ["-h", "--help"]}

_FIRST_SENTENCE = re.compile(r".+?\.(?=\s|$)|.+", re.DOTALL)
_KIND = re.compile(r"<([^<>]*)>(\.\.\.)?")
_WORDS = {
    "str": "TEXT",
    "int": "NUMBER",
    "int range": "NUMBER",
    "float": "NUMBER",
    "float range": "NUMBER",
    "file": "FILE",
    "dir": "FOLDER",
    "directory": "FOLDER",
    "path": "PATH",
}


class _Help:
    help: str | None

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 (never cut)
        sentence = _FIRST_SENTENCE.match(" ".join((self.help or "").split()))
        return sentence[0] if sentence else ""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        names: list[str] = []
        while ctx.parent is not None:
            names.insert(0, ctx.info_name)
            ctx = ctx.parent
        with formatter.section("Examples"):
            for line in EXAMPLES.get(" ".join(names), ()):
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Command(_Help, TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return ["[OPTIONS]", *(_usage(argument) for argument in self.params if argument.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                rows["Arguments"].append((_usage(parameter), record[1]))
            else:
                rows["Options"].append((_KIND.sub(_word, record[0]), record[1]))
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(_Help, TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)


class App(typer.Typer):
    """A typer app whose group and commands are these classes. Without a command it prints its help."""

    def __init__(self, cls: type[Group] = Group, **settings: Any) -> None:
        super().__init__(cls=cls, **{"no_args_is_help": True, "context_settings": HELP, **settings})

    def command(self, *names: str, **settings: Any) -> Callable[[Function], Function]:  # type: ignore[override]
        return super().command(*names, **{"cls": Command, **settings})


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return f"{name if argument.required else f'[{name}]'}{'...' if argument.nargs != 1 else ''}"


def _word(kind: re.Match[str]) -> str:
    return _WORDS.get(kind[1], kind[1])
