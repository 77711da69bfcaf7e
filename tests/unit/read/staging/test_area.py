"""The staging area: written once, read as it was written, on local files and on an object store."""

import os
import struct
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.codec.envelope import received
from pubsub_spark.errors import DamagedFile, MissingFile, StagingError
from pubsub_spark.read.pull.lease import LEASE_SECONDS
from pubsub_spark.read.staging.area import Staging, part_path
from pubsub_spark.read.staging.ids import merged
from pubsub_spark.read.staging.part import FOOTER_READ_BYTES, PartBuilder, footer, messages
from pubsub_spark.read.staging.store import Store, open_store
from tests.unit.read.service import SUBSCRIPTION, ids, part, response


@pytest.fixture
def staging(store: Store) -> Staging:
    """Return the area of one stream, in a folder and in object stores."""
    return Staging(store, SUBSCRIPTION, uuid.uuid4().hex)


def payloads(content: Any) -> list[str]:
    return [data.decode() for batch in messages(content) for data in batch.column("data").to_pylist()]


def test_part_is_read_as_it_was_written(staging: Staging):
    """Messages, receipts and footer of a part are read back, each by itself."""
    assert staging.create("1/part-0", part("ab", ended="full", dropped="xyz"))
    [(index, length)] = staging.parts(1).items()

    assert ["a", "b"] == payloads(staging.read("1/part-0"))
    receipts = [ack_id for batch in staging.receipts(1, index, length) for ack_id in batch.column("ack_id").to_pylist()]
    assert ["ack-a", "ack-b", "ack-x", "ack-y", "ack-z"] == receipts
    found = staging.footer(1, index, length)
    assert (2, 3, "full", 1000.0) == (found.rows, found.dropped, found.ended, found.oldest)
    assert found == footer(staging.read("1/part-0"))


def test_receipts_are_read_in_sections(staging: Staging):
    """The driver never has the receipts of a large part at once: a section of them is one read."""
    builder = PartBuilder(None, section_bytes=500)
    for text in "abc":
        got = received([response([text])])
        builder.add(got.messages, got.receipts)
    assert staging.create("1/part-0", builder.buffers("idle"))
    [(index, length)] = staging.parts(1).items()

    assert len(staging.footer(1, index, length).receipts_lengths) > 1
    ack_ids = [each for batch in staging.receipts(1, index, length) for each in batch.column("ack_id").to_pylist()]
    assert ["ack-a", "ack-b", "ack-c"] == ack_ids


@pytest.mark.parametrize("store", ["files", "S3"], indirect=True)
def test_only_object_stores_get_compressed_parts(staging: Staging, request: pytest.FixtureRequest):
    """A local file is deleted before it reaches the disk. A part that crosses a network is worth compressing."""
    builder = staging.part_builder()
    got = received([response(["same" * 1000] * 10)])
    builder.add(got.messages, got.receipts)
    size = sum(map(len, builder.buffers("idle")))

    assert (size < 40_000) == ("S3" in request.node.name)


def test_empty_part_is_a_part(staging: Staging):
    """A pull without messages is also staged, so that its retry has none either."""
    assert staging.create("1/part-0", part(""))

    assert [] == payloads(staging.read("1/part-0"))
    assert (0, None) == (footer(staging.read("1/part-0")).rows, footer(staging.read("1/part-0")).oldest)


def test_missing_part_is_none(staging: Staging):
    """A part that does not exist is None, not an error and not an empty part."""
    assert staging.read("1/part-1") is None
    assert {} == staging.parts(1)


def test_manifest_does_not_change(staging: Staging):
    """A part that a dead task stages after the manifest is neither replayed nor acknowledged."""
    staging.create("1/part-0", part("a"))
    staging.create("1/part-2", part("b"))
    assert [0, 2] == staging.write_manifest(1)

    staging.create("1/part-1", part("zombie"))

    assert [0, 2] == staging.write_manifest(1)
    assert [0, 2] == list(staging.parts(1))


