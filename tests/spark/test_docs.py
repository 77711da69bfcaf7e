"""The code in the documents runs: the README's Python blocks, the notebook, the templates for clusters."""

import io
import json
import re
import runpy
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from pubsub_spark.emulator import Emulator
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store
from tests.conftest import ROOT
from tests.faults.proxy import Proxy
from tests.spark.scenario import (
    Acked,
    Do,
    Held,
    Hold,
    Publish,
    Rows,
    Scenario,
    Start,
    Stop,
    Until,
    needs_metrics,
)

README = (ROOT / "README.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
ERRORS = (ROOT / "docs" / "errors.md").read_text()


def test_readme_runs(spark: SparkSession, emulator: Emulator, tmp_path: Path):
    """Every Python block of the README runs, top to bottom in one session, once the topic it names exists."""
    flight = (ROOT / "examples" / "flight.avsc").read_text()
    emulator.create_schema("projects/my-project/schemas/flight", "AVRO", flight)
    emulator.create_topic("projects/my-project/topics/flights", schema="projects/my-project/schemas/flight")
    emulator.create_subscription(
        "projects/my-project/subscriptions/flights-to-lake", "projects/my-project/topics/flights"
    )
    names: dict[str, Any] = {"spark": spark}
    try:
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
            exec(compile(_here(block, emulator.endpoint, tmp_path), "README.md", "exec"), names)
        names["query"].processAllAvailable()

        rows = spark.read.parquet(str(tmp_path / "table")).select("carrier", "flight", "tailnum", "dep_delay").collect()
    finally:
        if "query" in names:
            names["query"].stop()
        if "emulator" in names:
            names["emulator"].stop()

    expected = [("AA", 1141, "N619AA", 2.0), ("B6", 725, None, None), ("UA", 1545, "N14228", 2.0)]
    assert expected == sorted(map(tuple, rows))


def _here(block: str, endpoint: str, folder: Path) -> str:
    """Return the block with its project on this emulator, and its files in this folder."""
    project = '.option("projectId", "my-project")'
    block = block.replace(project, f'{project}.option("endpoint", "{endpoint}")')
    return block.replace('"/tmp/flights/', f'"{folder}/')


# Conditions on the names of each notebook when it has run. Each also has asserts of its own.
PROOFS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "1_stream_to_table": lambda names: 2000 == names["arrived"]["rows"] and names["sent"] == names["arrived"],
    "2_schema_revisions": lambda names: 2 == names["running"].select("schema_revision").distinct().count(),
    "3_kill_and_restart": lambda names: len(names["published"]) == len(set(names["numbers"])) > 100,
    "4_ordering_keys": lambda names: 10 == len(names["by_tail"]) and 1000 == len(names["arrived"]),
    "5_asyncapi": lambda names: {"AA", "B6", "UA"} == names["rows"].keys(),
}


@pytest.mark.parametrize("name", PROOFS)
@pytest.mark.long
def test_notebook_runs(spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch):
    """A notebook runs as plain Python, its own proof holds, and its picture is one."""
    monkeypatch.setenv("FLIGHTS", "2000")
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "set by the notebook")

    names = runpy.run_path(str(ROOT / "notebooks" / f"{name}.py"))

    assert PROOFS[name](names)
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in names["folder"].glob("*.png"))
    for table in spark.catalog.listTables():  # a memory sink hides the table of test_sql
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)


def test_every_notebook_is_run_but_the_one_for_databricks():
    """Only the notebook that needs a workspace is not run by the tests."""
    assert {*PROOFS, "6_databricks"} == {each.stem for each in (ROOT / "notebooks").glob("*.py")}


def test_spark_knows_the_settings_of_the_template(spark: SparkSession):
    """Every SQL setting in conf/spark-defaults.conf, on or behind a `#`, is one that this Spark has."""
    paragraphs = (ROOT / "conf" / "spark-defaults.conf").read_text().split("\n\n")
    text = "\n".join(each for each in paragraphs if f"Spark {spark.version[:3]} does not" not in each)
    named = set(re.findall(r"^(?:# )?(spark\.sql\.\S+) {2,}\S", text, re.MULTILINE))

    assert len(named) >= 5
    assert not spark.conf.isModifiable("spark.sql.nonsense")
    assert [] == [name for name in named if not spark.conf.isModifiable(name)]


def test_log4j_takes_the_template(spark: SparkSession):
    """log4j2 builds its configuration from conf/log4j2.properties, with the levels it names."""
    jvm = spark._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j.core
    uri = jvm.java.net.URI((ROOT / "conf" / "log4j2.properties").as_uri())

    factory = log4j.config.ConfigurationFactory.getInstance()
    built = factory.getConfiguration(log4j.LoggerContext("test"), log4j.config.ConfigurationSource.fromUri(uri))
    built.initialize()

    assert "WARN" == built.getRootLogger().getLevel().toString()
    assert "ERROR" == built.getLoggerConfig("org.apache.hadoop.util.NativeCodeLoader").getLevel().toString()
    assert ["console"] == list(built.getAppenders().keySet())


