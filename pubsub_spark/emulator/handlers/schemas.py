"""The handlers of SchemaService: schemas, their revisions, and the validation of messages."""

from __future__ import annotations

import secrets
from copy import deepcopy
from typing import Any

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import (
    RpcError,
    already_exists,
    invalid,
    invalid_argument,
    not_found,
)
from pubsub_spark.emulator.resources import limits, pagination
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.state.schema_store import Revision, Schema
from pubsub_spark.schema import compiled_protobuf, schema_types
from pubsub_spark.schema import definition as codec

BASIC, FULL = 1, 2  # SchemaView
_NEWEST = 10**12 - 1  # so that a later revision comes earlier in the order of texts


class SchemaService:
    def __init__(self, engine: Engine, *, allow_well_known_imports: bool = False) -> None:
        self._engine = engine
        self._allow_well_known_imports = allow_well_known_imports
        self._schemas = engine.state.schemas

    def create_schema(self, request: Any) -> Any:
        limits.check_project(request.parent)
        schema_id = request.schema_id or f"schema-{secrets.token_hex(8)}"
        name = limits.check_name(f"{request.parent}/schemas/{schema_id}", "schemas")
        definition = self._parse(request.schema)
        with self._engine.open() as (_, now):
            if self._schemas.get(name):
                raise already_exists(name)
            schema = self._schemas.create(name, definition, now)
            return _resource(schema, schema.latest, FULL)

    def get_schema(self, request: Any) -> Any:
        with self._engine.open():
            schema, revision = self._revision(request.name)
            return _resource(schema, revision, request.view or FULL)

    def list_schemas(self, request: Any) -> Any:
        limits.check_project(request.parent)
        with self._engine.open():
            mine = (name for name in self._schemas if name.startswith(f"{request.parent}/"))
            listed, token = pagination.page(mine, request)
            schemas = [schema for schema in map(self._schemas.get, listed) if schema]
            resources = [_resource(schema, schema.latest, request.view or BASIC) for schema in schemas]
        return protos.ListSchemasResponse(schemas=resources, next_page_token=token)

    def list_schema_revisions(self, request: Any) -> Any:
        with self._engine.open():
            schema = self._schema(request.name)
            revisions = {f"{_NEWEST - revision.number:012d}": revision for revision in schema.revisions}
            listed, token = pagination.page(revisions, request)
            resources = [_resource(schema, revisions[key], request.view or BASIC) for key in listed]
        return protos.ListSchemaRevisionsResponse(schemas=resources, next_page_token=token)

    def commit_schema(self, request: Any) -> Any:
        definition = self._parse(request.schema)
        with self._engine.open() as (_, now):
            schema = self._schema(request.name)
            _check_room(schema)
            try:
                schema_types.check_compatible(schema.latest.definition, definition)
            except codec.IncompatibleSchema as problem:
                raise invalid(f"Schema revision is not compatible with the previous revision: {problem}") from None
            return _resource(schema, self._schemas.commit(schema, definition, now), FULL)

    def rollback_schema(self, request: Any) -> Any:
        if not request.revision_id:
            raise invalid(f"The revision to roll back to must be given (name={request.name}).")
        with self._engine.open() as (_, now):
            schema, revision = self._revision(f"{request.name.partition('@')[0]}@{request.revision_id}")
            _check_room(schema)
            return _resource(schema, self._schemas.commit(schema, revision.definition, now), FULL)

    def delete_schema_revision(self, request: Any) -> Any:
        name, _, revision_id = request.name.partition("@")
        revision_id = revision_id or request.revision_id
        if not revision_id:
            raise invalid(f"The revision to delete must be part of the name (name={request.name}).")
        with self._engine.open():
            schema, revision = self._revision(f"{name}@{revision_id}")
            if len(schema.revisions) == 1:
                raise invalid("Cannot delete last revision. Please use DeleteSchema.")
            schema = self._schemas.delete_revision(schema, revision)
            return _resource(schema, schema.latest, FULL)

    def delete_schema(self, request: Any) -> Any:
        """Delete a schema. Topics that use it name `_deleted-schema_` and accept no more messages."""
        with self._engine.open() as (broker, _):
            name = self._schema(request.name).name
            self._schemas.delete(name)
            for topic in broker.topics.values():
                if topic.resource.schema_settings.schema == name:
                    resource = deepcopy(topic.resource)
                    resource.schema_settings.schema = "_deleted-schema_"
                    broker.replace(topic, resource)
        return protos.Empty()

    def validate_schema(self, request: Any) -> Any:
        limits.check_project(request.parent)
        self._parse(request.schema)
        return protos.ValidateSchemaResponse()

    def validate_message(self, request: Any) -> Any:
        limits.check_project(request.parent)
        encoding = schema_types.ENCODINGS_BY_NUMBER.get(request.encoding)
        if encoding is None:
            raise invalid_argument("encoding")
        if request.WhichOneof("schema_spec") == "name":
            with self._engine.open():
                definition = self._revision(request.name)[1].definition
        else:
            definition = self._parse(request.schema)
        try:
            definition.validate(request.message, encoding)
        except codec.InvalidMessage as problem:
            raise limits.failed_validation(definition.type, encoding, str(problem)) from None
        return protos.ValidateMessageResponse()

    def _parse(self, schema: Any) -> codec.Definition:
        """Return the definition in a Schema resource. Imports are refused, as the service documents, unless allowed."""
        try:
            definition = _definition(schema)
        except codec.ForbiddenImport as problem:
            raise (_invalid(problem) if self._allow_well_known_imports else _imports(problem.name)) from None
        except codec.InvalidSchema as problem:
            raise _invalid(problem) from None
        if definition.imports and not self._allow_well_known_imports:
            raise _imports(definition.imports[0])
        return definition

    def _schema(self, name: str) -> Schema:
        """Calls on a whole schema refuse the name of one revision."""
        schema = self._schemas.get(limits.check_name(name, "schemas"))
        if schema is None:
            raise not_found(name)
        return schema

    def _revision(self, name: str) -> tuple[Schema, Revision]:
        schema_name, at, revision_id = name.partition("@")
        schema = self._schema(schema_name)
        revision = schema.find(revision_id) if at else schema.latest
        if revision is None:
            raise not_found(name)
        return schema, revision