def test_manifest_of_an_empty_batch(staging: Staging):
    """A batch that was planned and never staged is replayed empty, and stays so."""
    assert [] == staging.write_manifest(1)
    staging.create("1/part-0", part("zombie"))

    assert [] == staging.write_manifest(1)
    assert {} == staging.parts(1)


def test_acknowledged_batch_is_deleted_and_its_number_kept(staging: Staging):
    """After the ack nothing of the batch is left but its number."""
    staging.create("1/part-0", part("a"))
    staging.create("2/part-0", part("b"))
    assert 0 == staging.last_acknowledged()
    staging.delete_acknowledged([1], 1)

    assert 1 == staging.last_acknowledged()
    assert [2] == staging.batches()
    assert {} == staging.parts(1)


def test_number_that_a_run_writes_after_its_end_is_no_step_back(staging: Staging):
    """The last write of the run before was on its way for minutes. A later start must not take a late part for rows."""
    staging.delete_acknowledged([1], 1)
    staging.delete_acknowledged([2, 3], 3)
    staging.delete_acknowledged([], 1)
    assert 3 == staging.last_acknowledged()

    staging.delete_acknowledged([4], 4)
    assert ["acknowledged/4"] == staging.files("acknowledged/")


def test_beginning_that_a_run_records_late_changes_nothing(staging: Staging):
    """The later run is killed: the next start knows of it only by its file."""
    earlier, later = (replace(staging, epoch=epoch) for epoch in (1, 2))
    assert 0.0 == later.begin_run(1000.0, LEASE_SECONDS)
    earlier.begin_run(1000.0, LEASE_SECONDS)

    assert ["unfinished/1", "unfinished/2"] == staging.files("unfinished/")


def test_end_that_a_run_writes_late_changes_nothing(staging: Staging):
    """It comes after the next run has begun. Until the last time of both, silence is no empty subscription."""
    first, second, third = (replace(staging, epoch=epoch) for epoch in (1, 2, 3))
    assert 0.0 == first.begin_run(1000.0, LEASE_SECONDS)
    assert 2000.0 + LEASE_SECONDS == second.begin_run(2000.0, LEASE_SECONDS)
    first.end_run(1500.0, 1000.0)
    second.end_run(2500.0, 2000.0)
    first.end_run(900.0, 1000.0)

    assert 2500.0 == third.begin_run(2100.0, LEASE_SECONDS)
    assert ["unfinished/3"] == staging.files("unfinished/")


def test_clock_that_was_ahead_once_is_forgotten(staging: Staging):
    """Messages are leased for a time that the service limits."""
    earlier, later = (replace(staging, epoch=epoch) for epoch in (1, 2))
    earlier.begin_run(9000.0, LEASE_SECONDS)
    earlier.end_run(9500.0, 9000.0)

    assert 1000.0 + LEASE_SECONDS == later.begin_run(1000.0, LEASE_SECONDS)


def test_batch_ten_is_not_batch_one(staging: Staging):
    """Deleting one batch leaves those alone whose number begins like its own."""
    staging.create("1/part-0", part("a"))
    staging.create("10/part-0", part("b"))
    staging.delete_acknowledged([1], 1)

    assert [10] == staging.batches()


def test_foreign_names_are_left_alone(staging: Staging):
    """Files of other names are no part of any batch, and are not deleted."""
    staging.create("1/part-x", [])
    staging.create("1/part-0.tmp", [])
    staging.create("notes/readme", [])

    assert {} == staging.parts(1)
    assert [1] == staging.batches()
    staging.delete_acknowledged([1], 1)
    staging.delete()
    assert all(staging.read(name) is not None for name in ("1/part-x", "1/part-0.tmp", "notes/readme"))


def test_area_after_a_batch_of_another_is_not_new(staging: Staging):
    """The numbers continue from those of the other area, and nothing seeks the subscription again."""
    staging.begin_after(3)

    assert 3 == staging.last_acknowledged()
    assert not staging.is_new()


def test_executor_that_sees_the_area_finds_the_token(staging: Staging):
    """The driver writes the token in each start."""
    staging.write_token()
    staging.write_token()
    staging.check_token()


