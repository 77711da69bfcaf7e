"""`pubsub-spark schemas`: list, describe, create, delete, revisions and their differences, validation.

Names and flags are gcloud's, except `diff`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .command import Service, choices, command, exit_with, names_of
from .output import as_dict, print_json, print_table
from .resources import ENCODINGS, field, group, print_resource

app = group("schemas", {"type": field("type"), "newest revision": field("revisionId")})

Type = Annotated[
    str, typer.Option("--type", **choices("avro", "protocol-buffer"), help="The language of the definition.")
]
Definition = Annotated[str | None, typer.Option(metavar="TEXT", help="The definition itself.")]
File = Annotated[
    Path | None, typer.Option("--definition-file", dir_okay=False, exists=True, help="A file with the definition.")
]

_TYPES = {"avro": "AVRO", "protocol-buffer": "PROTOCOL_BUFFER"}


def _type(text: str) -> str:
    kind = _TYPES.get(text.lower().replace("_", "-"))
    if kind is None:
        exit_with(f"`--type` must be `avro` or `protocol-buffer`, got `{text}`.", 2)
    return kind


def _definition(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        exit_with("Pass the definition with `--definition` or `--definition-file`.", 2)
    if text is not None:
        return text
    try:
        return Path(str(file)).read_text()
    except (OSError, UnicodeDecodeError) as error:
        exit_with(f"`{file}` cannot be read: {error}.")


@command(app, "create")
def create(
    service: Service,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    kind: Type,
    definition: Definition = None,
    file: File = None,
) -> None:
    """Create a schema."""
    from google.pubsub_v1 import types

    full = service.full(name, "schemas")
    schema = types.Schema(name=full, type_=_type(kind), definition=_definition(definition, file))
    request = {"parent": full.rpartition("/schemas/")[0], "schema": schema, "schema_id": full.rpartition("/")[2]}
    with service.connect() as admin:
        print_resource(admin.create("schemas", request, full), service)


@command(app, "commit", "update")
def commit(
    service: Service,
    name: Annotated[str, typer.Argument(**names_of("schemas"))],
    definition: Definition = None,
    file: File = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            **choices("avro", "protocol-buffer"),
            help="Its language, which cannot change.",
            show_default="as it is",
        ),
    ] = None,
) -> None:
    """Commit a new revision of a schema, which must be compatible with the newest. `update` is the same."""
    from google.pubsub_v1 import types

    full, text = service.full(name, "schemas"), _definition(definition, file)
    schema_type = None if kind is None else _type(kind)
    with service.connect() as admin:
        schema = types.Schema(name=full, type_=schema_type or admin.get("schemas", full).type_, definition=text)
        print_resource(admin.commit_schema(full, schema), service)


@command(app, "list-revisions")
def list_revisions(service: Service, name: Annotated[str, typer.Argument(**names_of("schemas"))]) -> None:
    """List the revisions of a schema, the newest first."""
    with service.connect() as admin:
        revisions = [as_dict(revision) for revision in admin.schema_revisions(service.full(name, "schemas"))]
    if service.as_json:
        print_json(revisions)
    else:
        rows = [[revision["revisionId"], revision.get("revisionCreateTime", "-")] for revision in revisions]
        print_table(["revision", "created"], rows)


@command(app, "rollback")
def rollback(
    service: Service,
    name: Annotated[str, typer.Argument(**names_of("schemas"))],
    revision: Annotated[str, typer.Option("--revision-id", metavar="ID", help="The revision to go back to.")],
) -> None:
    """Commit a new revision of a schema with the definition of an old one."""
    full = service.full(name, "schemas")
    with service.connect() as admin:
        print_resource(admin.roll_back_schema(full, revision), service)


@command(app, "delete-revision")
def delete_revision(
    service: Service, name: Annotated[str, typer.Argument(metavar="NAME@REVISION", show_default=False)]
) -> None:
    """Delete a revision of a schema. The last one that is left cannot be deleted: delete the schema."""
    if not name.partition("@")[2]:
        exit_with(f"`{name}` does not name a revision: write `{name.rstrip('@')}@REVISION`.", 2)
    full = service.schema_or_revision(name)
    with service.connect() as admin:
        admin.delete_schema_revision(full)
    if service.as_json:
        print_json({"deleted": [full]})
    else:
        typer.echo(f"deleted {full}")


@command(app, "validate-schema")
def validate_schema(service: Service, kind: Type, definition: Definition = None, file: File = None) -> None:
    """Check a definition, as `create` would, and create nothing."""
    from google.pubsub_v1 import types

    schema = types.Schema(type_=_type(kind), definition=_definition(definition, file))
    project = service.the_project()
    with service.connect() as admin:
        admin.validate_schema(project, schema)
    _print_valid(service, "Schema")


@command(app, "validate-message")
def validate_message(
    service: Service,
    encoding: Annotated[
        str, typer.Option("--message-encoding", **choices("json", "binary"), help="The encoding of the message.")
    ],
    message: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The message.", show_default="standard input")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--schema-name", **names_of("schemas"), help="A schema, instead of a definition.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--type", **choices("avro", "protocol-buffer"), help="The language of the definition.")
    ] = None,
    definition: Definition = None,
    file: File = None,
) -> None:
    """Check a message against a schema, or against a definition, and publish nothing."""
    from google.pubsub_v1 import types

    if encoding.lower() not in ENCODINGS:
        exit_with(f"`--message-encoding` must be `json` or `binary`, got `{encoding}`.", 2)
    if name is not None:
        if kind or definition is not None or file is not None:
            exit_with("`--schema-name` and a definition with its `--type` exclude each other.", 2)
        schema: types.Schema | str = service.full(name, "schemas")
        project = str(schema).split("/")[1]
    else:
        if kind is None:
            exit_with("Pass `--schema-name`, or a definition and its `--type`.", 2)
        schema = types.Schema(type_=_type(kind), definition=_definition(definition, file))
        project = service.the_project()
    payload = sys.stdin.buffer.read() if message is None else message.encode()
    with service.connect() as admin:
        admin.validate_message(project, schema, payload, ENCODINGS[encoding.lower()])
    _print_valid(service, "Message")


def _print_valid(service: Service, word: str) -> None:
    if service.as_json:
        print_json({"valid": True})
    else:
        typer.echo(f"{word} is valid.")


@command(app, "diff")
def diff(
    service: Service,
    name: Annotated[str, typer.Argument(**names_of("schemas"))],
    old: Annotated[str | None, typer.Argument(metavar="OLD", show_default="the one before NEW")] = None,
    new: Annotated[str | None, typer.Argument(metavar="NEW", show_default="the newest")] = None,
) -> None:
    """Show what changed between two revisions of a schema, line by line, and whether NEW may follow OLD."""
    import difflib

    from ..schema import schema_types
    from ..schema.compiled_protobuf import definition_of
    from ..schema.definition import IncompatibleSchema

    full = service.full(name, "schemas")
    with service.connect() as admin:
        revisions = {revision.revision_id: revision for revision in admin.schema_revisions(full)}  # the newest first
    ids = list(revisions)
    for wanted in (old, new):
        if wanted is not None and wanted not in revisions:
            exit_with(f"Schema `{full}` has no revision `{wanted}`. It has {', '.join(f'`{one}`' for one in ids)}.")
    newer = new or ids[0]
    if old is None and newer == ids[-1]:
        exit_with(f"Revision `{newer}` of schema `{full}` is the first that there is, so nothing is before it.")
    older = old or ids[ids.index(newer) + 1]
    before, after = definition_of(revisions[older]), definition_of(revisions[newer])
    kind = schema_types.SCHEMA_TYPES_BY_NUMBER[revisions[newer].type_]
    try:
        schema_types.check_compatible(schema_types.parse(kind, before), schema_types.parse(kind, after))
        verdict = "compatible"
    except IncompatibleSchema as error:
        verdict = f"not compatible: {error}"
    lines = list(difflib.unified_diff(_lines(kind, before), _lines(kind, after), older, newer, lineterm=""))
    if service.as_json:
        print_json({"old": older, "new": newer, "diff": lines, "verdict": verdict})
        return
    colours = {"+": typer.colors.GREEN, "-": typer.colors.RED, "@": typer.colors.CYAN}
    for line in lines:
        typer.secho(line, fg=colours.get(line[0]))
    typer.echo(f"{newer} after {older}: {verdict}")


def _lines(kind: str, definition: str) -> list[str]:
    import json

    from ..schema.compiled_protobuf import readable

    text = json.dumps(json.loads(definition), indent=2) if kind == "AVRO" else readable(definition)
    return text.splitlines()
