"""The features that work on each version of Spark, by the results of the tests.

    python docs/compatibility.py build/matrix     the results of `make test-matrix` into docs/compatibility.json

`tables.py` makes the tables of that file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict
from xml.etree import ElementTree

RESULTS = Path(__file__).with_suffix(".json")
_PACKAGES = ("Python", "PySpark", "google-cloud-pubsub", "protobuf")

# A user's feature -> the tests below tests/spark that show it. Parameters of a test count together.
TRIGGERS: Mapping[str, str] = {
    "default trigger": "test_read.test_last_batch_before_idle_is_acked",
    "`processingTime`": "test_read_features.test_processing_time_trigger",
    "`availableNow`, one batch per run": "test_read.test_available_now_reads_what_is_there",
    "`availableNow`, whole backlog": "test_read.test_available_now_drains_and_ends",
    "`once`": "test_read_features.test_trigger_once",
}
FEATURES: Mapping[str, str] = {
    "metrics in `lastProgress`": "test_read_features.test_progress_has_the_counts",
    "a batch that a crash interrupted has the same rows": "test_read.test_crash_before_commit_repeats_the_batch",
    "a backlog is pulled by tasks": "test_read.test_backlog_is_pulled_by_the_tasks",
    "executors on other machines": "test_read_applications.test_killed_executor_is_replaced",
    "Spark Connect": "test_read_applications.test_spark_connect",
    "ordering keys": "test_read_failures.test_keys_stay_in_order",
    "exactly-once delivery": "test_read_failures.test_exactly_once_subscription",
    "`decode=json`": "test_read_features.test_stream_of_json_payloads",
    "AsyncAPI, `decode=topic`": "test_asyncapi.test_rows_go_out_and_come_back",
    "`spark.read`": "test_read_features.test_batch_read_acknowledges_nothing",
    "Databricks' columns and options": "test_read_features.test_columns_and_options_of_databricks",
    "`register(spark)`": "test_registration.test_both_names_are_registered",
    "SQL: views, tables `WITH` options": "test_sql.test_statements_of_the_page_run",
    "SQL: `STREAM t WITH (...)`": "test_sql.test_stream_of_a_table_in_sql",
    "SQL: `read_pubsub(...)`": "test_sql.test_table_function_decodes",
    "`df.write`": "test_write.test_every_row_is_published_once",
    "`df.write` by the topic's schema": "test_write.test_rows_are_encoded_by_the_schema_of_the_topic",
    "`df.writeStream`": "test_write.test_a_stream_publishes_each_batch",
    "`WriteSummary`": "test_write.test_a_summary_counts_what_was_published",
    "notebooks 1 to 5": "test_docs.test_notebook_runs",
}
ALL = {**TRIGGERS, **FEATURES}


class Environment(TypedDict):
    """One row of the matrix."""

    versions: dict[str, str]
    found: dict[str, str]  # of each feature: "yes", "FAILED", or why its tests were skipped


def environment(results: Path) -> Environment:
    """Return the outcomes of the features by a JUnit file of pytest."""
    [suite] = ElementTree.parse(results).getroot().iter("testsuite")  # noqa: S314 (written by pytest just now)
    outcomes: dict[str, list[str]] = {}
    for case in suite.iter("testcase"):
        name = f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name'].partition('[')[0]}"
        outcomes.setdefault(name, []).append(_outcome(case))
    versions = dict(zip(_PACKAGES, suite.attrib["name"].split(), strict=True))
    return {"versions": versions, "found": {each: _together(outcomes.get(test, [])) for each, test in ALL.items()}}


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "FAILED"
    skipped = case.find("skipped")
    return "yes" if skipped is None else skipped.attrib["message"]


def _together(outcomes: Sequence[str]) -> str:
    """Return one outcome of several tests: FAILED if one failed, the reason if one was skipped."""
    return min(outcomes, key=lambda each: (each != "FAILED", each == "yes"), default="not run")


def table(environments: Sequence[Environment], features: Iterable[str], columns: Sequence[str]) -> str:
    """Return a Markdown table: a line a feature, a column an environment, and below it the reasons of missing ones."""
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    reasons: list[str] = []
    for feature in features:
        cells = []
        for each in environments:
            found = each["found"][feature]
            if found not in {"yes", "FAILED", "not run", *reasons}:
                reasons.append(found)
            cells.append(f"no ({reasons.index(found) + 1})" if found in reasons else found)
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join([*lines, *(["", *(f"{n}. {reason}." for n, reason in enumerate(reasons, 1))] if reasons else [])])


def read() -> list[Environment]:
    """Return the environments of the last run that was recorded, in the order of the matrix."""
    environments: list[Environment] = json.loads(RESULTS.read_text())
    return environments


def by_environment() -> str:
    """Return every feature, a column an environment."""
    environments = read()
    columns = ["<br>".join(map(" ".join, each["versions"].items())) for each in environments]
    return table(environments, ALL, columns)


if __name__ == "__main__":
    paths = sorted(Path(sys.argv[1]).glob("*.xml"), key=lambda path: path.stat().st_mtime)
    RESULTS.write_text(json.dumps([environment(path) for path in paths], indent=1) + "\n")