def test_executor_that_does_not_see_the_area_says_so(staging: Staging):
    """A path on the driver's own disk is an error with the fix."""
    with pytest.raises(StagingError, match="cannot see the driver's staging area") as refused:
        staging.check_token()
    assert "stagingLocation" in str(refused.value)


@pytest.mark.parametrize("damage", [b"", b"PSSTAGE1", b"x" * 5000])
def test_damaged_part_is_a_sentence(staging: Staging, damage: bytes):
    """A part that is truncated or not ours is an error that names it."""
    staging.create("1/part-0", [damage])
    with pytest.raises(StagingError, match="is damaged"):
        staging.footer(1, 0, len(damage))


def test_parts_live_under_project_subscription_and_stream(tmp_path: Path):
    """Parts have the paths that the module promises."""
    staging = Staging(open_store(f"file://{tmp_path}"), SUBSCRIPTION, "abc")
    staging.create("7/part-3", part("a"))

    assert (tmp_path / "test-project/test-subscription/abc/7/part-3").exists()


def test_token_that_a_cleaner_removed_is_written_again(tmp_path: Path):
    """Writing the token again restores it. An existing token stays."""
    staging = Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")
    staging.write_token()
    (tmp_path / staging.root / "driver-token").unlink()
    with pytest.raises(StagingError, match="cannot see the driver's staging area"):
        staging.check_token()

    staging.write_token()
    staging.check_token()


def test_run_that_was_killed_is_known_by_the_next_ones(staging: Staging):
    """For as long as it may hold leases, also when a run in between has ended well."""
    assert 0.0 == staging.begin_run(1000.0, LEASE_SECONDS)  # killed
    until = staging.begin_run(2000.0, LEASE_SECONDS)
    assert 2000.0 + LEASE_SECONDS == until
    staging.end_run(until, now=2010.0)
    assert until == staging.begin_run(2020.0, LEASE_SECONDS)
    staging.end_run(until, now=until)

    assert 0.0 == staging.begin_run(until + 1, LEASE_SECONDS)
    staging.end_run(0.0, now=until + 2)
    assert 0.0 == staging.begin_run(until + 3, LEASE_SECONDS)


def test_ids_are_read_as_written(staging: Staging):
    """A batch drops the same messages in every task. A file that is gone is an error that names it."""
    staging.write_ids("in-doubt/1-1", merged([ids("a", "b")]), topic="t", until=7.5, nothing=None)
    staging.write_ids("in-doubt/1-1", ids("c"))

    read, metadata = staging.read_ids("in-doubt/1-1")
    assert (merged([ids("a", "b")]).tolist(), {"topic": "t", "until": "7.5"}) == (read.tolist(), metadata)
    with pytest.raises(MissingFile, match=r"/in-doubt/1-2` is gone from .* start the query again"):
        staging.read_ids("in-doubt/1-2")


def test_ids_in_doubt_are_listed_and_deleted(staging: Staging):
    """A restart reads the files of all runs before it, and ignores files of other names."""
    for path in ("in-doubt/1-1", "in-doubt/1-2", "in-doubt/7-1"):
        staging.write_ids(path, ids("a"))
    staging.create("in-doubt/notes", [b"text"])
    staging.delete_file("in-doubt/1-2")
    staging.delete_file("in-doubt/1-2")

    assert ["in-doubt/1-1", "in-doubt/7-1"] == staging.files("in-doubt/")


def test_large_footer_is_read(staging: Staging):
    """A footer longer than one read of a part's end is read again with the length that the end names."""
    reader = "x" * 2 * FOOTER_READ_BYTES
    assert staging.create(part_path(1, 0), PartBuilder(None).buffers("full", reader=reader))

    [(number, length)] = staging.parts(1).items()
    assert reader == staging.footer(1, number, length).reader
    assert [] == list(staging.messages(1, 0) or [None])


