"""Stores: a file is created once, read as it was written, and durable. On local files and on object stores."""

import errno
import itertools
import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth.compute_engine import _metadata
from obstore.exceptions import NotFoundError, PermissionDeniedError

from pubsub_spark.backend import google_credentials
from pubsub_spark.errors import MissingFile, StagingError
from pubsub_spark.read.staging import store as store_module
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import Store, mounted_folder, open_store
from tests.conftest import Bucket
from tests.rpc.token_server import serving
from tests.unit.read.service import SUBSCRIPTION
from tests.unit.read.staging.object_store import TOKEN, Faults, google, with_faults


def content(store: Store, path: str) -> bytes | None:
    stored = store.read(path)
    return None if stored is None else bytes(stored)


def test_first_writer_wins(store: Store):
    """The first of two writers decides the content that all read."""
    assert store.create("a/b/1", [b"first", memoryview(b" writer")])
    assert not store.create("a/b/1", [b"other"])

    assert b"first writer" == content(store, "a/b/1")


def test_write_that_is_repeated_has_won(store: Store):
    """A store that took a write without an answer refuses its repetition: the first writer has won all the same."""
    assert store.create("a", [b"first"])
    assert store.create("a", [b"fi", b"rst"])


def test_put_replaces(store: Store):
    """The last put is read."""
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
    """It is None for a reader, an error for a caller that knows that it was there, and nothing to delete."""
    assert (None, {}, []) == (store.read("a/b"), store.list("a/"), [*store.folders("a/")])
    store.delete("a/b")
    with pytest.raises(MissingFile, match=r"`a/b` is gone from `.*`\. Exclude `stagingLocation`"):
        store.read_range("a/b", 0, 1)


def test_files_are_listed_by_their_folder(store: Store):
    """A prefix is a folder instead of the beginning of a name."""
    for path in ("s/1/part-0", "s/1/part-1", "s/10/part-0", "s/token"):
        store.create(path, [path.encode()])

    assert {"part-0": 10, "part-1": 10} == store.list("s/1/")
    assert {"1/part-0", "1/part-1", "10/part-0", "token"} == store.list("s/").keys()
    assert ["1", "10"] == sorted(store.folders("s/"))
    assert ["s"] == list(store.folders(""))
    store.delete("s/10/part-0")
    assert ["1"] == list(store.folders("s/"))


def test_store_is_a_plain_value(store: Store):
    """It is pickled to the tasks, and is a key of their caches."""
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
    with pytest.raises(StagingError, match=r"`memory:///x` cannot be used: 403 Forbidden\. Set `stagingLocation`"):
        USES[call](Store("memory:///x"))


