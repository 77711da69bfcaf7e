"""docs/testing.md runs: its Python under pytest, its shell, and the programs whose runtime is on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs" / "testing.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in a language."""
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def ran(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    """Return the output of a program in a folder, which ended with 0."""
    environ = {name: value for name, value in os.environ.items() if name != "PUBSUB_EMULATOR_HOST"}
    done = subprocess.run(
        command, cwd=folder, env=environ | environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_python_of_the_page_runs(tmp_path: Path):
    """Each block passes under pytest, where the fixtures are found without a conftest.py."""
    for number, block in enumerate(blocks("python")):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]

    said = ran(command, tmp_path, {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable})

    assert re.search(r"^7 passed, 1 xfailed", said, re.MULTILINE), said


def test_line_of_the_page_guards_a_project(tmp_path: Path):
    """With the line of pyproject.toml a test that makes a client without the emulator fails, with the reason."""
    [line] = blocks("toml")
    (tmp_path / "pyproject.toml").write_text(line)
    (tmp_path / "test_it.py").write_text(
        "import google.auth.credentials\n"
        "from google.cloud import pubsub_v1\n"
        "def test_it():\n"
        "    pubsub_v1.PublisherClient(credentials=google.auth.credentials.AnonymousCredentials())\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"]
    environ = {name: value for name, value in os.environ.items() if name != "PUBSUB_EMULATOR_HOST"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )

    assert 1 == done.returncode
    assert "A client would leave this machine: gRPC to `pubsub.googleapis.com:443`." in done.stdout


def test_shell_of_the_page_runs(tmp_path: Path):
    """The script of a CI job passes, and leaves no emulator behind."""
    [script] = blocks("bash")
    command = f"{shlex.quote(sys.executable)} -c 'from pubsub_spark.cli import app; app()'"
    (tmp_path / "job.sh").write_text(f'pubsub-spark() {{ {command} "$@"; }}\n{script}')

    said = ran(["bash", "job.sh"], tmp_path, {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)})

    assert "Publish      UNAVAILABLE" in said
    assert [] == [*(tmp_path / "pubsub-spark").glob("*.json")]


@pytest.fixture
def variables(emulator: Emulator) -> dict[str, str]:
    """Return the variables of the page's server."""
    return {"PUBSUB_EMULATOR_HOST": emulator.endpoint, "PUBSUB_PROJECT_ID": "my-project"}


def program(name: str) -> str:
    """Return a program of this machine. Without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"`{name}` is not installed")
    return found


def test_node_of_the_page_runs(emulator: Emulator, variables: dict[str, str], tmp_path: Path):
    """Google's Node client receives its message, and it is acknowledged."""
    node = program("node")
    folders = (os.environ.get("NODE_PATH", ""), str(Path(sys.prefix, "node_modules")))
    modules = next((each for each in folders if Path(each, "@google-cloud", "pubsub").is_dir()), None)
    if modules is None:
        pytest.skip("Google's Node client is not here: `make test` brings it where npm reaches its registry")
    (tmp_path / "orders.mjs").write_text(*blocks("js"))

    ran([node, "orders.mjs"], tmp_path, variables | {"NODE_PATH": modules, "METADATA_SERVER_DETECTION": "none"})

    assert 0 == emulator.backlog("projects/my-project/subscriptions/node-orders")


def test_java_of_the_page_runs(emulator: Emulator, variables: dict[str, str], tmp_path: Path):
    """The JDK's own HTTP client, which offers an upgrade to HTTP/2, publishes and pulls over the JSON API."""
    (tmp_path / "Orders.java").write_text(*blocks("java"))

    ran([program("java"), "Orders.java"], tmp_path, variables)

    assert 1 == emulator.backlog("projects/my-project/subscriptions/java-orders")


def test_go_of_the_page_runs(emulator: Emulator, variables: dict[str, str], tmp_path: Path):
    """Google's Go client receives its message, and it is acknowledged."""
    go = program("go")
    (tmp_path / "orders.go").write_text(*blocks("go"))
    for command in (["mod", "init", "orders"], ["mod", "tidy"], ["run", "."]):
        ran([go, *command], tmp_path, variables)

    assert 0 == emulator.backlog("projects/my-project/subscriptions/go-orders")


def test_net_of_the_page_runs(emulator: Emulator, variables: dict[str, str], tmp_path: Path):
    """Google's .NET client receives its message, and it is acknowledged."""
    dotnet = program("dotnet")
    ran([dotnet, "new", "console", "--force"], tmp_path, {})
    ran([dotnet, "add", "package", "Google.Cloud.PubSub.V1"], tmp_path, {})
    (tmp_path / "Program.cs").write_text(*blocks("csharp"))
    ran([dotnet, "run"], tmp_path, variables)

    assert 0 == emulator.backlog("projects/my-project/subscriptions/net-orders")
