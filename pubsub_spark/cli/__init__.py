"""The `pubsub-spark` command, `app`. Each family of commands is one module.

    demo, emulator   need no account                  staging   the staging area of streaming reads
    topics, subscriptions, snapshots, schemas         resources, with the flags that `gcloud pubsub` has
    messages       publish, pull, tail                backlog   backlog, seek
    dead_letters   dead-letters ls, show, redrive
    options        the options of reading and writing          asyncapi  apply, asyncapi export
    doctor         checks of this machine, Spark and Pub/Sub (in `checks`)
    command        the common parts of commands: `Service`, `--json`, exit codes    output  tables and JSON
    help           the classes of commands: `-h`, examples                          examples  the table of those

A module is imported when one of its commands is named, and the libraries of a command when it runs. An error that is
ours is one sentence on standard error. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from functools import cache, cached_property
from importlib import import_module
from typing import Annotated, Any

try:
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"The command `pubsub-spark` needs `{missing.name}`. Install pubsub-spark with its extra `cli`."
    ) from None

from .help import App, Group

__all__ = ["app"]

# The modules of the commands, in the order of `--help`.
MODULES = {
    "apply": "asyncapi",
    "doctor": "doctor",
    "publish": "messages",
    "pull": "messages",
    "tail": "messages",
    "backlog": "backlog",
    "seek": "backlog",
    "options": "options",
    "demo": "demo",
    "emulator": "emulator",
    "asyncapi": "asyncapi",
    "topics": "topics",
    "subscriptions": "subscriptions",
    "snapshots": "snapshots",
    "schemas": "schemas",
    "dead-letters": "dead_letters",
    "staging": "staging",
}
_SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # its tables cut the names of options off on a terminal of 80 columns
}


class _Commands(Group):
    """The first level. A command is imported when it is named, because all of them take longer than most commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        del self.commands  # empty, and it would hide the property

    @cached_property
    def commands(self) -> dict[str, Any]:  # type: ignore[override]
        """All of them, for `--help` and for completion."""
        return {name: commands_of(module)[name] for name, module in MODULES.items()}

    def get_command(self, _: Any, name: str) -> Any:
        return commands_of(MODULES[name])[name] if name in MODULES else None


@cache
def commands_of(module_name: str) -> dict[str, Any]:
    """Return the commands and the group of a module by their names."""
    module = import_module(f".{module_name}", __name__)
    family = App(**_SETTINGS)
    if hasattr(module, "register"):
        module.register(family)
    if hasattr(module, "app"):
        family.add_typer(module.app)
    return dict(typer.main.get_group(family).commands)


app = App(
    _Commands,
    name="pubsub-spark",
    help="Google Cloud Pub/Sub for Apache Spark: resources, messages, a doctor, an emulator and the demo.",
    **_SETTINGS,
)


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