def test_no_write_mode_is_sparks_own_error(spark: SparkSession):
    """Without a mode Spark refuses before the connector is asked, in the words that docs/errors.md quotes."""
    with pytest.raises(AnalysisException) as refused:
        spark.range(1).write.format("pubsub").option("topicId", "news").save()

    condition = refused.value.getCondition()
    assert condition is not None
    assert f"`[{condition}]`" in ERRORS


@needs_metrics
@pytest.mark.long
def test_example_listener_alerts(scenario: Scenario, tmp_path: Path):
    """The listener of examples/alerts.py distinguishes an outage from an idle query, and reports its end.

    A file has the metrics.
    """
    example = runpy.run_path(str(ROOT / "examples" / "alerts.py"))
    told = list[str]()
    listener = example["PubSubListener"](told.append)
    project, subscription = scenario.names.subscription.split("/")[1::2]
    file = tmp_path / f"{project}-{subscription}.prom"

    def has(pattern: str) -> Until:
        return Until(pattern, lambda _: re.search(f"(?m)^{pattern}$", file.read_text() if file.exists() else ""))

    interval = "spark.sql.streaming.noDataProgressEventInterval"
    scenario.spark.conf.set(interval, "500")
    scenario.spark.streams.addListener(listener)
    labels = rf'\{{subscription="{scenario.names.subscription}"\}}'
    try:
        with Proxy(scenario.emulator.port) as proxy:
            scenario.run(
                Start(endpoint=proxy.endpoint, metricsLocation=str(tmp_path)),
                Publish("a", "b"), Rows("a", "b"), Acked("a", "b"),
                has(f"pubsub_spark_messages_total{labels} 2"), has(f"pubsub_spark_connected{labels} 1"),
                Do(lambda _: proxy.refuse()), has(f"pubsub_spark_connected{labels} 0"),
                Until("an alert", lambda _: told),  # Spark calls a listener in a thread of its own
                Do(lambda _: proxy.heal()), has(f"pubsub_spark_connected{labels} 1"),
                Until("its end", lambda _: told[1:]),
                Stop(), has(f"pubsub_spark_acked_messages_total{labels} 2"),
            )  # fmt: skip
    finally:
        scenario.spark.streams.removeListener(listener)
        scenario.spark.conf.unset(interval)
    [rules] = re.findall(r"def alerts\(.*?\n\n", (ROOT / "examples" / "alerts.py").read_text(), re.DOTALL)
    assert rules.strip() in OPERATIONS
    assert 2 == len(told), told
    assert 1 == sum(": no connection to Pub/Sub (last error: UNAVAILABLE" in sentence for sentence in told)
    assert 1 == sum("disconnected: over" in sentence for sentence in told)


@needs_metrics
def test_batch_numbers_are_mapped_as_the_page_says(scenario: Scenario):
    """`endOffset` is next to Spark's batchId in each progress, and a task's part also has the batchId."""
    scenario.run(
        Start(), Until("an idle start", lambda run: run.running.lastProgress), Stop(),  # full at once, tasks pull:
        Publish(*(f"m{n}" for n in range(3000))), Hold("commit"), Start(), Held(),
    )  # fmt: skip
    number = max(scenario.sink.written)
    staging = Staging(
        open_store(str(scenario.folder / "staging")), scenario.names.subscription, _stream(scenario, number)
    )
    [batch] = staging.batches()
    footers = [staging.footer(batch, part, length) for part, length in staging.parts(batch).items()]
    assert {None, number} == {footer.spark_batch for footer in footers}
    assert batch == _offset(scenario, number)["batch"]


def _stream(scenario: Scenario, number: int) -> str:
    return str(_offset(scenario, number)["stream"])


def _offset(scenario: Scenario, number: int) -> dict[str, Any]:
    """Return the end of a batch in Spark's offset log."""
    lines = (scenario.folder / "checkpoint" / "offsets" / str(number)).read_text().splitlines()
    return dict(json.loads(lines[-1]))


def test_errors_page_finds_the_sentence(spark: SparkSession, emulator: Emulator):
    """The Python block of docs/errors.md prints the one line of a failed query's trace that is ours."""
    missing = spark.readStream.format("pubsub").option("endpoint", emulator.endpoint)
    query = missing.option("subscriptionId", "projects/p/subscriptions/none").load().writeStream.format("noop").start()
    with suppress(StreamingQueryException):
        query.awaitTermination(60)
    printed = io.StringIO()

    [block] = re.findall(r"```python\n(.*?)```", ERRORS, re.DOTALL)
    with redirect_stdout(printed):
        exec(compile(block, "errors.md", "exec"), {"query": query})

    [line] = printed.getvalue().splitlines()
    assert line.startswith("pubsub_spark.errors.MissingError: Subscription `projects/p/subscriptions/none`")
