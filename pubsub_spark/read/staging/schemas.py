"""The schemas that batches were decoded with, in the staging area: a replay decodes as the first evaluation did.

    schemas/<digest>            a reader schema. The footer of part 0 names it (`reader`)
    schemas/<digest>-<number>   the answers of the schema service about a revision that messages name, numbered from 0

A task asks the service about a revision once, stages the answer, and only then uses it. All files are create-only, so
the first answer counts: a revision that was found counts for the whole stream, also after it was deleted. A revision
that does not exist counts as missing for this batch, the next missing answer for two batches, then for four. So every
evaluation of a batch gets one answer, and n batches that name a missing revision leave log2(n) files.

A run that starts without uncommitted batches deletes the folder.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from ...codec.json import JsonSchema
from ...codec.registry import SchemaRevision, TopicSchema
from .area import SCHEMAS, Staging

ReaderSchema: TypeAlias = TopicSchema | JsonSchema
Fetch = Callable[[str], SchemaRevision]

_MAX_CACHED_ANSWERS = 256
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Missing:
    """An answer that a revision does not exist. until: the last batch that it counts for."""

    reason: str
    until: int


Answer: TypeAlias = SchemaRevision | _Missing
cached_answers: dict[tuple[Staging, str], Answer] = {}  # by this process. They never change


def stage_reader(staging: Staging, schema: ReaderSchema) -> str:
    """Stage the reader schema of a run, once per stream. Returns its name for the footers of part 0."""
    content = _serialized(schema)
    name = _digest(content)
    staging.create(f"{SCHEMAS}/{name}", [content])
    return name


@dataclass(frozen=True)
class StagedSchemas:
    """The schemas of one batch. reader_name: of the schema that decodes it, or None for the caller's."""

    staging: Staging
    batch: int
    reader_name: str | None = None

    def reader(self, schema: ReaderSchema) -> ReaderSchema:
        """Return the schema to decode this batch with: `schema`, the run's, unless the batch names another one.

        If the file of that is gone, the run's is returned with a WARNING.
        """
        name = self.reader_name
        if name is None or name == _digest(_serialized(schema)):
            return schema
        content = bytes(self.staging.read(f"{SCHEMAS}/{name}") or b"")
        if _digest(content) != name:
            _log.warning(
                "the schema that batch %d of `%s` was decoded with is gone from `%s`. The current one decodes its "
                "replay, so rows may differ. Exclude `stagingLocation` from cleanup jobs and lifecycle rules",
                self.batch,
                self.staging.subscription,
                self.staging.location,
            )
            return schema
        fields = json.loads(content)
        if "text" in fields:
            return JsonSchema(**fields)
        return TopicSchema(fields["encoding"], SchemaRevision(**fields["reader"]))

    def fetcher(self, fetch: Fetch) -> Fetch:
        """Return a function from a name to its schema revision, like `fetch`, with one answer for all evaluations."""

        def staged(name: str) -> SchemaRevision:
            for number in itertools.count():
                path = f"{SCHEMAS}/{_digest(name.encode())}-{number}"
                answer = self._stored(path) or self._ask(path, name, number, fetch)
                if isinstance(answer, SchemaRevision):
                    return answer
                if self.batch <= answer.until:
                    raise LookupError(answer.reason)
            raise AssertionError("count() does not end")

        return staged

    def _ask(self, path: str, name: str, number: int, fetch: Fetch) -> Answer:
        """Ask the service and stage its answer. Returns the staged one, which may be another task's."""
        answer: Answer
        try:
            answer = fetch(name)
            fields: dict[str, Any] = {"revision": asdict(answer)}
        except LookupError as error:
            answer = _Missing(str(error), self.batch + 2**number - 1)
            fields = asdict(answer)
        self.staging.create(path, [json.dumps(fields).encode()])
        return self._stored(path) or answer

    def _stored(self, path: str) -> Answer | None:
        """Return a staged answer, or None. A damaged file answers for no batch."""
        key = self.staging, path
        if key not in cached_answers and (content := self.staging.read(path)) is not None:
            if len(cached_answers) >= _MAX_CACHED_ANSWERS:
                cached_answers.clear()
            try:
                fields = json.loads(bytes(content))
                answer = SchemaRevision(**fields["revision"]) if "revision" in fields else _Missing(**fields)
                cached_answers[key] = answer
            except (ValueError, TypeError):  # cut short by a power loss
                _log.warning(
                    "`%s/%s` is damaged. Another answer about its schema revision counts", self.staging.location, path
                )
                cached_answers[key] = _Missing("", 0)
        return cached_answers.get(key)


def _serialized(schema: ReaderSchema) -> bytes:
    return json.dumps(asdict(schema), sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