@pytest.mark.parametrize("content", [b"", b"[1, 2", b"{}x", b"\x00\xff", b"null", b'""'])
@pytest.mark.parametrize("name", ["1/manifest", "unfinished/1", "in-doubt/1-1"])
def test_damaged_file_is_named(tmp_path: Path, name: str, content: bytes):
    """After a power loss a file may be empty or truncated: the error names it and the fix."""
    staging = Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")
    staging.create(name, [content])
    uses = {
        "1/manifest": lambda: staging.write_manifest(1),
        "unfinished/1": lambda: staging.begin_run(0.0, LEASE_SECONDS),
        "in-doubt/1-1": lambda: staging.read_ids("in-doubt/1-1"),
    }
    if name == "unfinished/1" and not content:
        assert LEASE_SECONDS == uses[name]()
        return
    with pytest.raises(DamagedFile, match=rf"/stream/{name}` is damaged .* `pubsub-spark staging clean`"):
        uses[name]()


@pytest.mark.parametrize("end", [0, 1, 100, -1, -50])
def test_truncated_part_is_named(tmp_path: Path, end: int):
    """Wherever a part ends, reading it raises the error that names it."""
    staging = Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")
    whole = b"".join(part("abc"))
    staging.create(part_path(1, 0), [whole[:end]])

    with pytest.raises(DamagedFile, match="/stream/1/part-0` is damaged"):
        staging.footer(1, 0, staging.parts(1)[0])
    with pytest.raises(DamagedFile, match="/stream/1/part-0` is damaged"):
        list(staging.messages(1, 0) or ())


def test_part_with_other_bytes_before_its_footer_is_named(tmp_path: Path):
    """The footer alone does not make a part: its messages and receipts are Arrow streams."""
    staging = Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")
    *sections, text, tail = part("abc")
    staging.create(part_path(1, 0), [b"x" * sum(map(len, sections)), text, tail])
    [(number, length)] = staging.parts(1).items()

    for read in (lambda: staging.messages(1, number) or (), lambda: staging.receipts(1, number, length)):
        with pytest.raises(DamagedFile, match="/stream/1/part-0` is damaged"):
            list(read())


@pytest.mark.parametrize("section", ["messages", "receipts"])
@pytest.mark.parametrize("damage", [b"\x00" * 64, b"\xff" * 8])
def test_part_with_a_damaged_block_is_named(tmp_path: Path, section: str, damage: bytes):
    """Arrow reads zeros as the end of a stream, and other bytes as offsets: no message is lost without an error."""
    staging = Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")
    whole = b"".join(part("abc"))
    length = footer(whole).messages_length
    start, end = (0, length) if section == "messages" else (length, len(whole))
    header = whole.index(b"\xff\xff\xff\xff", whole.index(b"\xff\xff\xff\xff", start, end) + 4, end)
    offsets = whole.index(struct.pack("<4i", 0, 4, 8, 12), start, end)  # of ids of four characters
    at = header if damage[0] == 0 else offsets + 4
    staging.create(part_path(1, 0), [whole[:at] + damage + whole[at + len(damage) :]])

    read = {
        "messages": lambda: staging.messages(1, 0) or (),
        "receipts": lambda: staging.receipts(1, 0, len(whole)),
    }
    with pytest.raises(DamagedFile, match="/stream/1/part-0` is damaged"):
        list(read[section]())


class Overwriting(Store):
    """A store that ignores its requests."""

    def create(self, path: str, buffers: Any) -> bool:
        return True


def test_store_that_overwrites_is_refused(tmp_path: Path):
    """A store that ignores create-only writes would let a batch change. The start reports it."""
    with pytest.raises(StagingError, match="overwrites an object when asked to create it"):
        Staging(Overwriting(str(tmp_path)), SUBSCRIPTION, "stream").write_token()


def test_token_is_as_new_as_its_last_writing(tmp_path: Path):
    """Cleaners of temporary folders remove files that are old. The token that is written again each hour never is."""
    staging = Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")
    staging.write_token()
    token = tmp_path / staging.root / "driver-token"
    os.utime(token, (0, 0))

    staging.write_token()
    assert token.stat().st_mtime > 0
