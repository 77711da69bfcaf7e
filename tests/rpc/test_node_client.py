"""Google's Node client, unchanged, against our emulator, if the client is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("google_client.mjs")


@pytest.fixture
def node() -> tuple[str, str]:
    """Return the `node` to run and the folder with Google's client."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node is not installed")
    for folder in (os.environ.get("NODE_PATH", ""), str(Path(sys.prefix, "node_modules"))):
        if Path(folder, "@google-cloud", "pubsub").is_dir():
            return program, folder
    pytest.skip("Google's Node client is not here: `make test` brings it where npm reaches its registry, or NODE_PATH")


def test_node_client_works_unchanged(emulator, node):
    """Topics, ordering, exactly-once acks, seek, IAM and schemas, by the client's own high-level interface."""
    program, folder = node
    environment = os.environ | {"PUBSUB_EMULATOR_HOST": emulator.endpoint, "NODE_PATH": folder}

    done = subprocess.run([program, SCRIPT], env=environment, capture_output=True, text=True, timeout=60)

    assert 0 == done.returncode, done.stderr
    invalid_argument, not_found = 3, 5
    assert {
        "inOrder": [f"m{i}" for i in range(20)],
        "acknowledged": ["SUCCESS"] * 20,
        "ackDeadlineSeconds": 30,
        "permissions": {"pubsub.topics.publish": True},
        "misfit": invalid_argument,
        "missing": not_found,
    } == json.loads(done.stdout)
