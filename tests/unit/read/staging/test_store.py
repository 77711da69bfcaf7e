"""Stores: a file is created once, read as it was written, and durable; on local files and on object stores."""

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError

from pubsub_spark.errors import MissingFile, StagingError
from pubsub_spark.read.staging import store as store_module
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import Store, mounted_folder, open_store
from tests.unit.read.service import SUBSCRIPTION


def content(store: Store, path: str) -> bytes | None:
    stored = store.read(path)
    return None if stored is None else bytes(stored)


def test_first_writer_wins(store: Store):
    """Of two writers the first decides what all read."""
    assert store.create("a/b/1", [b"first", memoryview(b" writer")])
    assert not store.create("a/b/1", [b"other"])

    assert b"first writer" == content(store, "a/b/1")


def test_write_that_is_repeated_has_won(store: Store):
    """A store that took a write without an answer refuses its repetition: the first writer has won all the same."""
    assert store.create("a", [b"first"])
    assert store.create("a", [b"fi", b"rst"])


def test_put_replaces(store: Store):
    """What is put last is read."""
    store.put("a", b"1")
    store.put("a", b"2")

    assert b"2" == content(store, "a")


def test_file_may_be_empty(store: Store):
    """An empty file exists."""
    assert store.create("a/b", [])

    assert (b"", {"b": 0}) == (content(store, "a/b"), store.list("a/"))


def test_range_is_part_of_a_file(store: Store):
    """From the start up to the end, which is not in it."""
    store.create("a", [b"0123456789"])

    assert b"345" == bytes(store.read_range("a", 3, 6))
    assert (b"9", b"") == (bytes(store.read_range("a", 9, 12)), bytes(store.read_range("a", 10, 12)))


def test_missing_file(store: Store):
    """It is None for a reader, an error for who knows that it was there, and nothing to delete."""
    assert (None, {}, []) == (store.read("a/b"), store.list("a/"), [*store.folders("a/")])
    store.delete("a/b")
    with pytest.raises(MissingFile, match=r"`a/b` is gone from `.*`\. Exclude `stagingLocation`"):
        store.read_range("a/b", 0, 1)


def test_files_are_listed_by_their_folder(store: Store):
    """A prefix is a folder, and not the beginning of a name."""
    for path in ("s/1/part-0", "s/1/part-1", "s/10/part-0", "s/token"):
        store.create(path, [path.encode()])

    assert {"part-0": 10, "part-1": 10} == store.list("s/1/")
    assert {"1/part-0", "1/part-1", "10/part-0", "token"} == store.list("s/").keys()
    assert ["1", "10"] == sorted(store.folders("s/"))
    assert ["s"] == list(store.folders(""))
    store.delete("s/10/part-0")
    assert ["1"] == list(store.folders("s/"))


def test_store_is_a_plain_value(store: Store):
    """It is pickled to the tasks, and a key of what they remember."""
    store.create("a", [b"1"])

    copy = pickle.loads(pickle.dumps(store))
    assert (store, hash(store)) == (copy, hash(copy))
    assert b"1" == content(copy, "a")


USES: dict[str, Callable[[Store], Any]] = {
    "get": lambda store: store.read("a/b"),
    "get_range": lambda store: store.read_range("a/b", 0, 1),
    "put": lambda store: store.create("a/b", [b"1"]),
    "list": lambda store: store.list("a/"),
    "list_with_delimiter": lambda store: store.folders("a/"),
    "delete": lambda store: store.delete("a/b"),
}


@pytest.mark.parametrize("call", USES)
def test_object_store_that_refuses(monkeypatch: pytest.MonkeyPatch, call: str):
    """Whatever the call, the error is one line that names the location."""

    def refused(*arguments: Any, **settings: Any) -> Any:
        raise PermissionDeniedError("403 Forbidden\n\nDebug source: of many lines")

    monkeypatch.setattr(obstore, call, refused)
    with pytest.raises(StagingError, match=r"`memory:///x` cannot be used: 403 Forbidden\. Give `stagingLocation`"):
        USES[call](Store("memory:///x"))


@pytest.mark.parametrize("call", USES)
def test_file_system_that_refuses(tmp_path: Path, call: str):
    """A file where a folder should be: the error names the location."""
    (tmp_path / "file").touch()
    with pytest.raises(StagingError, match=r"file` cannot be used: .*Not a directory"):
        USES[call](Store(str(tmp_path / "file")))


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk: the file does not exist, and the next attempt writes its own."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for write in (lambda: store.create("a", [b"1"]), lambda: store.put("a", b"1")):
            with pytest.raises(StagingError, match="No space left on device"):
                write()

    assert [] == list(tmp_path.iterdir())
    assert store.create("a", [b"2"])


