"""Commands that use a staging area on `gs://` with the credentials of their options, which the machine lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT, Names
from tests.production import stores
from tests.production.front import Rig
from tests.production.stores import ObjectStore

COMMAND = "from pubsub_spark.cli import app; app()"
# Writes a file of a stream with the id `mine`.
SEED = """
import sys
from pathlib import Path
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store

location, key, subscription = sys.argv[1:]
Staging(open_store(location, Path(key).read_text()), subscription, "mine").write_token()
"""


@pytest.fixture
def store(rig: Rig) -> Iterator[ObjectStore]:
    """Yield a bucket. The machine has no credentials. The token server issues the text `issued`."""
    rig.use(None)
    rig.environment["NO_GCE_CHECK"] = "true"
    rig.tokens.issue = lambda seconds: "issued"
    with stores.google() as running:
        yield running


def run(rig: Rig, store: ObjectStore, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program on a machine with the rig's network."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PUBSUB_", "GOOGLE_"))}
    environment |= {"PYTHONPATH": str(ROOT), **store.environment, **rig.environment}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def key_file(rig: Rig) -> str:
    path = rig.folder / "key.json"
    path.write_text(json.dumps(rig.account))
    return str(path)


def test_staging_has_the_credentials_of_its_option(rig: Rig, store: ObjectStore, names: Names):
    """`ls` and `clean` send a token of `--credentials-file`. Without it they cannot open the bucket."""
    location, key = f"{store.url}/staging", key_file(rig)
    seeded = run(rig, store, SEED, location, key, names.subscription)
    assert 0 == seeded.returncode, seeded.stderr
    store.faults.authorizations.clear()

    listed = run(rig, store, COMMAND, "staging", "ls", location, "--credentials-file", key, "--json")
    assert ["mine"] == [stream["stream"] for stream in json.loads(listed.stdout)], listed.stderr
    words = ("staging", "clean", location, "--credentials-file", key, "--stream", "mine")
    removed = run(rig, store, COMMAND, *words)
    assert "removed 1 files of stream mine\n" == removed.stdout, removed.stderr
    assert {"Bearer issued"} == store.faults.authorizations
    refused = run(rig, store, COMMAND, "staging", "ls", location)
    assert (1, True) == (refused.returncode, f"`{location}` cannot be opened" in refused.stderr), refused.stderr


@pytest.mark.parametrize("is_option", [False, True])
def test_doctor_has_the_credentials_of_its_options(
    rig: Rig, store: ObjectStore, emulator: Emulator, names: Names, is_option: bool
):
    """It checks the staging area with the credentials that a query would use."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    words = ["--subscription", names.subscription, "--option", f"stagingLocation={store.url}/staging"]
    words += ["--option", f"credentialsFile={key_file(rig)}"] if is_option else ["--credentials-file", key_file(rig)]
    ended = run(rig, store, COMMAND, "doctor", *words, "--no-spark", "--json")

    found = {finding["check"]: finding for finding in json.loads(ended.stdout)}
    assert "ok" == found["staging area"]["state"], found
    assert {"Bearer issued"} == store.faults.authorizations
    assert "TestIamPermissions" in rig.methods(), found