def _set_environment(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_faults(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Yield the S3 server that the environment names. A request is repeated for a moment, without a pause after it."""
    monkeypatch.setattr(store_module, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(store_module, "delays", lambda first=0.0: itertools.repeat(0.0))
    store_module.connected.cache_clear()
    with with_faults(bucket.endpoint) as faults:
        _set_environment(monkeypatch, Bucket(faults.endpoint, bucket.name))
        yield faults


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log of the connector."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("pubsub_spark.")]


@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.parametrize("call", USES)
def test_outage_of_an_object_store_is_waited_for(
    s3_faults: Faults, bucket: Bucket, call: str, status: int, caplog: pytest.LogCaptureFixture
):
    """Each call is repeated beyond obstore's ten retries. A WARNING has the reason, and another reports the end."""
    store = open_store(f"{bucket.url}/x")
    if call == "get_range":
        store.create("a/b", [b"1"])
    s3_faults.statuses.extend([status] * 12)
    USES[call](store)

    assert [] == s3_faults.statuses
    lost, found = told(caplog)
    assert f"no answer from the staging area `{bucket.url}/x`" in lost
    assert "Trying again for up to 300 s" in lost
    assert f"{status}" in lost
    assert f"the staging area `{bucket.url}/x` answers again" in found


def test_put_is_one_request(s3_faults: Faults, bucket: Bucket):
    """A small file is no upload in parts, which takes three."""
    open_store(f"{bucket.url}/x").put("a", b"1")

    assert [f"PUT /{bucket.name}/x/a"] == s3_faults.asked


def test_short_outage_is_not_told(
    s3_faults: Faults, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A request that succeeds within ten seconds is usual."""
    monkeypatch.setattr(store_module, "REQUEST_SECONDS", 10.0)
    s3_faults.statuses.extend([503, 503])

    assert open_store(f"{bucket.url}/x").create("a", [b"1"])
    assert [] == told(caplog)


def test_outage_ends_after_fail_after(s3_faults: Faults, bucket: Bucket):
    """The error has the last answer, the things to check, and the source of the credentials."""
    s3_faults.statuses.extend([503] * 10_000)
    store = pickle.loads(pickle.dumps(open_store(f"{bucket.url}/x", fail_after=0.2)))
    with pytest.raises(
        StagingError,
        match=r"`s3://.*/x` did not answer for 0 s: .*503.*\. Check the network and the store, and start the query "
        r"again\. Its credentials are those of AWS_ACCESS_KEY_ID",
    ):
        store.create("a", [b"1"])


@pytest.mark.parametrize("status", [403, 404])
def test_refusal_is_not_repeated(s3_faults: Faults, bucket: Bucket, status: int):
    """An answer that will not change fails at once."""
    s3_faults.statuses.append(status)
    with pytest.raises(StagingError, match=f"{status}"):
        open_store(f"{bucket.url}/x").create("a", [b"1"])
    assert 1 == len(s3_faults.asked)


@pytest.fixture
def google_faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Yield Google's servers. Obstore and google.auth find them by the environment and by the credentials."""
    store_module.connected.cache_clear()
    with google() as faults:
        monkeypatch.setenv("GOOGLE_BASE_URL", faults.endpoint)
        yield faults


def service_account(endpoint: str) -> dict[str, Any]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    who = {"client_email": "spark@p.iam.gserviceaccount.com", "client_id": "1", "private_key_id": "k"}
    return {"type": "service_account", "private_key": pem, "token_uri": f"{endpoint}/token", **who}


def external_account(endpoint: str, folder: Path) -> dict[str, Any]:
    (folder / "subject").write_text("a token of another cloud")
    return {
        "type": "external_account",
        "audience": "//iam.googleapis.com/locations/global/workforcePools/pool/providers/provider",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{endpoint}/sts",
        "credential_source": {"file": str(folder / "subject")},
        "service_account_impersonation_url": f"{endpoint}/v1/projects/-/serviceAccounts/a@p:generateAccessToken",
    }


@pytest.mark.filterwarnings("ignore:The load_credentials:DeprecationWarning")
@pytest.mark.parametrize("is_default", [False, True])
@pytest.mark.parametrize("kind", ["service account", "external account", "impersonation"])
def test_bucket_of_google_takes_the_credentials_of_pubsub(
    google_faults: Faults, kind: str, is_default: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Those of the options, or the defaults, of each kind, also in a task. They are in no `repr`."""
    given = service_account(google_faults.endpoint)
    if kind != "service account":
        given = external_account(google_faults.endpoint, tmp_path)
    if kind == "impersonation":
        url = given.pop("service_account_impersonation_url")
        monkeypatch.setattr("google.auth.iam._IAM_ENDPOINT", url)  # it reads the account's name alone from the URL
        given = {
            "type": "impersonated_service_account",
            "service_account_impersonation_url": url,
            "source_credentials": service_account(google_faults.endpoint),
        }
    text: str | None = json.dumps(given)
    if is_default:
        (tmp_path / "default.json").write_text(json.dumps(given))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "default.json"))
        text = None
    store = open_store("gs://bucket/x", text)

    assert store.create("a", [b"1"])
    assert "Bearer" not in repr(store) and "private" not in repr(store) and "type" not in repr(store)
    store_module.connected.cache_clear()  # a task is another process
    assert b"1" == content(pickle.loads(pickle.dumps(store)), "a")


@pytest.mark.filterwarnings("ignore:The load_credentials:DeprecationWarning")
def test_token_server_that_is_out_is_waited_for(google_faults: Faults, monkeypatch: pytest.MonkeyPatch):
    """google.auth itself stops after three answers."""
    monkeypatch.setattr(store_module, "delays", lambda first=0.0: itertools.repeat(0.0))
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    google_faults.statuses.extend([503] * 7)
    store = open_store("gs://bucket/x", json.dumps(service_account(google_faults.endpoint)))

    assert store.create("a", [b"1"])


def test_metadata_server_that_is_late(
    google_faults: Faults, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """In a new pod it answers some seconds after the container has started: it is waited for, as for Pub/Sub."""
    monkeypatch.setattr(google_credentials, "delays", lambda most: itertools.repeat(0.01))
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", False)
    monkeypatch.setattr(_metadata, "_GCE_PRODUCT_NAME_FILE", "/nowhere")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.delenv("NO_GCE_CHECK", raising=False)
    with serving() as metadata:
        monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", metadata.address)
        monkeypatch.setenv("GCE_METADATA_IP", metadata.address)
        metadata.faults = [503] * 6
        metadata.issue = lambda seconds: TOKEN

        assert open_store("gs://bucket/x").create("a", [b"1"])
    assert "no credentials for `gs://bucket/x` yet" in told(caplog)[0]


def test_credentials_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The error lists the options or variables, by the scheme."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(
        StagingError, match=r"`gs://b/x` cannot be opened: .*Application Default Credentials \(GOOGLE_APP"
    ):
        open_store("gs://b/x").read("a")
    with pytest.raises(StagingError, match=r"`az://c/x` cannot be opened: .*AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://c/x").read("a")


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
    """Its bytes before it has its name. Its name and those of new folders before the writer returns."""
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
    assert "fsync 1" == done[-1]  # of changes that the other writer may not have synced yet


def test_file_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Some refuse to fsync a folder, which is no reason to refuse them. An input/output error is one."""
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
    """Remains of a dead writer are no file, and are removed at a later start."""
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
    """Another thread deletes the folder's last file between two steps of the writer, which creates it again."""
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


def test_unwritable_area_is_a_sentence():
    """The driver finds out before anything is pulled."""
    with pytest.raises(StagingError, match="`/dev/null/nowhere`"):
        Staging(open_store("/dev/null/nowhere"), SUBSCRIPTION, "s").write_token()


def test_store_that_cannot_create_is_a_sentence():
    """A store of plain HTTP has no create-only writes, which obstore reports with an error of Python's own."""
    with pytest.raises(StagingError, match=r"`http://127\.0\.0\.1:1/x` cannot be used: .*Set `stagingLocation`"):
        Staging(open_store("http://127.0.0.1:1/x"), SUBSCRIPTION, "s").write_token()


@pytest.mark.parametrize(
    "location",
    [
        "~/staging",
        "staging",
        "./staging",
        "dbfs:/staging",
        "dbfs:///staging",
        "hdfs://host/staging",
        "ftp://bucket/staging",
        "gs:/bucket/staging",
        "file:/staging",
        "file://host/staging",
        r"C:\staging",
        "C:/staging",
    ],
)
def test_location_of_another_kind_is_refused(location: str):
    """It creates no folder in the working directory, and the error lists the possible schemes."""
    with pytest.raises(StagingError) as refused:
        open_store(location)

    assert (
        f"`stagingLocation` `{location}` is neither a whole path nor a URL of a supported store. Use the path from "
        f"`/` on, or a URL of `gs://`, `s3://`, `az://` or `file:///`."
    ) == str(refused.value)


@pytest.mark.parametrize(
    ("location", "right"),
    [
        ("gcs://bucket/x", "gs://bucket/x"),
        ("s3n://bucket/x", "s3://bucket/x"),
        ("wasbs://c@a.blob.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
    ],
)
def test_location_by_another_name_is_corrected(location: str, right: str):
    """The error has the URL to use."""
    with pytest.raises(StagingError, match="has a scheme that is not supported") as refused:
        open_store(location)

    assert str(refused.value).endswith(f" Use `{right}`.")
    assert not open_store(right).is_local


@pytest.mark.parametrize("call", ["put", "list", "list_with_delimiter"])
@pytest.mark.parametrize("error", [FileNotFoundError, NotFoundError])
def test_bucket_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, call: str, error: type[Exception]):
    """No file is requested, so it is the bucket that is missing."""

    def missing(*arguments: Any, **settings: Any) -> Any:
        raise error("NoSuchBucket\n\nDebug source: of many lines")

    monkeypatch.setattr(obstore, call, missing)
    with pytest.raises(StagingError) as failed:
        USES[call](Store("memory:///x"))

    assert (
        "The bucket or container of `stagingLocation` `memory:///x` does not exist: NoSuchBucket. Create it, or "
        "correct its name."
    ) == str(failed.value)


def test_bucket_that_does_not_exist_on_a_server(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    """The driver's first write finds out."""
    _set_environment(monkeypatch, bucket)
    with pytest.raises(
        StagingError, match=r"container of `stagingLocation` `s3://nowhere/x` does not exist.*Create it"
    ):
        Staging(open_store("s3://nowhere/x"), SUBSCRIPTION, "s").write_token()


@pytest.fixture(autouse=True)
def _leaves_the_working_folder_alone() -> Iterator[None]:
    before = set(os.listdir())  # noqa: PTH208 - names are all that is compared
    yield
    assert before == set(os.listdir())  # noqa: PTH208


def test_folder_is_made_where_the_root_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`mkdir` of `/` fails on macOS because it is a directory, not because it exists."""
    mkdir = os.mkdir

    def mkdir_of_macos(path: Path, mode: int = 0o777) -> None:
        if str(path) == "/":
            raise IsADirectoryError(21, "Is a directory", "/")
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir_of_macos)
    open_store(str(tmp_path / "a" / "b")).prepare("s")

    assert (tmp_path / "a" / "b" / "s").is_dir()


def test_id_of_a_subscription_is_no_unfinished_file(tmp_path: Path):
    store = Store(str(tmp_path))
    store.create("orders.unfinished-x/part-0", [b"1"])

    assert {"part-0": 1} == store.list("orders.unfinished-x/")


def test_scheme_of_a_folder_has_any_case(tmp_path: Path):
    assert open_store(f"FILE://{tmp_path}").is_local


def test_local_folders_are_private(tmp_path: Path):
    """Folders that are made for a stream are open to its user alone. A folder that was there stays as it is."""
    tmp_path.chmod(0o755)
    staging = Staging(open_store(str(tmp_path / "a" / "b")), SUBSCRIPTION, "stream")
    staging.write_token()
    made = [tmp_path / "a", tmp_path / "a" / "b", *(tmp_path / "a" / "b" / staging.root).parents][:3]

    assert {0o700} == {folder.stat().st_mode & 0o777 for folder in made}
    assert 0o700 == (tmp_path / "a" / "b" / staging.root).stat().st_mode & 0o777
    assert 0o755 == tmp_path.stat().st_mode & 0o777


def test_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """FUSE file systems often have none: the start reports it, and leaves no file of the attempt."""

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
    """A laptop with a `/Volumes` of its own gets no folder of a catalog in it. A volume that is mounted is used."""
    volumes = tmp_path / "Volumes"
    volumes.mkdir()
    monkeypatch.setattr(store_module, "MOUNTED_LEVELS", {str(volumes): 3})
    location = volumes / "main" / "default" / "staging" / "area"
    with pytest.raises(StagingError, match=f"there is no `{location.parent}` on this machine"):
        Staging(open_store(str(location)), SUBSCRIPTION, "stream").write_token()
    assert [] == [*volumes.iterdir()]

    location.parent.mkdir(parents=True)
    Staging(open_store(str(location)), SUBSCRIPTION, "stream").write_token()
