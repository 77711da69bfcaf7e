"""Seed files: the schemas, topics and subscriptions that an emulator begins with, in YAML.

    project: my-project                  # of every short id below
    schemas:
      flight: {type: AVRO, definition: '{"type": "record", ...}'}  # or definitionFile: flight.avsc, next to this file
    topics:
      flights: {schemaSettings: {schema: flight, encoding: BINARY}}
      dead: {}
    subscriptions:
      flights-sub: {topic: flights, ackDeadlineSeconds: 60, deadLetterPolicy: {deadLetterTopic: dead}}

Every field of a Topic or a Subscription is written as in the JSON API (`messageRetentionDuration: 600s`), or as in the
protos (`message_retention_duration: 600s`). Names are short ids of the project, or full. The first error ends the
loading. Resources before it have been created.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from pubsub_spark import names
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc.registry import Registry
from pubsub_spark.schema.schema_types import SCHEMA_TYPE_NUMBERS

_SECTIONS = ("project", "schemas", "topics", "subscriptions")
_SCHEMA_FIELDS = ("type", "definition", "definitionFile")
_MAX_VALUES = 100_000  # of a file: an alias repeats its target, so a few lines of aliases can be billions


class SeedFileError(ValueError):
    """A seed file that cannot be read, or a resource in it that cannot be created. The message names the position."""


def load(path: Path, services: Registry) -> None:
    """SeedFileError names the problem in the file."""
    import yaml

    try:
        text = path.read_text()
        if (root := yaml.compose(text, yaml.SafeLoader)) is not None:
            _check(path, root)
        document = yaml.safe_load(text)
    except SeedFileError:
        raise
    except OSError as problem:
        raise SeedFileError(f"`{path}` cannot be read: {problem.strerror}. Pass the path of a YAML file.") from None
    # An invalid date, bytes that are not text, a thousand brackets.
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise SeedFileError(f"`{path}` is not YAML: {' '.join(str(problem).split())}.") from None
    seeds = _SeedFile(path, {} if document is None else document, services)
    creates = (seeds.create_schema, seeds.create_topic, seeds.create_subscription)
    for section, create in zip(_SECTIONS[1:], creates, strict=True):
        for name, fields in seeds.section(section).items():
            seeds.create(section, name, fields, create)


def _check(path: Path, root: Any) -> None:
    """Refuse a file that repeats too much by aliases, or a key twice in one mapping (PyYAML takes the last)."""
    for count, node in enumerate(_nodes(root), 1):
        if count > _MAX_VALUES:
            raise SeedFileError(f"`{path}` has more than {_MAX_VALUES:,} values, counting the repeats of its aliases.")
        if node.id == "mapping":
            keys = Counter(key.value for key, _ in node.value if key.id == "scalar")
            if doubled := [key for key, times in keys.items() if times > 1]:
                raise SeedFileError(f"`{doubled[0]}` stands twice in one mapping of `{path}`. Leave one of them out.")


def _nodes(node: Any) -> Iterator[Any]:
    """The nodes of an alias are repeated for each use."""
    yield node
    if node.id == "mapping":
        for _, value in node.value:
            yield from _nodes(value)
    elif node.id == "sequence":
        for value in node.value:
            yield from _nodes(value)


class _SeedFile:
    def __init__(self, path: Path, document: Any, services: Registry) -> None:
        self._services = services
        self._path = path
        self._document = document
        if not isinstance(document, dict) or not set(document) <= set(_SECTIONS):
            unknown = sorted(map(str, set(document) - set(_SECTIONS))) if isinstance(document, dict) else []
            content = f"`{unknown[0]}`" if unknown else "something else"
            raise SeedFileError(f"`{path}` must be a mapping of {', '.join(_SECTIONS)}, not {content}.")
        self._project = document.get("project") or None
        if not isinstance(self._project, str | None):
            raise SeedFileError(f"`project` in `{path}` must be a text.")

    def section(self, name: str) -> dict[str, Any]:
        section = self._document.get(name) or {}
        if not isinstance(section, dict):
            raise SeedFileError(f"`{name}` in `{self._path}` must be a mapping of names.")
        return {str(key): value for key, value in section.items()}

    def create(self, section: str, name: str, fields: Any, create: Callable[[str, dict[str, Any]], None]) -> None:
        position = f"`{section}.{name}` in `{self._path}`"
        if not isinstance(fields or {}, Mapping):
            raise SeedFileError(f"{position} must be a mapping of fields.")
        try:
            create(name, dict(fields or {}))
        except OSError as problem:
            raise SeedFileError(f"{position}: `{problem.filename}` cannot be read: {problem.strerror}.") from None
        except (RpcError, ValueError) as problem:
            raise SeedFileError(f"{position}: {problem}") from None

    def _full(self, name: str, collection: names.Collection) -> str:
        if "/" not in name and self._project is None:
            raise ValueError(f"`{name}` needs `project` at the top, or write `projects/PROJECT/{collection}/{name}`.")
        return names.full(name, self._project, collection)

    def create_schema(self, name: str, fields: dict[str, Any]) -> None:
        if unknown := sorted(map(str, set(fields) - set(_SCHEMA_FIELDS))):
            raise ValueError(f"`{unknown[0]}` is not one of {', '.join(_SCHEMA_FIELDS)}.")
        if str(fields.get("type")) not in SCHEMA_TYPE_NUMBERS:
            raise ValueError(f"`type` must be one of {', '.join(SCHEMA_TYPE_NUMBERS)}.")
        if "definitionFile" in fields:
            fields["definition"] = (self._path.parent / str(fields["definitionFile"])).read_text()
        schema = names.parse(self._full(name, "schemas"), "schemas")
        self._services.schemas.create_schema(
            protos.CreateSchemaRequest(
                parent=f"projects/{schema.project}",
                schema_id=schema.id,
                schema=protos.Schema(
                    type_=SCHEMA_TYPE_NUMBERS[fields["type"]], definition=str(fields.get("definition", ""))
                ),
            )
        )

    def create_topic(self, name: str, fields: dict[str, Any]) -> None:
        topic = _filled(protos.Topic(name=self._full(name, "topics")), fields)
        if topic.schema_settings.schema:
            topic.schema_settings.schema = self._full(topic.schema_settings.schema, "schemas")
        self._services.publisher.create_topic(topic)

    def create_subscription(self, name: str, fields: dict[str, Any]) -> None:
        full_name = self._full(name, "subscriptions")
        subscription = _filled(protos.Subscription(name=full_name), fields)
        if not subscription.topic:
            raise ValueError("`topic` is required.")
        subscription.topic = self._full(subscription.topic, "topics")
        policy = subscription.dead_letter_policy
        if policy.dead_letter_topic:
            policy.dead_letter_topic = self._full(policy.dead_letter_topic, "topics")
        self._services.subscriber.create_subscription(subscription)


def _filled(resource: Any, fields: dict[str, Any]) -> Any:
    if "name" in fields:
        raise ValueError("`name` is the key before the fields. Leave it out.")
    try:
        return json_format.ParseDict(fields, resource)
    except json_format.ParseError as problem:
        raise ValueError(protos.complaint(problem)) from None
