"""The job of examples/job.py, killed in the middle of its work, with a staging bucket that refuses requests."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fastavro
import pyarrow.parquet as pq
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from tests.conftest import ROOT, Bucket, Names
from tests.rpc.conftest import Client
from tests.spark.application import LOCAL_CONF, Application
from tests.spark.scenario import LEASE, until
from tests.unit.read.staging.object_store import Faults, s3_with_faults

_SCHEMA = (ROOT / "examples" / "flight.avsc").read_text()
_PARSED = fastavro.parse_schema(json.loads(_SCHEMA))
_OPTIONS = ["maxMessagesPerTrigger=500", "idleTimeout=500ms", "maxFetchPeriod=1s"]


class Job(Application):
    """examples/job.py, with what it has written."""

    @property
    def dead_letters(self) -> str:
        return f"{self.names.topic}-dead-letters"

    def begin(self, staging: str) -> None:
        """A new driver on the old checkpoint."""
        places = {name: str(self.folder / name) for name in ("table", "checkpoint", "metrics")}
        places |= {"subscription": self.names.subscription, "staging": staging, "dead-letters": self.dead_letters}
        given = [f"--{name}={value}" for name, value in places.items()]
        given += ["--trigger=0 seconds", *(f"--option={option}" for option in _OPTIONS)]
        self.run([sys.executable, str(ROOT / "examples" / "job.py"), *given])

    def batches(self) -> set[str]:
        """Numbers of the batches that are written."""
        return {path.parent.name.removeprefix("batch=") for path in self.folder.glob("table/query=*/batch=*/_SUCCESS")}

    def committed(self) -> set[str]:
        """Numbers of the batches that Spark has committed."""
        return {path.name for path in self.folder.glob("checkpoint/commits/[0-9]*")}

    def rows(self) -> list[tuple[str, int]]:
        """Message ids and flights, as any reader of the folder finds them."""
        files = self.folder.glob("table/query=*/batch=*/*.parquet")
        return [(row["message_id"], row["flight"]) for file in files for row in pq.read_table(file).to_pylist()]


@pytest.fixture
def faults() -> Iterator[Faults]:
    with s3_with_faults() as running:
        yield running


@pytest.fixture
def job(emulator: Emulator, names: Names, bucket: Bucket, faults: Faults, tmp_path: Path) -> Iterator[Job]:
    made = Job(emulator, names, tmp_path)
    conf = " ".join(f"--conf {name}={value}" for name, value in LOCAL_CONF.items())
    made.environment = {
        **Bucket(faults.endpoint, bucket.name).environment,
        "PUBSUB_EMULATOR_HOST": emulator.endpoint,
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] {conf} pyspark-shell",
    }
    for topic, subscription in (names.topic, names.subscription), (made.dead_letters, f"{names.subscription}-dead"):
        emulator.create_topic(topic)
        emulator.create_subscription(subscription, topic)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def payload(flight: int) -> bytes:
    """A flight in Avro's binary encoding."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _PARSED, {"carrier": "UA", "flight": flight, "tailnum": None, "dep_delay": 2.0})
    return out.getvalue()


@pytest.mark.timeout(600)  # three drivers, one after the other
def test_killed_job_loses_and_repeats_nothing(job: Job, bucket: Bucket, faults: Faults):
    """Two kill -9, 5 % of the bucket's answers 503: each flight is in the table once, other payloads are dead letters.

    The topic got its schema after the first messages, so that some of them do not match it.
    """
    emulator, names, good, bad = job.emulator, job.names, dict[str, int](), set[str]()

    def publish(flights: range) -> None:
        good.update(zip(emulator.publish(names.topic, *map(payload, flights)), flights, strict=True))

    def log() -> str:
        return job.log.read_text()[-3000:]

    def begin() -> None:
        job.begin(f"{bucket.url}/staging")

    for start in range(0, 2000, 100):
        publish(range(start, start + 100))
        bad.update(emulator.publish(names.topic, "no flight", b"\x06UA"))
    emulator.create_schema(names.schema, "AVRO", _SCHEMA)
    client = Client(emulator.endpoint)
    settings = protos.SchemaSettings(schema=names.schema, encoding="BINARY")
    topic = protos.Topic(name=names.topic, schema_settings=settings)
    client.ask("Publisher/UpdateTopic", topic=topic, update_mask={"paths": ["schema_settings"]})
    client.channel.close()
    faults.refuse_each = 20

    begin()
    until(job.committed, log, seconds=180)
    number = str(max(map(int, job.committed())) + 2)
    taken = job.folder / "checkpoint" / "commits" / number  # so that Spark writes the batch and cannot commit it
    taken.mkdir()
    until(lambda: number in job.batches(), log, seconds=180)
    job.kill()
    taken.rmdir()
    publish(range(2000, 3000))
    emulator.advance(LEASE)
    begin()
    before = len(job.committed())
    until(lambda: len(job.committed()) > before, log, seconds=180)
    publish(range(3000, 4000))
    until(
        lambda: list(job.folder.glob("table/query=*/batch=*/_temporary")) or len(job.committed()) > 6, log, seconds=180
    )
    job.kill()
    emulator.advance(LEASE)
    begin()
    until(lambda: emulator.backlog(names.subscription) == 0, log, seconds=180)

    assert "threw an exception" not in job.log.read_text(), "the listener"
    assert "is Parquet. Add Delta's jar" in job.log.read_text()
    assert {f"query={json.loads((job.folder / 'checkpoint' / 'metadata').read_text())['id']}"} == {
        path.name for path in (job.folder / "table").iterdir()
    }
    assert Counter(good.items()) == Counter(job.rows())
    letters = emulator.messages(f"{names.subscription}-dead")
    assert bad == {letter.attributes["pubsub_spark_message_id"] for letter in letters}
    [metrics] = (job.folder / "metrics").iterdir()
    assert re.search(r"(?m)^pubsub_spark_messages_total\{.*\} [1-9]", metrics.read_text())
