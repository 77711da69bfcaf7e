"""The pages of docs/ run: their Bash and Python blocks, in order, on an emulator, with a proof for each page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT
from tests.rpc.test_cli_docs import SHELL

PROJECT = "projects/my-project"


class Run(NamedTuple):
    """The run of a page. names: those of its Python blocks. folder: the replacement of /tmp."""

    spark: SparkSession
    emulator: Emulator
    names: dict[str, Any]
    folder: Path

    def rows(self, table: str) -> int:
        """Return the number of rows of a Parquet table."""
        return self.spark.read.parquet(str(self.folder / table)).count()


class Page(NamedTuple):
    """The setup of a page, and a proof that it ran. resources: subscriptions by topic. messages: by topic."""

    proof: Callable[[Run], bool]
    resources: dict[str, str] = {}  # noqa: RUF012
    messages: dict[str, tuple[str, ...]] = {}  # noqa: RUF012
    is_with_schema: bool = False


ORDERS = ('{"id": 1, "amount": 2.5}', '{"id": 2, "amount": 3.5}')
PAGES: dict[str, Page] = {
    "archive.md": Page(lambda run: 1 == run.emulator.backlog(f"{PROJECT}/subscriptions/orders-replay-in")),
    "asyncapi.md": Page(lambda run: "carrier" in run.names["stream"].columns),
    "databricks.md": Page(lambda run: True),
    "dead-letters.md": Page(
        lambda run: run.names["query"].awaitTermination(60),
        {"flights": "flights-in", "dead-letters": "dead-letters-in"},
    ),
    "exactly-once.md": Page(lambda run: 2 == run.rows("orders"), {"orders": "orders"}, {"orders": ORDERS}),
    "first-stream.md": Page(lambda run: 3 == run.rows("flights/table")),
    "from-dataflow.md": Page(
        lambda run: [("a", 2)] == [tuple(row) for row in run.spark.table("counts").collect()],
        {"clicks": "clicks"},
        {"clicks": ('{"page": "a", "at": "2026-01-31T00:00:00Z"}',) * 2},
    ),
    "from-pull-loop.md": Page(lambda run: 2 == run.rows("loop/table"), {"orders": "orders"}, {"orders": ORDERS}),
    "install.md": Page(lambda run: True),
    "scheduled.md": Page(
        lambda run: 2 == run.rows("scheduled/table"), {"flights": "flights-to-lake"}, {"flights": ORDERS}
    ),
    "schemas.md": Page(
        lambda run: ["carrier", "decode_error"] == run.names["flights"].select("value.carrier", "decode_error").columns
    ),
    "to-table.md": Page(
        lambda run: run.names["query"].processAllAvailable() is None and 1 == run.rows("flights/table"),
        {"flights": "flights-to-lake"},
        {"flights": ("\x04UA\x02\x00\x00",)},
        is_with_schema=True,
    ),
}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.long
def test_page_runs(name: str, spark: SparkSession, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every Bash and Python block of a page runs, top to bottom, and its proof holds."""
    monkeypatch.chdir(ROOT)
    page = PAGES[name]
    run = Run(spark, emulator, {"spark": spark}, tmp_path)
    _prepare(page, emulator)
    try:
        for language, block in blocks((ROOT / "docs" / name).read_text()):
            if language == "bash":
                _shell(block, emulator)
            else:
                exec(compile(_here(block, run), name, "exec"), run.names)
        assert page.proof(run)
    finally:
        for query in spark.streams.active:
            query.stop()


def blocks(text: str) -> Iterable[tuple[str, str]]:
    """Return the language and the text of each block to run."""
    return re.findall(r"^```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def _prepare(page: Page, emulator: Emulator) -> None:
    schema = f"{PROJECT}/schemas/flight"
    if page.is_with_schema:
        emulator.create_schema(schema, "AVRO", (ROOT / "examples" / "flight.avsc").read_text())
    for topic, subscription in page.resources.items():
        emulator.create_topic(f"{PROJECT}/topics/{topic}", schema=schema if page.is_with_schema else None)
        emulator.create_subscription(f"{PROJECT}/subscriptions/{subscription}", f"{PROJECT}/topics/{topic}")
    for topic, messages in page.messages.items():
        emulator.publish(f"{PROJECT}/topics/{topic}", *messages)


def _shell(block: str, emulator: Emulator) -> None:
    """Run a block without the lines about the page's own emulator."""
    script = "\n".join(line for line in block.splitlines() if "pubsub-spark emulator" not in line)
    environment = {**os.environ, "PUBSUB_EMULATOR_HOST": emulator.endpoint, "GOOGLE_CLOUD_PROJECT": "my-project"}
    environment["PYSPARK_PYTHON"] = sys.executable
    ended = subprocess.run(
        ["bash", "-c", SHELL + script],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
        timeout=240,
    )
    assert 0 == ended.returncode, ended.stderr


def _here(block: str, run: Run) -> str:
    """Return the block with this emulator's address, and with its files in the folder of the run."""
    block = re.sub(
        r'\.format\("pubsub"\)(?!\s*\.option\("endpoint")',
        rf'\g<0>.option("endpoint", "{run.emulator.endpoint}")',
        block,
    )
    return block.replace("/tmp/", f"{run.folder}/")
