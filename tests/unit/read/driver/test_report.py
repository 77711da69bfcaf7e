"""The file of metrics: counters continue over runs, and a failed write disturbs nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pubsub_spark.read.driver.report import Report
from pubsub_spark.read.staging.store import open_store
from tests.unit.read.service import SUBSCRIPTION

METRICS = {"subscription": SUBSCRIPTION, "connected": True, "lastResponseSeconds": None, "messages": 5, "backlogged": 0}


def report(folder: Path) -> Report:
    return Report(open_store(str(folder), fail_after=0.0, mode=0o644), SUBSCRIPTION)


def samples(folder: Path) -> dict[str, str]:
    """Return the values of the only file, by name."""
    [file] = folder.glob("*.prom")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert all(f'{{subscription="{SUBSCRIPTION}"}}' in line for line in lines)
    return {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}


def test_file_has_counters_and_gauges(tmp_path: Path):
    """Texts and values that are not known have no line. Others may read the file."""
    report(tmp_path).write(METRICS, 1_800_000_000.5)

    [file] = tmp_path.glob("*.prom")
    assert "test-project-test-subscription.prom" == file.name
    assert 0o644 == file.stat().st_mode & 0o777
    assert "# TYPE pubsub_spark_messages_total counter" in file.read_text()
    assert "# TYPE pubsub_spark_connected gauge" in file.read_text()
    assert {
        "pubsub_spark_connected": "1",
        "pubsub_spark_messages_total": "5",
        "pubsub_spark_backlogged": "0",
        "pubsub_spark_written_timestamp_seconds": "1800000000.5",
    } == samples(tmp_path)


def test_counters_go_on_over_runs(tmp_path: Path):
    """A scheduled job has a new process for each run. A counter that restarted at zero would hide smaller ones."""
    report(tmp_path).write(METRICS, 1.0)
    second = report(tmp_path)
    second.write(METRICS | {"messages": 2}, 2.0)
    second.write(METRICS | {"messages": 3}, 3.0)

    assert ("8", "3") == (
        samples(tmp_path)["pubsub_spark_messages_total"],
        samples(tmp_path)["pubsub_spark_written_timestamp_seconds"],
    )


def test_what_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The query continues. When the folder exists again, so does the file."""
    folder = tmp_path / "metrics"
    folder.write_text("no folder")
    made = report(folder)
    with caplog.at_level(logging.WARNING):
        made.write(METRICS, 1.0)
        made.write(METRICS, 2.0)
    assert 1 == caplog.text.count(f"the metrics of `{SUBSCRIPTION}` are not written")
    folder.unlink()
    made.write(METRICS, 3.0)

    assert "3" == samples(folder)["pubsub_spark_written_timestamp_seconds"]


def test_nothing_is_written_without_a_location(tmp_path: Path):
    """The option has no default."""
    Report(None, SUBSCRIPTION).write(METRICS, 1.0)

    assert [] == [*tmp_path.iterdir()]
