"""The staging area: written once, read as it was written, on local files and on an object store."""

import errno
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError
from obstore.store import MemoryStore

from pubsub_spark.codec.envelope import received
from pubsub_spark.errors import StagingError
from pubsub_spark.read import staged_part
from pubsub_spark.read import staging as module
from pubsub_spark.read.pull.lease import LEASE_SECONDS
from pubsub_spark.read.recent_ids import merged
from pubsub_spark.read.staged_part import footer, messages
from pubsub_spark.read.staging import (
    Staging,
    excluded_path,
    mounted_folder,
    open_store,
    part_path,
    recent_path,
    repeated_path,
)
from tests.conftest import Bucket
from tests.unit.read.service import SUBSCRIPTION, ids, part, response


@pytest.fixture(params=["files", "file URL", "memory", "S3"])
def staging(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staging:
    """The area of one stream, in a folder and in object stores."""
    location = str(tmp_path)
    if request.param == "memory":
        store = MemoryStore()
        monkeypatch.setattr(module, "open_store", lambda location: store)
    elif request.param == "file URL":
        location = tmp_path.as_uri()
    elif request.param == "S3":
        bucket: Bucket = request.getfixturevalue("bucket")
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        location = f"{bucket.url}/staging"
    return Staging(location, SUBSCRIPTION, uuid.uuid4().hex)


def payloads(content: Any) -> list[str]:
    return [data.decode() for batch in messages(content) for data in batch.column("data").to_pylist()]


def test_part_is_read_as_it_was_written(staging: Staging):
    """Messages, receipts and footer of a part come back, each by itself."""
    assert staging.create("1/part-0", part("ab", ended="full", dropped="xyz"))
    [(index, length)] = staging.parts(1).items()

    assert ["a", "b"] == payloads(staging.read("1/part-0"))
    receipts = [ack_id for batch in staging.receipts(1, index, length) for ack_id in batch.column("ack_id").to_pylist()]
    assert ["ack-a", "ack-b", "ack-x", "ack-y", "ack-z"] == receipts
    found = staging.footer(1, index, length)
    assert (2, 3, "full", 1000.0) == (found.rows, found.dropped, found.ended, found.oldest)
    assert found == footer(staging.read("1/part-0"))


def test_receipts_are_read_in_sections(staging: Staging, monkeypatch: pytest.MonkeyPatch):
    """The driver never has the receipts of a large part at once: a section of them is one read."""
    monkeypatch.setattr(staged_part, "_RECEIPTS_SECTION_BYTES", 500)
    builder = staging.part_builder()
    for text in "abc":
        got = received([response([text])])
        builder.add(got.messages, got.receipts)
    assert staging.create("1/part-0", builder.buffers("idle"))
    [(index, length)] = staging.parts(1).items()

    assert len(staging.footer(1, index, length).receipts_lengths) > 1
    ack_ids = [each for batch in staging.receipts(1, index, length) for each in batch.column("ack_id").to_pylist()]
    assert ["ack-a", "ack-b", "ack-c"] == ack_ids


@pytest.mark.parametrize("staging", ["files", "S3"], indirect=True)
def test_only_object_stores_get_compressed_parts(staging: Staging, request: pytest.FixtureRequest):
    """A local file is deleted before it reaches the disk; a part that crosses a network is worth compressing."""
    builder = staging.part_builder()
    got = received([response(["same" * 1000] * 10)])
    builder.add(got.messages, got.receipts)
    size = sum(map(len, builder.buffers("idle")))

    assert (size < 40_000) == ("S3" in request.node.name)


def test_empty_part_is_a_part(staging: Staging):
    """A pull without messages is staged, too, so that its retry has none either."""
    assert staging.create("1/part-0", part(""))

    assert [] == payloads(staging.read("1/part-0"))
    assert (0, None) == (footer(staging.read("1/part-0")).rows, footer(staging.read("1/part-0")).oldest)


def test_first_writer_wins(staging: Staging):
    """Of two attempts at one part the first decides what both yield."""
    assert staging.create("1/part-1", part("a"))
    assert not staging.create("1/part-1", part("b"))

    assert ["a"] == payloads(staging.read("1/part-1"))


def test_write_that_is_repeated_has_won(staging: Staging):
    """A store that took a write without an answer refuses its repetition: the first writer has won all the same."""
    assert staging.create("1/part-1", part("a"))
    assert staging.create("1/part-1", part("a"))


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


def test_excluded_ids_are_read_as_written(staging: Staging):
    """A batch drops the same messages in every task; a file that is gone is a sentence."""
    staging.write_ids(excluded_path(1), merged([ids("a", "b")]))
    staging.write_ids(excluded_path(1), ids("c"))

    assert merged([ids("a", "b")]).tolist() == staging.ids(excluded_path(1)).digests.tolist()
    with pytest.raises(StagingError, match=r"The file `.*/2/excluded-ids` is gone .* start the query again"):
        staging.ids("2/excluded-ids")


def test_area_after_a_batch_of_another_is_not_new(staging: Staging):
    """The numbers go on where those of the other area were left, and nothing seeks the subscription again."""
    staging.begin_after(3)

    staging.check_token()
    assert 3 == staging.last_acknowledged()
    assert not staging.is_new()


@pytest.mark.parametrize(
    ("written", "read", "found"),
    [("a", "a", True), ("a", "b", False), (None, "a", True), ("a", None, True)],
)
def test_recent_ids_are_of_a_topic(staging: Staging, written: str | None, read: str | None, found: bool):
    """A subscription that was made anew on another topic may have other messages with the same ids."""
    staging.write_ids(recent_path(1, 1), ids("1"), written)

    assert {recent_path(1, 1): ids("1").tolist() if found else [[], []]} == {
        path: ids.tolist() for path, ids in staging.recent_ids(read).items()
    }


def test_repeated_ids_are_of_one_part(staging: Staging):
    """A replay drops other messages from each part."""
    staging.write_ids(repeated_path(1, 2), merged([ids("a", "b")]))

    assert merged([ids("a", "b")]).tolist() == staging.ids(repeated_path(1, 2)).digests.tolist()
    assert staging.read(repeated_path(1, 1)) is None


def test_executor_that_sees_the_area_finds_the_token(staging: Staging):
    """The driver writes the token in each start."""
    staging.write_token()
    staging.write_token()
    staging.check_token()


def test_executor_that_does_not_see_the_area_says_so(staging: Staging):
    """A path on the driver's own disk is an error that says what to do."""
    with pytest.raises(StagingError, match="cannot see the driver's staging area") as refused:
        staging.check_token()
    assert "stagingLocation" in str(refused.value)


@pytest.mark.parametrize("damage", [b"", b"PSSTAGE1", b"x" * 5000])
def test_damaged_part_is_a_sentence(staging: Staging, damage: bytes):
    """A part that is truncated or not ours is an error that names it."""
    staging.create("1/part-0", [damage])
    with pytest.raises(StagingError, match="is damaged"):
        staging.footer(1, 0, len(damage))


def test_unwritable_area_is_a_sentence():
    """The driver finds out before anything is pulled."""
    with pytest.raises(StagingError, match="`/dev/null/nowhere`"):
        Staging("/dev/null/nowhere", SUBSCRIPTION, "s").write_token()


def test_unknown_kind_of_location_is_a_sentence():
    """A URL of an unknown scheme is an error that names it."""
    with pytest.raises(StagingError, match="`ftp://bucket/x` cannot be opened"):
        open_store("ftp://bucket/x")


def test_store_that_cannot_create_is_a_sentence():
    """A store of plain HTTP has no create-only writes, which obstore says with an error of Python's own."""
    with pytest.raises(StagingError, match=r"`http://127\.0\.0\.1:1/x` cannot be used: .*Give `stagingLocation`"):
        Staging("http://127.0.0.1:1/x", SUBSCRIPTION, "s").write_token()


@pytest.mark.parametrize("location", ["~/staging", "dbfs:/staging", "file:/staging", "file://host/staging"])
def test_location_that_looks_like_another_is_a_sentence(location: str):
    """The shell's and Hadoop's ways to write a path, or a host in it, make no folder in the working directory."""
    with pytest.raises(StagingError, match="is neither a path nor a URL"):
        open_store(location)


@pytest.mark.parametrize("call", ["head", "get", "put", "list"])
def test_store_that_refuses_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str):
    """A store that refuses a call is an error of one line, whatever the call."""
    staging = Staging(str(tmp_path), SUBSCRIPTION, "s")

    def refused(*arguments: Any, **settings: Any) -> Any:
        raise PermissionDeniedError("403 Forbidden\n\nDebug source: of many lines")

    monkeypatch.setattr(obstore, call, refused)
    uses: dict[str, Callable[[], Any]] = {
        "head": staging.check_token,
        "get": lambda: staging.read("1/part-0"),
        "put": lambda: staging.create("1/part-0", part("a")),
        "list": lambda: staging.parts(1),
    }
    with pytest.raises(StagingError, match=rf"`{tmp_path}` cannot be used: 403 Forbidden\. Give `stagingLocation`"):
        uses[call]()


