"""`pubsub-spark apply` and `pubsub-spark asyncapi export`: one document that describes all resources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command import Service, command, exit_with
from .help import App

if TYPE_CHECKING:
    from ..asyncapi.plan import Plan

app = App(name="asyncapi", help="AsyncAPI documents of existing topics and subscriptions.")

_File = Annotated[Path, typer.Argument(metavar="FILE", help="An AsyncAPI document, 2.x or 3.x, YAML or JSON.")]


def is_document(path: Path) -> bool:
    """Return whether a file is an AsyncAPI document, by a key on its first level."""
    import yaml

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return False
    return isinstance(root, yaml.MappingNode) and any(key.value == "asyncapi" for key, _ in root.value)


def register(parent: typer.Typer) -> None:
    command(parent, "apply")(apply)


def apply(
    service: Service,
    file: _File,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and change nothing.")] = False,
) -> None:
    """Create and update the schemas, topics and subscriptions that an AsyncAPI document describes."""
    planned = run(service, file, dry_run)
    if planned.conflicts:
        raise typer.Exit(1)


def run(service: Service, file: Path, dry_run: bool = False, quiet: bool = False) -> Plan:
    """Carry out the plan of a document, and print it unless `quiet`."""
    try:
        from ..asyncapi import api
        from ..asyncapi import apply as applying
        from ..asyncapi import plan as planning
    except ModuleNotFoundError as error:
        exit_with(f"AsyncAPI documents need `{error.name}`. Install pubsub-spark with its extra `asyncapi`.")
    from ..errors import PubSubError
    from .output import progress

    described = api.read(file, service.project)
    with service.connect() as admin:
        planned = planning.plan(described, applying.existing(admin, described))
        if not quiet:
            _print(service, planned, described)
        for conflict in planned.conflicts:
            typer.echo(conflict, err=True)
        if dry_run or planned.conflicts:
            return planned
        for done, step in enumerate(progress(planned.changes, "applying")):
            try:
                applying.carry_out(admin, step)
            except PubSubError as error:
                applied = ", ".join(f"{step.kind} `{step.resource.name}`" for step in planned.changes[:done])
                so_far = f"{done} of {len(planned.changes)} changes are made{f' ({applied})' if applied else ''}"
                exit_with(f"{error} {so_far}. Run it again for the others.")
    return planned


def _print(service: Service, planned: Plan, described: Any) -> None:
    from .output import print_json, print_table

    if service.as_json:
        steps = [
            {"action": step.action, "kind": step.kind, "name": step.resource.name, "details": list(step.details)}
            for step in planned.steps
        ]
        print_json({"steps": steps, "conflicts": planned.conflicts})
        return
    rows = [(step.action, step.kind, step.resource.name, "; ".join(step.details)) for step in planned.steps]
    print_table(("action", "kind", "name", "details"), rows)
    for key in sorted({_ordering(message) for messages in described.messages.values() for message in messages} - {""}):
        typer.echo(key)
    if not planned.changes and not planned.conflicts:
        typer.echo("Nothing to do.")


def _ordering(message: Any) -> str:
    key = message.binding.ordering_key
    if key is None:
        return ""
    if message.fields is None:
        return (
            f"The ordering key of `{message.name}` is the field `{key}` of its payload, whose fields are unknown here."
        )
    if key.partition(".")[0] in message.fields:
        return f"The ordering key of `{message.name}` is the value of the field `{key}` of its payload."
    return f"The ordering key of `{message.name}` is the text `{key}`, because its payload has no such field."


@app.callback()
def _group() -> None:
    """AsyncAPI documents of existing topics and subscriptions."""


def export(
    service: Service,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="The file to write.", show_default="standard output")
    ] = None,
) -> None:
    """Write the AsyncAPI document of the topics, schemas and subscriptions of a project, as YAML or as JSON."""
    try:
        from ..asyncapi.export import document
    except ModuleNotFoundError as error:
        exit_with(f"AsyncAPI documents need `{error.name}`. Install pubsub-spark with its extra `asyncapi`.")

    project = service.the_project()
    with service.connect() as admin:
        topics = admin.listed("topics", project)
        names = {topic.schema_settings.schema for topic in topics if "/" in topic.schema_settings.schema}
        schemas = {name: admin.get("schemas", name) for name in sorted(names)}
        text = document(project, schemas, topics, admin.listed("subscriptions", project), service.as_json)
    if output is None:
        typer.echo(text, nl=False)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            exit_with(f"`{output}` cannot be written: {error.strerror}. Choose another path.")


command(app, "export")(export)
