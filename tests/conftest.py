"""Fixtures of all tests: an emulator per test, names per test, and one Spark session.

The session costs seconds and a gigabyte, so the first test that needs it creates it. The folders that do not need it
(unit, rpc, conformance) start no JVM. Names differ from test to test, so a test never sees another one's resources.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import logging
import os
import re
import shutil
import signal
import sys
import urllib.request
import uuid
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pubsub_spark.emulator import Emulator

ROOT = Path(__file__).parent.parent

_PYSPARK = Path(importlib.util.find_spec("pyspark").origin).parent  # type: ignore[union-attr, arg-type]
_INSTALLATION = f"{_PYSPARK} {version('pyspark')}"
_FOR_PYSPARK = ROOT / "build" / f"spark-{zlib.crc32(_INSTALLATION.encode())}"

# Spark's classes. `tests.spark.classes` writes the file.
CLASSES = _FOR_PYSPARK.with_suffix(".jsa")


def _spark_home() -> Path:
    """Return a SPARK_HOME whose `pyspark.zip` is a folder.

    Spark's Python processes import PySpark from that zip, and Python keeps no bytecode of modules in a zip: each
    process would compile them for 0.9 s.
    """
    home = _FOR_PYSPARK.with_suffix(".home")
    if not home.exists():
        made = home.with_suffix(f".{os.getpid()}")
        for archive in (_PYSPARK / "python" / "lib").glob("*.zip"):
            package = archive.name.partition("-")[0].removesuffix(".zip")
            folder = made / "python" / "lib" / archive.name
            folder.mkdir(parents=True)
            (folder / package).symlink_to(_PYSPARK.parent / package)
        for name in ("bin", "jars", "sbin"):
            (made / name).symlink_to(_PYSPARK / name)
        try:
            made.rename(home)
        except OSError:  # another process was first
            shutil.rmtree(made)
    return home


os.environ.setdefault("SPARK_HOME", str(_spark_home()))

# A shell starts a background job with Ctrl-C ignored, and the processes of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# JVMs of tests live for seconds: one compiler and one collector's thread take half of the default's processor time.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_mapped = f' "-XX:SharedArchiveFile={CLASSES}" -Xlog:disable' if CLASSES.exists() else ""
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS + _mapped)

# Machines are noisy, and a property does not depend on the duration of an example.
settings.register_profile("pubsub_spark", deadline=None)
settings.load_profile("pubsub_spark")


# The tests that take longer than ten seconds, the longest first.
_LONGEST = (
    "tests/production/test_job.py",
    "tests/simulation/test_simulation.py::test_histories",
    "tests/simulation/test_simulation.py::test_all_small_histories",
    "tests/spark/test_read_applications.py",
    "tests/production/test_standalone_cluster.py",
    "tests/spark/test_registration.py::test_stream_without_py_files_is_named",
    "tests/spark/test_docs.py::test_notebook_runs[3",
    "tests/faults/test_soak.py::test_query",
    "tests/spark/test_demo.py::test_demo_is_a_command",
    "tests/rpc/test_cli_docs.py::test_blocks",
    "tests/spark/test_sql.py::test_statements_run_in_the_shell",
    "tests/production/test_pinned_runtimes.py",
    "tests/faults/test_outages.py::test_message_is_read_soon",
    "tests/faults/test_emulator_kills.py",
)


_GRACE_SECONDS = 300.0  # for a teardown, which a loaded machine slows down


def pytest_collection() -> None:
    """Import the tests without a look for garbage: a quarter of the time, and all of it stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage again, but no longer among the tests and their modules."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the longest tests to the workers of xdist as their first. Each worker gets an equal share of the list."""
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    longest = [item for start in _LONGEST for item in items if item.nodeid.startswith(start)]
    others = [item for item in items if item not in longest]
    dealt: list[pytest.Item] = []
    for number in range(workers):
        first = longest[number::workers]
        share = (len(items) - len(dealt)) // (workers - number)  # as `--dist worksteal` does
        count = max(0, share - len(first))
        dealt += first + others[:count]
        del others[:count]
    items[:] = dealt + others


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Print the stack of each thread and end the process if a test exceeds its time limit by minutes."""
    _end_if_it_hangs(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item) -> None:
    """Limit the teardown of a failed test: pytest and pytest-timeout have both just taken their limits away."""
    _end_if_it_hangs(node)


def _end_if_it_hangs(item: pytest.Item) -> None:
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker else item.config.getini("timeout"))
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(limit + _GRACE_SECONDS, file=stderr, exit=True)


@pytest.fixture(autouse=True)
def _same_log() -> Iterator[None]:
    """A test that sets the level of the log, as a query with `logLevel` does, sets it for itself alone."""
    log = logging.getLogger("pubsub_spark")
    level, disabled = log.level, logging.root.manager.disable
    yield
    log.setLevel(level)
    logging.disable(disabled)


@dataclass(frozen=True)
class Names:
    """Short ids and full names of one test's resources."""

    project: str
    topic_id: str
    subscription_id: str
    schema_id: str

    @property
    def topic(self) -> str:
        return f"projects/{self.project}/topics/{self.topic_id}"

    @property
    def subscription(self) -> str:
        return f"projects/{self.project}/subscriptions/{self.subscription_id}"

    @property
    def schema(self) -> str:
        return f"projects/{self.project}/schemas/{self.schema_id}"


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Names:
    """Names made of the test's own, and never used before."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:60].strip("-")
    stem = f"{test}-{uuid.uuid4().hex[:8]}"
    return Names("test-project", f"{stem}-topic", f"{stem}-subscription", f"{stem}-schema")


@dataclass(frozen=True)
class Bucket:
    """A bucket of the test's own on an S3 server (moto) at this endpoint."""

    endpoint: str
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that tell obstore, like any S3 client, where the server is."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "anyone",
            "AWS_SECRET_ACCESS_KEY": "anything",
        }

    def names(self) -> list[str]:
        """The objects in the bucket, as S3 lists them."""
        with urllib.request.urlopen(f"{self.endpoint}/{self.name}?list-type=2") as answer:
            return re.findall("<Key>(.*?)</Key>", answer.read().decode())


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of an S3 server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(s3: str) -> Bucket:
    made = Bucket(s3, f"bucket-{uuid.uuid4().hex}")
    with urllib.request.urlopen(urllib.request.Request(f"{made.endpoint}/{made.name}", method="PUT")):
        return made


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """A Pub/Sub of the test's own on a free port."""
    from pubsub_spark.emulator import Emulator

    with Emulator() as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session: two cores, UTC, no UI, and Python workers that are this very Python with this very tree."""
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        patch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("pubsub_spark tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        yield session  # the sources register themselves (pyspark_pubsub), and 4.0 and 4.1 refuse a second time
        session.stop()