def _definition(schema: Any) -> codec.Definition:
    kind = schema_types.SCHEMA_TYPES_BY_NUMBER.get(schema.type_)
    if kind is None:
        raise invalid("Schema type must be specified: AVRO or PROTOCOL_BUFFER.")
    text = compiled_protobuf.definition_of(schema)
    is_compiled = text != schema.definition
    if is_compiled and (schema.definition or kind != "PROTOCOL_BUFFER"):
        wrong = "and no `definition`" if schema.definition else "whose type is PROTOCOL_BUFFER"
        raise invalid(f"`compiled_proto_schema` is for a schema {wrong}.")
    size = len(schema.compiled_proto_schema.compiled_bytes if is_compiled else text.encode())
    limits.check_at_most("schema_definition_size", size, limits.MAX_SCHEMA_BYTES)
    return schema_types.parse(kind, text)


def _invalid(problem: codec.InvalidSchema) -> RpcError:
    return invalid(f"Invalid schema definition: {problem}")


def _imports(name: str) -> RpcError:
    return invalid(
        f"Invalid schema definition: The definition imports `{name}`, and Pub/Sub supports no imports. Write its types "
        "as nested messages, or let the emulator allow the well-known ones with `--allow-well-known-imports`."
    )


def _check_room(schema: Schema) -> None:
    if len(schema.revisions) >= limits.MAX_SCHEMA_REVISIONS:
        full = f"Schema `{schema.name}` has {limits.MAX_SCHEMA_REVISIONS} revisions, which is the maximum"
        raise invalid(f"{full}. Delete one before you add another.")


def _resource(schema: Schema, revision: Revision, view: int) -> Any:
    resource = protos.Schema(
        name=schema.name, type_=schema_types.SCHEMA_TYPE_NUMBERS[revision.definition.type], revision_id=revision.id
    )
    resource.revision_create_time.FromMilliseconds(int(revision.created * 1000))
    if view == FULL:
        if compiled := compiled_protobuf.of_text(revision.definition.text):
            resource.compiled_proto_schema.MergeFrom(protos.CompiledProtoSchema(**compiled._asdict()))
        else:
            resource.definition = revision.definition.text
    return resource
