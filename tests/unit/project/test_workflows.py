"""The workflow files of the code host: they run the Makefile's targets, and publish nothing by themselves."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()


def jobs(name: str) -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_targets_of_workflows_exist(path):
    """Each `make x` of a workflow is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))

    assert set(re.findall(r"make (?:-s )?([a-z-]+)", path.read_text())) <= targets


def test_the_matrix_has_the_rows_of_the_makefile():
    """The workflow asks the Makefile for its rows, so there is one list of them."""
    rows = subprocess.run(["make", "-s", "matrix-rows"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    matrix = re.search(r"^MATRIX := (.*)$", MAKEFILE, re.MULTILINE)

    assert matrix is not None
    assert matrix[1].split() == json.loads(rows)
    assert "make -s matrix-rows" in jobs("test")["rows"]["steps"][-1]["run"]


def test_what_takes_long_has_a_job_of_its_own():
    """`make test` leaves out the tests marked `production`."""
    job = jobs("test")["long"]

    assert {"coverage", "mutants", "test-production"} == {*job["strategy"]["matrix"]["target"]}
    assert 'make "$TARGET"' == job["steps"][-1]["run"]


@pytest.mark.parametrize(("workflow", "variable"), [("docs", "PUBLISH_DOCS"), ("release", "PUBLISH_RELEASE")])
def test_publishing_is_off_until_an_owner_turns_it_on(workflow, variable):
    """Only the job `publish` may publish, if a variable of the repository is `true`."""
    published = {name for name, job in jobs(workflow).items() if "environment" in job}

    assert {"publish"} == published
    assert jobs(workflow)["publish"]["if"].endswith(f"vars.{variable} == 'true'")


def test_help_has_every_documented_target():
    """`make help` prints a line for each target that has a comment."""
    printed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    documented = re.findall(r"^([a-z-]+):.*  ## ", MAKEFILE, re.MULTILINE)
    assert documented == [line.split()[0] for line in printed.splitlines()]
