"""Stores of every kind."""

import uuid
from pathlib import Path

import pytest

from pubsub_spark.read.staging.store import Store, open_store
from tests.conftest import Bucket


@pytest.fixture(params=["files", "file URL", "memory", "S3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store with nothing in it."""
    location = str(tmp_path)
    if request.param == "memory":
        location = f"memory:///{uuid.uuid4().hex}"
    elif request.param == "file URL":
        location = tmp_path.as_uri()
    elif request.param == "S3":
        bucket: Bucket = request.getfixturevalue("bucket")
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        location = f"{bucket.url}/{uuid.uuid4().hex}"
    return open_store(location)
