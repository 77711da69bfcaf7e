"""Sets of ids: found whatever their digests share, and read from a file as they were written."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.errors import DamagedFile
from pubsub_spark.read.staging.ids import IdSet, deserialized, digests, is_in, merged, serialized
from tests.unit.read.service import ids


def test_digests_are_those_of_the_texts():
    """In the order of the array, also of a slice. A null has one of its own kind."""
    texts = pa.array(["x", "a", "é", "a"])

    assert digests(texts)[:, 1:3].tolist() == digests(texts.slice(1, 2)).tolist() == ids("a", "é").tolist()
    assert digests(pa.array(["", None], pa.string())).shape == (2, 2)
    assert digests(pa.array([], pa.string())).shape == (2, 0)


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=4), st.lists(st.integers(0, 9), max_size=12))
def test_ids_are_in_runs(runs: list[list[int]], wanted: list[int]):
    """Wherever they are, however often, and in the order that was asked for."""
    made = [IdSet(merged([ids(*map(str, run))])) for run in runs]
    every = {each for run in runs for each in run}

    assert [each in every for each in wanted] == is_in(ids(*map(str, wanted)), made).tolist()


def test_digests_that_are_half_the_same_are_not_the_same():
    """Both halves count, also where several have the same first one."""
    made = ids("a", "b", "c").copy()
    made[0] = 7
    wanted = made.copy()
    wanted[1, 2] += 1

    assert [True, True, False] == is_in(wanted, [IdSet(merged([made[:, :2]])), IdSet(made[:, :0])]).tolist()


def test_file_has_its_ids_sorted_and_its_metadata():
    """As Arrow, for readers of the staging area."""
    content, metadata = deserialized(serialized(merged([ids("b"), ids("a")]), topic="t", part=3, nothing=None))

    assert (merged([ids("a", "b")]).tolist(), {"topic": "t", "part": "3"}) == (content.tolist(), metadata)
    assert (2, 0) == deserialized(serialized(merged([])))[0].shape


def test_an_id_of_two_parts_is_merged_into_one():
    assert merged([ids("a", "b")]).tolist() == merged([ids("b", "a"), ids("a")]).tolist()


@pytest.mark.parametrize("damage", [lambda _: b"", lambda content: content[:100], lambda _: b"[1, 2]"])
def test_damaged_file_of_ids_is_named(damage):
    """Empty, truncated or not ours: the error names the file and the way out."""
    with pytest.raises(DamagedFile, match=r"`in-doubt/1-1` is damaged .* `pubsub-spark staging clean`"):
        deserialized(damage(serialized(merged([ids("a")]))), "in-doubt/1-1")


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("a", pa.int64())]),
        pa.schema([("first", pa.string()), ("second", pa.string())]),
        pa.schema([("first", pa.uint64()), ("second", pa.uint64())], {"topic": b"\xff"}),
    ],
)
def test_other_arrow_files_are_damaged(schema: pa.Schema):
    """A stream with other columns is no file of ids, nor one whose metadata is no text."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema):
        pass
    with pytest.raises(DamagedFile):
        deserialized(sink.getvalue(), "file")
