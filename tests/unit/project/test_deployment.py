"""The statements of the files for clusters and containers are true, as far as it can be seen without a cluster."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from unittest.mock import Mock

import hcl2
import jsonschema
import pytest
import yaml
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pubsub_spark.read.driver.report import Report
from pubsub_spark.read.staging.store import open_store
from tests.conftest import ROOT

DOCKER = ROOT / "examples" / "docker" / "Dockerfile"


def copied() -> list[str]:
    """Return the files and folders that the Dockerfile copies from the clone."""
    lines = re.findall(r"^COPY (.*) \S+$", DOCKER.read_text(), re.MULTILINE)
    return [source for line in lines for source in line.split()]


def test_image_has_what_its_wheel_is_built_of(tmp_path: Path):
    """The wheel can be built of the files that the Dockerfile copies, and of no others."""
    clone = tmp_path / "build"
    clone.mkdir()
    for name in copied():
        source = ROOT / name
        shutil.copytree(source, clone / name) if source.is_dir() else shutil.copy(source, clone)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    ended = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)

    assert 0 == ended.returncode, ended.stderr
    [wheel] = tmp_path.glob("*.whl")
    assert "pubsub_spark/cli/__init__.py" in zipfile.ZipFile(wheel).namelist()


def test_docker_is_sent_what_it_copies():
    """`.dockerignore` lets through exactly the files of the Dockerfile."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()

    assert "*" in lines
    assert {*copied()} == {line[1:] for line in lines if line.startswith("!")}


def test_terraform_grants_what_the_page_lists():
    """Each right of docs/clusters.md is a resource of conf/iam.tf, and nothing else is granted."""
    members = dict.fromkeys(("the query", "the caller"), "member")
    members |= {"Pub/Sub's agent": "pubsub_agent", "Cloud Storage's agent": "storage_agent"}
    kinds = {"subscription": "pubsub_subscription", "topic": "pubsub_topic", "project": "project"}
    kinds |= {"bucket": "storage_bucket", "key": "kms_crypto_key"}
    page = (ROOT / "docs" / "clusters.md").read_text()
    table = re.findall(r"^\| .+ \| (.+) \| `(roles/\S+)` \| (?:the|that) (\w+)", page, re.MULTILINE)
    resources = re.findall(
        r'^resource "google_(\w+)_iam_member".*?role += "(.+?)".*?member += local\.(\w+)',
        (ROOT / "conf" / "iam.tf").read_text(),
        re.MULTILINE | re.DOTALL,
    )

    listed = [(kinds[kind], role, members[member]) for member, role, kind in table]
    assert len(listed) == 11
    listed.remove(("project", "roles/pubsub.editor", "member"))
    assert sorted(listed) == sorted(resources)


def test_checkpoint_of_kubernetes_can_be_opened():
    """Hadoop opens a checkpoint on `gs://` only with the connector that the template names."""
    spec = yaml.safe_load((ROOT / "conf" / "kubernetes.yaml").read_text())["spec"]

    assert spec["sparkConf"]["spark.sql.streaming.checkpointLocation"].startswith("gs://")
    assert {"fs.gs.impl", "fs.AbstractFileSystem.gs.impl"} == {*spec["hadoopConf"]}


def test_job_of_databricks_is_continuous():
    """A schedule of runs that read one batch each falls behind, so that the bundle has none, and the query no end."""
    [job] = yaml.safe_load((ROOT / "notebooks" / "databricks.yml").read_text())["resources"]["jobs"].values()
    [task] = job["tasks"]

    assert "schedule" not in job
    assert "UNPAUSED" == job["continuous"]["pause_status"]
    notebook = ROOT / "notebooks" / task["notebook_task"]["notebook_path"]
    assert ".trigger(processingTime=" in notebook.read_text()


