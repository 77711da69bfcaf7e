"""The commands that every collection of resources has: `list`, `describe`, `delete`, `create`, `update`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from ..names import Collection
from .command import Service, command, exit_with, names_of, pairs, seconds
from .help import App
from .output import as_dict, print_fields, print_json, print_table, printed_at_the_end

ENCODINGS = {"json": "JSON", "binary": "BINARY"}  # as gcloud writes them -> as the API does

Labels = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Labels.")]
Retention = Annotated[
    float | None,
    typer.Option(
        "--message-retention-duration",
        parser=seconds,
        metavar="DURATION",
        help="Keep messages for this time (10m to 31d).",
    ),
]
# Parameters of `update` and their types: `update_labels` is the flag `--update-labels`.
LABEL_FLAGS: Mapping[str, Any] = {
    "update_labels": Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Labels to set.")],
    "remove_labels": Annotated[list[str] | None, typer.Option(metavar="KEY,...", help="Labels to remove.")],
    "clear_labels": Annotated[bool | None, typer.Option("--clear-labels", help="Remove all labels.")],
}

Columns = Mapping[str, Callable[[dict[str, Any]], str]]


def field(name: str) -> Callable[[dict[str, Any]], str]:
    """Return a function from a resource's JSON to a field of it, `-` if it is not set."""
    return lambda resource: str(resource.get(name, "-"))


def short(name: str) -> Callable[[dict[str, Any]], str]:
    """Return a function from a resource's JSON to the last part of a name in it, `-` if it is not set."""
    return lambda resource: str(resource.get(name, "-")).rpartition("/")[2]


def group(collection: Collection, columns: Columns) -> App:
    """Return the group of commands of a collection, with `list`, `describe` and `delete`.

    columns: of `list`, after the id.
    """
    one = collection[:-1]
    app = App(name=collection, help=f"List, describe, create, update and delete {collection}.")

    def list_(
        service: Service,
        limit: Annotated[int | None, typer.Option(min=1, help="At most this many.", show_default="all")] = None,
    ) -> None:
        project = service.the_project()
        with service.connect() as admin:
            rows = [as_dict(resource) for resource in admin.listed(collection, project, limit)]
        if service.as_json:
            print_json(rows)
        else:
            headed = {one: short("name"), **columns}
            print_table(list(headed), [[column(row) for column in headed.values()] for row in rows])

    def describe(service: Service, name: str) -> None:
        full = service.schema_or_revision(name) if collection == "schemas" else service.full(name, collection)
        with service.connect() as admin:
            print_resource(admin.get(collection, full), service)

    def delete(service: Service, names: list[str]) -> None:
        full = [service.full(name, collection) for name in names]
        deleted: list[str] = []
        with service.connect() as admin, printed_at_the_end(service.as_json, {"deleted": deleted}):
            for name in full:
                admin.delete(collection, name)
                deleted.append(name)
                if not service.as_json:
                    typer.echo(f"deleted {name}")

    describe.__annotations__["name"] = Annotated[str, typer.Argument(**names_of(collection))]
    delete.__annotations__["names"] = Annotated[list[str], typer.Argument(**names_of(collection))]
    list_.__doc__ = f"List the {collection} of a project."
    describe.__doc__ = f"Show a {one}: an id or a full name{', with `@REVISION`' if collection == 'schemas' else ''}."
    delete.__doc__ = f"Delete {collection}."
    command(app, "list")(list_)
    command(app, "describe")(describe)
    command(app, "delete")(delete)
    return app


def print_resource(resource: Any, service: Service) -> None:
    fields = as_dict(resource)
    (print_json if service.as_json else print_fields)(fields)


def create_each(service: Service, collection: Collection, wanted: Any, names: Sequence[str]) -> None:
    """Create a resource of each name, with the settings `wanted`, and print it. In JSON several are an array."""
    full = [service.full(name, collection) for name in names]
    created: list[dict[str, Any]] = []
    as_array = service.as_json and len(full) > 1
    with service.connect() as admin, printed_at_the_end(as_array, created):
        for name in full:
            resource = admin.create(collection, type(wanted)(wanted, name=name), name)
            created.append(as_dict(resource))
            if not as_array:
                print_resource(resource, service)


def update_resource(
    service: Service,
    collection: Collection,
    message: type[Any],
    name: str,
    fields: Mapping[str, Any],
    labels: Mapping[str, Any],
    **cleared: bool,
) -> None:
    """Change a resource and print it. End the command if no flag names anything to change.

    message: the resource's type. fields: those that flags set. labels: values of `LABEL_FLAGS`. cleared: fields, and
    whether a `--clear-...` flag empties them.
    """
    full, fields, paths = service.full(name, collection), dict(fields), _paths(fields, cleared)
    with service.connect() as admin:
        if any(labels.values()):
            before = {} if labels["clear_labels"] else admin.get(collection, full).labels
            fields["labels"] = _labels_after(before, pairs(labels["update_labels"]), labels["remove_labels"])
            paths.add("labels")
        if not paths:
            exit_with(f"Nothing to change: `pubsub-spark {collection} update --help` lists the settings.", 2)
        print_resource(admin.update(collection, message(name=full, **fields), paths), service)


def _paths(fields: Mapping[str, Any], cleared: Mapping[str, bool]) -> set[str]:
    emptied = {name for name, is_cleared in cleared.items() if is_cleared}
    for name in sorted(emptied & fields.keys()):
        exit_with(f"`--clear-{name.replace('_', '-')}` and a flag that sets the same exclude each other.", 2)
    return {*fields, *emptied}


def _labels_after(labels: Mapping[str, str], update: Mapping[str, str], remove: list[str] | None) -> dict[str, str]:
    dropped = {key for text in remove or () for key in text.split(",")}
    return {key: value for key, value in {**labels, **update}.items() if key not in dropped}
