"""The tables of supported combinations, and their use of pytest's results."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.unit.project.conftest import command

JUNIT = """<testsuites><testsuite name="3.11.7 4.0.5 2.29.1 5.29.6">
<testcase classname="tests.spark.test_read" name="test_last_batch_before_idle_is_acked"/>
<testcase classname="tests.spark.test_read" name="test_available_now_drains_and_ends">
  <skipped message="one batch"/></testcase>
<testcase classname="tests.spark.test_docs" name="test_notebook_runs[1]"/>
<testcase classname="tests.spark.test_docs" name="test_notebook_runs[2]"><failure message="no"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def compatibility() -> Any:
    return command("compatibility")


def test_results_become_words(compatibility: Any, tmp_path: Path):
    """A test that passed is yes, one that failed spoils its feature, one that was skipped has the reason."""
    (tmp_path / "3.11-4.0.xml").write_text(JUNIT)
    made = compatibility.environment(tmp_path / "3.11-4.0.xml")

    assert {"Python": "3.11.7", "PySpark": "4.0.5", "google-cloud-pubsub": "2.29.1", "protobuf": "5.29.6"} == (
        made["versions"]
    )
    assert ("yes", "one batch", "FAILED", "not run") == tuple(
        made["found"][each]
        for each in ("default trigger", "`availableNow`, whole backlog", "notebooks 1 to 5", "`df.write`")
    )


def test_reasons_stand_below_the_table(compatibility: Any):
    """Each missing feature has a number, and each reason is listed once."""
    old = {"versions": {}, "found": {"a": "yes", "b": "too old", "c": "too old"}}
    new = {"versions": {}, "found": {"a": "yes", "b": "yes", "c": "FAILED"}}

    assert [
        "| | old | new |", "|---|---|---|", "| a | yes | yes |", "| b | no (1) | yes |", "| c | no (1) | FAILED |",
        "", "1. too old.",
    ] == compatibility.table([old, new], ["a", "b", "c"], ["old", "new"]).splitlines()  # fmt: skip


def test_every_feature_has_its_test(compatibility: Any):
    """A feature names an existing test."""
    for module, name in (test.split(".") for test in compatibility.ALL.values()):
        assert f"def {name}(" in (ROOT / "tests" / "spark" / f"{module}.py").read_text()


def test_nothing_failed_in_the_recorded_run(compatibility: Any):
    """The tables show a run without failures, of every row of the matrix."""
    environments = compatibility.read()
    found = {each for environment in environments for each in environment["found"].values()}

    assert {"FAILED", "not run"}.isdisjoint(found)
    assert 6 == len(environments)