def test_alert_of_a_failed_query_is_the_message_of_the_connector():
    """Spark's error begins with a traceback of its Python process."""
    example = runpy.run_path(str(ROOT / "examples" / "alerts.py"))
    spark = (
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "source.py", line 1\npubsub_spark.errors.MissingError: Subscription `s` does not exist. Create it.\n'
    )

    assert "Subscription `s` does not exist. Create it." == example["message_of"](spark)
    assert "a sink failed" == example["message_of"]("a sink failed\n  at line 7")


_GRID = {"w": {"maximum": 24}, "x": {"maximum": 23}, "h": {}, "y": {}}
# The fields of a dashboard that Grafana imports:
# https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
DASHBOARD = {
    "required": ["title", "uid", "schemaVersion", "time", "templating", "panels"],
    "properties": {
        "uid": {"type": "string", "maxLength": 40},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "time": {"required": ["from", "to"]},
        "templating": {
            "properties": {
                "list": {
                    "contains": {"properties": {"name": {"const": "datasource"}, "type": {"const": "datasource"}}},
                    "items": {"required": ["name", "type", "query"]},
                }
            }
        },
        "panels": {
            "minItems": 1,
            "items": {
                "required": ["id", "type", "title", "gridPos", "datasource", "targets", "fieldConfig"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "type": {"enum": ["timeseries", "stat", "gauge", "table"]},
                    "gridPos": {
                        "required": [*_GRID],
                        "properties": {
                            name: {"type": "integer", "minimum": 0} | limit for name, limit in _GRID.items()
                        },
                    },
                    "datasource": {"const": {"type": "prometheus", "uid": "${datasource}"}},
                    "targets": {
                        "minItems": 1,
                        "items": {
                            "required": ["refId", "expr"],
                            "properties": {"refId": {"pattern": "^[A-Z]$"}, "expr": {"pattern": r"\{subscription=~"}},
                        },
                    },
                },
            },
        },
    },
}


HEALTHY = {
    "subscription": "s",
    "connected": True,
    "lastError": "",
    "intakePaused": False,
    "oldestUnackedSeconds": 1.0,
    "deadLetters": 3,
    "unackedBatches": 2,
    "ackedMessages": 5,
}


@pytest.mark.parametrize(
    ("now", "rules"),
    [
        ({"ackedMessages": 6}, []),
        ({"ackedMessages": 6, "deadLetters": 4}, ["dead letters"]),
        ({}, ["acks"]),
        ({"unackedBatches": 1}, []),
        ({"ackedMessages": 6, "intakePaused": True, "oldestUnackedSeconds": 601.0}, ["paused", "late"]),
    ],
)
def test_alerts_of_dead_letters_and_stalled_acks(now: dict[str, object], rules: list[str]):
    """Dead letters are new since the last report. Several batches wait, and no ack was accepted since then."""
    alerts = runpy.run_path(str(ROOT / "examples" / "alerts.py"))["alerts"]

    assert rules == [rule for rule, _ in alerts(HEALTHY | now, HEALTHY)]


def test_alerts_name_the_query_and_survive_its_end(monkeypatch: pytest.MonkeyPatch):
    """An idle event may be handled after the end of its query, which `spark.streams` has no more."""
    told: list[str] = []
    listener = runpy.run_path(str(ROOT / "examples" / "alerts.py"))["PubSubListener"](told.append)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: Mock(streams=Mock(get=lambda _: None)))
    started = Mock(id="id")
    started.name = "to-table"  # an argument of this name would be the mock's own
    listener.onQueryStarted(started)
    progress = Mock(id="id", sources=[Mock(latestOffset=json.dumps(HEALTHY | {"connected": False, "deadLetters": 0}))])
    progress.name = "to-table"
    listener.onQueryProgress(Mock(progress=progress))
    failed = "org.apache.spark.X: Traceback\npubsub_spark.errors.MissingError: Subscription `s` does not exist."
    listener.onQueryTerminated(Mock(id="id", exception=failed))
    listener.onQueryIdle(Mock(id="id"))
    listener.onQueryStarted(started)
    listener.onQueryTerminated(Mock(id="id", exception=None))
    listener.onQueryStarted(started)
    threading.Timer(0.2, listener.onQueryTerminated, [Mock(id="id", exception="java.lang.Error: x\n\tat")]).start()
    listener.wait_for_end(Mock(id="id"), seconds=60)

    assert [
        "query to-table, s disconnected: no connection to Pub/Sub (last error: none)",
        "query to-table failed: Subscription `s` does not exist.",
        "query to-table failed: java.lang.Error: x",
    ] == told


