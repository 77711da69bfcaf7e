"""An install on a cluster's runtime leaves the packages that the runtime ships as they are.

pip resolves the wheel of this clone against an environment that has the runtime's versions, and reports the packages
that it would install. Of those versions the environment has the metadata alone, because pip reads nothing else of them:
no download.
"""

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

PINS = Path(__file__).with_name("databricks-17.3.txt")
NEW = {"fastavro", "google-cloud-pubsub", "grpc-google-iam-v1", "obstore", "ptars", "pubsub-spark"}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment that looks to pip as if it had the runtime's packages."""
    folder = tmp_path_factory.mktemp("runtime")
    venv.create(folder, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for metadata in resolved(folder, "--requirement", str(PINS)):
        place = packages / f"{metadata['name'].replace('-', '_')}-{metadata['version']}.dist-info"
        place.mkdir()
        lines = [f"Name: {metadata['name']}", f"Version: {metadata['version']}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in metadata.get("requires_dist", [])]
        place.joinpath("METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
        place.joinpath("INSTALLER").write_text("pip\n")
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 0 == ended.returncode, ended.stderr
    [built] = folder.glob("*.whl")
    return built


def pip(environment: Path, *arguments: str) -> str:
    """Return the output of pip for the environment."""
    command = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout


def resolved(environment: Path, *what: str) -> list[dict[str, Any]]:
    """Return the metadata of each package that pip would install. Nothing is installed."""
    report = json.loads(pip(environment, "install", "--quiet", "--dry-run", "--report", "-", *what))
    return [package["metadata"] for package in report["install"]]


def names(packages: list[dict[str, Any]]) -> set[str]:
    return {package["name"].lower().replace("_", "-") for package in packages}


@pytest.mark.parametrize(
    ("extras", "needed"),
    [
        ("[cli,protoc]", NEW | {"grpcio-tools", "typer"}),
        pytest.param("", NEW, marks=pytest.mark.production),  # fewer requirements
    ],
)
@pytest.mark.long
def test_install_replaces_nothing_of_the_runtime(
    runtime: Path, wheel: Path, tmp_path: Path, extras: str, needed: set[str]
):
    """With the runtime's versions as constraints, as in docs/databricks.md, pip adds the runtime's missing packages."""
    constraints = tmp_path / "runtime.txt"
    constraints.write_text(pip(runtime, "list", "--format=freeze"))
    installed = {line.partition("==")[0].replace("_", "-") for line in constraints.read_text().splitlines()}

    added = names(resolved(runtime, f"{wheel}{extras}", "--constraint", str(constraints)))

    assert {"grpcio", "protobuf"} <= installed
    assert needed <= added
    assert not added & installed
