"""The staged answers of the schema service. The first one counts. A missing revision counts as long as `batch` says."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from pubsub_spark.codec.json import JsonSchema
from pubsub_spark.codec.registry import SchemaRevision, TopicSchema
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.schemas import Fetch, StagedSchemas, stage_reader
from tests.unit.read.service import SUBSCRIPTION
from tests.unit.read.store import WatchedStore

NAME = "projects/p/schemas/s@aaaaaaaa"
REVISION = SchemaRevision("projects/p/schemas/s", "aaaaaaaa", "AVRO", "{}")


@pytest.fixture
def new_process(tmp_path: Path) -> Callable[[], Staging]:
    """Make the staging area as another process sees it, which remembers no answer."""
    stream = uuid.uuid4().hex
    return lambda: Staging(WatchedStore(str(tmp_path), lambda *_: None), SUBSCRIPTION, stream)


@pytest.fixture
def staging(new_process: Callable[[], Staging]) -> Staging:
    return new_process()


def found(name: str) -> SchemaRevision:
    assert name == NAME
    return REVISION


def missing(name: str) -> SchemaRevision:
    raise LookupError(f"`{name}` does not exist")


def unasked(name: str) -> SchemaRevision:
    raise AssertionError(f"`{name}` was asked for")


def is_found(staging: Staging, batch: int, fetch: Fetch) -> bool:
    """Return whether a task of a batch finds the revision."""
    try:
        return StagedSchemas(staging, batch).fetcher(fetch)(NAME) == REVISION
    except LookupError as error:
        assert error.args == (f"`{NAME}` does not exist",)  # noqa: PT017 (in the same words at each evaluation)
        return False


@pytest.mark.parametrize("schema", [TopicSchema("JSON", REVISION), JsonSchema("a INT")])
def test_reader_schema_is_read_as_it_was_staged(staging: Staging, schema: TopicSchema | JsonSchema):
    """A replay decodes with the schema that its batch names, whatever the current one is."""
    name = stage_reader(staging, schema)

    assert name == stage_reader(staging, schema)
    assert schema == StagedSchemas(staging, 1, name).reader(JsonSchema("b INT"))


def test_reader_schema_of_the_run_itself_is_not_read(staging: Staging):
    """Most replays name the schema of the current run."""
    schema = JsonSchema("a INT")
    name = stage_reader(staging, schema)
    staging.delete("schemas/")

    assert schema == StagedSchemas(staging, 1, name).reader(schema)
    assert schema == StagedSchemas(staging, 1).reader(schema)


def test_revision_that_was_found_is_never_asked_for_again(staging: Staging, new_process: Callable[[], Staging]):
    """Another process, an earlier and a later batch: all read the staged answer."""
    assert is_found(staging, 5, found)
    for batch in (5, 1, 1000):
        staging = new_process()
        assert is_found(staging, batch, unasked)


def test_process_reads_an_answer_once(staging: Staging):
    """The next tasks of a process ask neither the service nor the staging area."""
    assert is_found(staging, 1, found)
    staging.delete("schemas/")
    assert is_found(staging, 2, unasked)


def test_missing_revision_is_missing_for_its_batch_alone(staging: Staging, new_process: Callable[[], Staging]):
    """The service shows a revision late: its first batch stays malformed, the next one has it."""
    assert not is_found(staging, 5, missing)
    staging = new_process()
    assert is_found(staging, 6, found)
    staging = new_process()
    assert not is_found(staging, 5, unasked)
    assert is_found(staging, 6, unasked)


def test_missing_revision_is_asked_for_ever_less_often(staging: Staging, new_process: Callable[[], Staging]):
    """A thousand batches name a revision that does not exist: ten files, and ten calls."""
    asked = []

    def fetch(name: str) -> SchemaRevision:
        asked.append(name)
        return missing(name)

    for batch in range(1, 1001):
        staging = new_process()
        assert not is_found(staging, batch, fetch)
    assert 10 == len(asked)
    assert 10 == staging.delete("schemas/")


@pytest.mark.parametrize("first", [found, missing])
def test_first_answer_counts_for_both_of_two_tasks(staging: Staging, first: Fetch, new_process: Callable[[], Staging]):
    """A revision appears or is deleted between the calls of two tasks: both use the answer that was staged first."""
    second = missing if first is found else found

    def overtaken(name: str) -> SchemaRevision:
        assert is_found(new_process(), 1, first) == (first is found)
        return second(name)

    assert is_found(staging, 1, overtaken) == (first is found)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"null", b'{"revision": 1}'])
def test_damaged_answer_is_asked_for_again(
    staging: Staging,
    new_process: Callable[[], Staging],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
):
    """A power loss left an empty file: the next number has the answer."""
    assert is_found(staging, 1, found)
    staging = new_process()
    [file] = tmp_path.rglob("schemas/*")
    file.write_bytes(content)

    assert is_found(staging, 1, found)
    assert "is damaged. Another answer about its schema revision counts" in caplog.text
    staging = new_process()
    assert is_found(staging, 1, unasked)