def test_dashboard_shows_metrics_that_there_are(tmp_path: Path):
    """Every name in conf/grafana.json is one that `metricsLocation` gets, and counters are shown as rates."""
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page[page.index("| metric | |") : page.index("Spark asks for them on each trigger")]
    names = [name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    Report(open_store(str(tmp_path)), "projects/p/subscriptions/s").write(dict.fromkeys(names, 1), 0.0)
    [file] = tmp_path.glob("*.prom")
    written = set(re.findall(r"^(\w+)\{", file.read_text(), re.MULTILINE))

    dashboard = json.loads((ROOT / "conf" / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {name for query in queries for name in re.findall(r"pubsub_spark_\w+", query)} <= written
    assert all(re.match(r"(rate|increase)\(", query) for query in queries if "_total" in query)
    assert len(dashboard["panels"]) == len({panel["id"] for panel in dashboard["panels"]})
    jsonschema.validate(dashboard, DASHBOARD)


def test_alert_policies_are_of_metrics_of_subscriptions():
    """conf/alerts.tf is Terraform, and each of its policies has a threshold, a duration and a sentence."""
    parsed = hcl2.loads((ROOT / "conf" / "alerts.tf").read_text())
    [local] = parsed["locals"]
    [policy] = [each for resource in parsed["resource"] for each in resource.values()]

    assert 3 == len(local["alerts"])
    assert all({"above", "duration", "text"} == {*alert} for alert in local["alerts"].values())
    assert "0s" in local["alerts"]['"dead_letter_message_count"']["duration"]  # one is counted in one minute only
    assert "pubsub.googleapis.com/subscription/" in json.dumps(policy)


def test_alerts_of_a_replay_are_none():
    """Spark asks a source for no metrics in the first batch after a restart, and PySpark makes "None" of that."""
    example = runpy.run_path(str(ROOT / "examples" / "alerts.py"))
    other, ours = '{"0": 7}', '{"subscription": "s"}'
    sources = [Mock(latestOffset=offset) for offset in ("None", other, ours)]

    assert [{"subscription": "s"}] == list(example["pubsub_metrics"](Mock(sources=sources)))


def test_job_writes_delta_under_the_id_of_its_query(monkeypatch: pytest.MonkeyPatch):
    """Delta leaves out a batch that it has by these two options, which a new checkpoint must not share with the old."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    job, batch = runpy.run_path(str(ROOT / "examples" / "job.py")), Mock()
    batch.sparkSession.sparkContext.getLocalProperty = {"sql.streaming.queryId": "the query"}.__getitem__

    job["write_delta"]("gs://bucket/table", batch, 7)

    batch.write.format.assert_called_once_with("delta")
    append = batch.write.format().mode
    append.assert_called_once_with("append")
    append().options.assert_called_once_with(mergeSchema="true", txnAppId="the query", txnVersion="7")
    append().options().save.assert_called_once_with("gs://bucket/table")


@pytest.mark.parametrize(
    ("error", "has_delta"),
    [
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta.", False),
        ("[DELTA_TABLE_NOT_FOUND] Delta table `t` doesn't exist.", True),
        (None, True),
    ],
)
def test_job_looks_for_the_jar_of_delta(error: str | None, has_delta: bool, monkeypatch: pytest.MonkeyPatch):
    """A table that does not exist yet is no reason to write Parquet."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    job, spark = runpy.run_path(str(ROOT / "examples" / "job.py")), Mock()
    spark.read.format().load.side_effect = None if error is None else AnalysisException(error)

    assert has_delta is job["has_delta"](spark, "t")
