"""Buckets of a storage root that is a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pubsub_spark.emulator.sinks.destination import DestinationError
from pubsub_spark.emulator.sinks.storage_root import StorageRoot


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_bucket_is_a_folder(tmp_path: Path, form: str):
    """An object is a file below the bucket's folder, with folders for the slashes of its name."""
    (tmp_path / "bucket").mkdir()

    StorageRoot(form.format(tmp_path)).put("bucket", "a/b:c+d.txt", b"x")

    assert b"x" == (tmp_path / "bucket" / "a" / "b:c+d.txt").read_bytes()


def test_missing_bucket_is_not_found(tmp_path: Path):
    """A bucket is never created, because its name may be a typo."""
    with pytest.raises(DestinationError) as error:
        StorageRoot(str(tmp_path)).put("bucket", "a", b"x")

    assert "NOT_FOUND" == error.value.state
    assert f"The bucket `bucket` does not exist. Create the folder `{tmp_path}/bucket`." == str(error.value)


def test_denied_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store that refuses the write makes PERMISSION_DENIED. Any other failure is raised, and the write is retried."""
    (tmp_path / "bucket").mkdir()
    root = StorageRoot(str(tmp_path))

    def refuse(problem: Exception):
        def put(*_: object) -> None:
            raise problem

        monkeypatch.setattr("pubsub_spark.emulator.sinks.storage_root.obstore.put", put)

    refuse(PermissionError("no"))
    with pytest.raises(DestinationError) as error:
        root.put("bucket", "a", b"x")
    assert "PERMISSION_DENIED" == error.value.state
    refuse(OSError("no space"))
    with pytest.raises(OSError, match="no space"):
        root.put("bucket", "a", b"x")


@pytest.mark.parametrize("name", ["a//b", "../a", "./a"])
def test_name_that_cannot_be_written(tmp_path: Path, name: str):
    """A name that only Cloud Storage accepts is refused with a state, and nothing is written next to the bucket."""
    (tmp_path / "bucket").mkdir()

    with pytest.raises(DestinationError, match=f"The bucket `bucket` takes no object `{name}` here") as error:
        StorageRoot(str(tmp_path)).put("bucket", name, b"x")

    assert "PERMISSION_DENIED" == error.value.state
    assert [tmp_path / "bucket"] == list(tmp_path.rglob("*"))


def test_credentials_that_cannot_be_read_are_a_sentence(monkeypatch: pytest.MonkeyPatch):
    """obstore's error about the environment is one line, and may be different the next time."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")

    with pytest.raises(OSError, match=r"The bucket `bucket` cannot be opened: .*/nowhere/key\.json") as error:
        StorageRoot("gs://").open("bucket")

    assert "\n" not in str(error.value)


@pytest.mark.parametrize("url", ["/nowhere/at/all", "ftp://host/x"])
def test_what_is_no_root_is_a_sentence(url: str):
    """An invalid root is refused at the start."""
    with pytest.raises(OSError, match=r"The storage root `.*` is not "):
        StorageRoot(url)


@pytest.mark.parametrize(("url", "bucket"), [("gs://", "gs://bucket"), ("s3://real/prefix", "s3://real/prefix/bucket")])
def test_bucket_of_a_cloud(url: str, bucket: str, monkeypatch: pytest.MonkeyPatch):
    """`gs://` alone means the buckets themselves. With a bucket name, all buckets are prefixes in that one."""
    opened: list[str] = []
    monkeypatch.setattr("pubsub_spark.emulator.sinks.storage_root.from_url", opened.append)

    StorageRoot(url).open("bucket")

    assert [bucket] == opened
