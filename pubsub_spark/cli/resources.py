"""`list`, `describe` and `delete`, which are the same for each collection of resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from ..names import Collection
from .command import Service, command, exit_with
from .output import as_dict, print_fields, print_json, print_table, printed_at_the_end

Columns = Mapping[str, Callable[[dict[str, Any]], str]]


def field(name: str) -> Callable[[dict[str, Any]], str]:
    """A function from a resource's JSON to one field of it, `-` where it is not set."""
    return lambda resource: str(resource.get(name, "-"))


def short(name: str) -> Callable[[dict[str, Any]], str]:
    """A function from a resource's JSON to the last part of a name in it, `-` where it is not set."""
    return lambda resource: str(resource.get(name, "-")).rpartition("/")[2]


def group(collection: Collection, columns: Columns) -> typer.Typer:
    """The group of commands of a collection, with `list`, `describe` and `delete`; columns: of `list`, after the id."""
    one = collection[:-1]
    app = typer.Typer(
        name=collection, help=f"List, describe, create, update and delete {collection}.", no_args_is_help=True
    )

    def list_(service: Service) -> None:
        project = service.the_project()
        with service.connect() as resources:
            found = [as_dict(each) for each in resources.listed(collection, project)]
        if service.as_json:
            print_json(found)
        else:
            headed = {one: short("name"), **columns}
            print_table(list(headed), [[column(each) for column in headed.values()] for each in found])

    def describe(service: Service, name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
        given, at, revision = name.partition("@") if collection == "schemas" else (name, "", "")
        full = service.full(given, collection) + at + revision
        with service.connect() as resources:
            print_resource(resources.get(collection, full), service)

    def delete(service: Service, names: Annotated[list[str], typer.Argument(metavar="NAME...")]) -> None:
        full = [service.full(each, collection) for each in names]
        deleted: list[str] = []
        with service.connect() as resources, printed_at_the_end(service.as_json, {"deleted": deleted}):
            for name in full:
                resources.delete(collection, name)
                deleted.append(name)
                if not service.as_json:
                    typer.echo(f"deleted {name}")

    list_.__doc__ = f"List the {collection} of a project."
    describe.__doc__ = f"Show a {one}: an id or a full name{', with `@REVISION`' if collection == 'schemas' else ''}."
    delete.__doc__ = f"Delete {collection}."
    command(app, "list")(list_)
    command(app, "describe")(describe)
    command(app, "delete")(delete)
    return app


def print_resource(resource: Any, service: Service) -> None:
    """Print a resource as the service returned it."""
    fields = as_dict(resource)
    (print_json if service.as_json else print_fields)(fields)


def paths_of(fields: Mapping[str, Any], **cleared: bool) -> set[str]:
    """The paths of an update: fields that flags set, and those that a `--clear-...` flag empties; never both."""
    for name in (each for each, is_cleared in cleared.items() if is_cleared and each in fields):
        exit_with(f"`--clear-{name.replace('_', '-')}` and a flag that sets the same exclude each other.", 2)
    return {*fields, *(name for name, is_cleared in cleared.items() if is_cleared)}


def labels_after(
    labels: Mapping[str, str], update: Mapping[str, str], remove: list[str] | None, clear: bool
) -> dict[str, str]:
    """The labels of a resource after `--update-labels`, `--remove-labels` and `--clear-labels`."""
    kept = {} if clear else dict(labels)
    dropped = {each for text in remove or () for each in text.split(",")}
    return {key: value for key, value in (kept | dict(update)).items() if key not in dropped}