def test_parts_live_under_project_subscription_and_stream(tmp_path: Path):
    """Parts have the paths that the module promises."""
    staging = Staging(f"file://{tmp_path}", SUBSCRIPTION, "abc")
    staging.create("7/part-3", part("a"))

    assert (tmp_path / "test-project/test-subscription/abc/7/part-3").exists()


def test_unfinished_write_is_not_seen(staging: Staging, monkeypatch: pytest.MonkeyPatch):
    """A write that fails leaves no part behind, so the next attempt stages its own."""

    def broken(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", broken)
        with pytest.raises(StagingError, match="disk full"):
            staging.create("1/part-0", part("a"))

    assert {} == staging.parts(1)
    assert staging.create("1/part-0", part("b"))


@pytest.fixture(autouse=True)
def _leaves_the_working_folder_alone() -> Iterator[None]:
    before = set(os.listdir())  # noqa: PTH208 - names are all that is compared
    yield
    assert before == set(os.listdir())  # noqa: PTH208


def test_store_that_overwrites_is_refused(staging: Staging, monkeypatch: pytest.MonkeyPatch):
    """A store that ignores create-only writes would let a batch change; the start says so."""
    staging.write_token()
    staging.write_token()  # another start
    monkeypatch.setattr(obstore, "put", lambda *_, **__: None)

    with pytest.raises(StagingError, match="overwrites an object when asked to create it"):
        staging.write_token()


def test_local_folders_are_private(tmp_path: Path):
    """Folders that are made for a stream are open to its user alone; a folder that was there stays as it is."""
    tmp_path.chmod(0o755)
    staging = Staging(str(tmp_path / "a" / "b"), SUBSCRIPTION, "stream")
    staging.write_token()
    made = [tmp_path / "a", tmp_path / "a" / "b", *(tmp_path / "a" / "b" / staging.root).parents][:3]

    assert {0o700} == {folder.stat().st_mode & 0o777 for folder in made}
    assert 0o700 == (tmp_path / "a" / "b" / staging.root).stat().st_mode & 0o777
    assert 0o755 == tmp_path.stat().st_mode & 0o777


def test_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """FUSE file systems often have none: the start says so, and leaves no file of the attempt."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    staging = Staging(str(tmp_path), SUBSCRIPTION, "stream")
    with pytest.raises(StagingError, match="has no hard links"):
        staging.write_token()
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("location", ["/Volumes/main/default/staging", "file:///dbfs/staging", "/Workspace/x"])
def test_folder_of_databricks_on_another_machine_is_refused(location: str):
    """Nothing is made at the root of a machine that is not Databricks'."""
    top = location.removeprefix("file://").split("/")[1]
    if Path(f"/{top}").exists():
        pytest.fail(f"this machine has /{top}; the test cannot tell")
    with pytest.raises(StagingError, match="is a folder of Databricks"):
        Staging(location, SUBSCRIPTION, "stream").write_token()
    assert not Path(f"/{top}").exists()


@pytest.mark.parametrize(
    ("folder", "platform", "expected"),
    [
        ("/Volumes/main/default/staging/area", "linux", "/Volumes/main/default/staging"),
        ("/Volumes/main/default/staging/area", "darwin", "/Volumes/main"),
        ("/Volumes/main", "linux", "/Volumes/main"),
        ("/Volumes", "darwin", "/Volumes"),
        ("/dbfs/tmp/area", "darwin", "/dbfs"),
        ("/Workspace/Users/me", "linux", "/Workspace"),
        ("/VolumesOfMine/area", "darwin", None),
        ("/tmp/Volumes/area", "linux", None),
    ],
)
def test_folder_that_is_mounted_and_never_made(folder: str, platform: str, expected: str | None):
    """On macOS `/Volumes` is there and has the disks: a volume of Databricks' is refused for its first level."""
    assert (None if expected is None else Path(expected)) == mounted_folder(Path(folder), platform)


def test_folder_below_a_mount_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A laptop with a `/Volumes` of its own gets no folder of a catalog in it; a volume that is mounted is used."""
    volumes = tmp_path / "Volumes"
    volumes.mkdir()
    monkeypatch.setattr(module, "_MOUNTED_LEVELS", {str(volumes): 3})
    location = volumes / "main" / "default" / "staging" / "area"
    with pytest.raises(StagingError, match=f"there is no `{location.parent}` on this machine"):
        Staging(str(location), SUBSCRIPTION, "stream").write_token()
    assert [] == [*volumes.iterdir()]

    location.parent.mkdir(parents=True)
    Staging(str(location), SUBSCRIPTION, "stream").write_token()


def test_token_that_a_cleaner_removed_is_written_again(tmp_path: Path):
    """Writing the token again brings it back; a token that is there stays."""
    staging = Staging(str(tmp_path), SUBSCRIPTION, "stream")
    staging.write_token()
    (tmp_path / staging.root / "driver-token").unlink()
    with pytest.raises(StagingError, match="cannot see the driver's staging area"):
        staging.check_token()

    staging.write_token()
    staging.check_token()


def test_run_that_was_killed_is_known_by_the_next_ones(staging: Staging):
    """For as long as it may hold leases, also when a run in between has ended well."""
    assert 0.0 == staging.begin_run(now=1000.0)  # killed
    until = staging.begin_run(now=2000.0)
    assert 2000.0 + LEASE_SECONDS == until
    staging.end_run(until, now=2010.0)
    assert until == staging.begin_run(now=2020.0)
    staging.end_run(until, now=until)

    assert 0.0 == staging.begin_run(now=until + 1)
    staging.end_run(0.0, now=until + 2)
    assert 0.0 == staging.begin_run(now=until + 3)


def test_local_files_are_private(tmp_path: Path):
    """The files of a stream and the folders of its batches are open to its user alone, whatever the umask."""
    staging = Staging(str(tmp_path), SUBSCRIPTION, "stream")
    before = os.umask(0o000)
    try:
        staging.write_token()
        staging.create(part_path(1, 0), [b"part"])
        staging.begin_run(0.0)
        staging.write_ids(recent_path(0, 1), ids("a"))
        staging.delete_acknowledged([], 0)
    finally:
        os.umask(before)
    made = list((tmp_path / staging.root).rglob("*"))

    assert {0o600} == {path.stat().st_mode & 0o777 for path in made if path.is_file()}
    assert {0o700} == {path.stat().st_mode & 0o777 for path in made if path.is_dir()}


def test_token_is_as_new_as_its_last_writing(tmp_path: Path):
    """Cleaners of temporary folders remove files that are old; the token that is written again each hour never is."""
    staging = Staging(str(tmp_path), SUBSCRIPTION, "stream")
    staging.write_token()
    token = tmp_path / staging.root / "driver-token"
    os.utime(token, (0, 0))

    staging.write_token()
    assert token.stat().st_mtime > 0