@pytest.mark.parametrize("is_put", [False, True])
def test_file_is_durable_before_it_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_put: bool):
    """Its bytes before it has its name; its name and those of new folders before the writer returns."""
    done: list[str] = []
    fsync, rename = os.fsync, obstore.rename

    def synced(handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").readlink()
        done.append(f"fsync {'.' if name == tmp_path else 'content' if name.is_file() else name.name}")
        fsync(handle)

    def renamed(*names: Any, **settings: Any) -> None:
        done.append("name")
        rename(*names, **settings)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(obstore, "rename", renamed)
    store = Store(str(tmp_path))
    if is_put:
        store.put("s/1/part-0", b"1")
    else:
        store.create("s/1/part-0", [b"1"])

    assert ["fsync content", "name", "fsync 1", "fsync .", "fsync s"] == done
    done.clear()
    assert not store.create("s/1/part-0", [b"2"])
    assert "fsync 1" == done[-1]  # of what the other writer may not have synced yet


def test_file_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Some refuse to fsync a folder, which is no reason to refuse them; an input/output error is one."""
    fsync, number = os.fsync, errno.EINVAL

    def refuse(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().is_dir():
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    assert Store(str(tmp_path)).create("a", [b"1"])
    number = errno.EIO
    with pytest.raises(StagingError, match="Input/output error"):
        Store(str(tmp_path)).create("b", [b"1"])


def test_many_buffers_are_written_in_order(tmp_path: Path):
    """Small ones and large ones, more of them than one system call takes."""
    buffers = [bytes([n % 256]) * (n * 37 % 200_000 if n % 10 == 0 else n % 9) for n in range(5000)]

    assert Store(str(tmp_path)).create("a", buffers)
    assert b"".join(buffers) == (tmp_path / "a").read_bytes()


def test_unfinished_files_are_not_listed(tmp_path: Path):
    """What a dead writer has left is no file, and is removed at a later start."""
    store = Store(str(tmp_path))
    store.create("s/7/part-0", [b"1"])
    store.create("s/token", [])
    leftover, unfinished = (tmp_path / "s" / "7" / f"part-1.unfinished-{name}" for name in ("x#1", "y"))
    for file in (leftover, unfinished):
        file.touch()
    os.utime(leftover, (0, 0))

    assert {"part-0": 1} == store.list("s/7/")
    store.prepare("s")
    assert {unfinished, tmp_path / "s" / "7" / "part-0"} == {*(tmp_path / "s" / "7").iterdir()}
    store.delete("s/7/part-0")
    os.utime(unfinished, (0, 0))
    store.prepare("s")
    assert [tmp_path / "s" / "token"] == list((tmp_path / "s").iterdir())
    store.delete("s/token")
    assert tmp_path.exists()
    assert [] == list(tmp_path.iterdir())


def test_folder_that_is_removed_while_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another thread deletes the folder's last file between two steps of the writer, who makes it again."""
    store = Store(str(tmp_path))
    put, rename = obstore.put, obstore.rename

    def put_late(*arguments: Any, **settings: Any) -> Any:
        store.delete("s/7/part-0")
        return put(*arguments, **settings)

    def delete_renamed(*names: Any, **settings: Any) -> None:
        rename(*names, **settings)
        store.delete("s/7/part-1")

    store.create("s/7/part-0", [b"1"])
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", put_late)
        assert store.create("s/7/part-1", [b"2"])
    assert {"part-1": 1} == store.list("s/7/")
    monkeypatch.setattr(obstore, "rename", delete_renamed)
    store.put("s/7/part-1", b"3")
    assert not (tmp_path / "s").exists()


def test_local_files_are_private(tmp_path: Path):
    """Files and folders are open to their user alone, whatever the umask."""
    store = Store(str(tmp_path))
    before = os.umask(0o000)
    try:
        store.prepare("s")
        store.create("s/1/part-0", [b"1"])
        store.put("s/last", b"1")
    finally:
        os.umask(before)
    made = list(tmp_path.rglob("*"))

    assert {0o600} == {path.stat().st_mode & 0o777 for path in made if path.is_file()}
    assert {0o700} == {path.stat().st_mode & 0o777 for path in made if path.is_dir()}


def test_unknown_kind_of_location_is_a_sentence():
    """A URL of an unknown scheme is an error that names it."""
    with pytest.raises(StagingError, match="`ftp://bucket/x` cannot be opened"):
        open_store("ftp://bucket/x").read("a")


def test_unwritable_area_is_a_sentence():
    """The driver finds out before anything is pulled."""
    with pytest.raises(StagingError, match="`/dev/null/nowhere`"):
        Staging(open_store("/dev/null/nowhere"), SUBSCRIPTION, "s").write_token()


def test_store_that_cannot_create_is_a_sentence():
    """A store of plain HTTP has no create-only writes, which obstore says with an error of Python's own."""
    with pytest.raises(StagingError, match=r"`http://127\.0\.0\.1:1/x` cannot be used: .*Give `stagingLocation`"):
        Staging(open_store("http://127.0.0.1:1/x"), SUBSCRIPTION, "s").write_token()


@pytest.mark.parametrize("location", ["~/staging", "dbfs:/staging", "file:/staging", "file://host/staging"])
def test_location_that_looks_like_another_is_a_sentence(location: str):
    """The shell's and Hadoop's ways to write a path, or a host in it, make no folder in the working directory."""
    with pytest.raises(StagingError, match="is neither a path nor a URL"):
        open_store(location)


@pytest.fixture(autouse=True)
def _leaves_the_working_folder_alone() -> Iterator[None]:
    before = set(os.listdir())  # noqa: PTH208 - names are all that is compared
    yield
    assert before == set(os.listdir())  # noqa: PTH208


def test_local_folders_are_private(tmp_path: Path):
    """Folders that are made for a stream are open to its user alone; a folder that was there stays as it is."""
    tmp_path.chmod(0o755)
    staging = Staging(open_store(str(tmp_path / "a" / "b")), SUBSCRIPTION, "stream")
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
    staging = Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")
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
        Staging(open_store(location), SUBSCRIPTION, "stream").write_token()
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
    monkeypatch.setattr(store_module, "_MOUNTED_LEVELS", {str(volumes): 3})
    location = volumes / "main" / "default" / "staging" / "area"
    with pytest.raises(StagingError, match=f"there is no `{location.parent}` on this machine"):
        Staging(open_store(str(location)), SUBSCRIPTION, "stream").write_token()
    assert [] == [*volumes.iterdir()]

    location.parent.mkdir(parents=True)
    Staging(open_store(str(location)), SUBSCRIPTION, "stream").write_token()
