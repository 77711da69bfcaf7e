"""The job of examples/job.py as in production: TLS, tokens that expire, a bucket that refuses requests, two kills."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import fastavro
import grpc
import pyarrow.parquet as pq
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from tests.conftest import ROOT, Bucket, Names
from tests.production.front import Rig
from tests.rpc.conftest import Client
from tests.spark.application import LOCAL_CONF, Application
from tests.spark.scenario import LEASE, until
from tests.unit.read.staging.object_store import Faults, with_faults

_SCHEMA = (ROOT / "examples" / "flight.avsc").read_text()
_PARSED = fastavro.parse_schema(json.loads(_SCHEMA))
_OPTIONS = ["maxMessagesPerTrigger=500", "idleTimeout=500ms", "maxFetchPeriod=1s"]
_BOUND = 400  # seconds of a wait: a loaded machine is no failure


class Job(Application):
    """examples/job.py and its output."""

    @property
    def dead_letters(self) -> str:
        return f"{self.names.topic}-dead-letters"

    def begin(self, staging: str) -> None:
        """Start a new driver on the old checkpoint."""
        places = {name: str(self.folder / name) for name in ("table", "checkpoint", "metrics")}
        places |= {"subscription": self.names.subscription, "staging": staging, "dead-letters": self.dead_letters}
        given = [f"--{name}={value}" for name, value in places.items()]
        given += ["--trigger=0 seconds", *(f"--option={option}" for option in _OPTIONS)]
        self.run([sys.executable, str(ROOT / "examples" / "job.py"), *given])

    def batches(self) -> set[str]:
        """Return numbers of the batches that are written."""
        return {path.parent.name.removeprefix("batch=") for path in self.folder.glob("table/query=*/batch=*/_SUCCESS")}

    def committed(self) -> set[str]:
        """Return numbers of the batches that Spark has committed."""
        return {path.name for path in self.folder.glob("checkpoint/commits/[0-9]*")}

    def rows(self) -> list[tuple[str, int]]:
        """Return message ids and flights, as any reader of the folder finds them."""
        files = self.folder.glob("table/query=*/batch=*/*.parquet")
        return [(row["message_id"], row["flight"]) for file in files for row in pq.read_table(file).to_pylist()]


@pytest.fixture
def faults(bucket: Bucket) -> Iterator[Faults]:
    with with_faults(bucket.endpoint) as running:
        yield running


@pytest.fixture
def job(emulator: Emulator, names: Names, bucket: Bucket, faults: Faults, rig: Rig, tmp_path: Path) -> Iterator[Job]:
    made = Job(emulator, names, tmp_path)
    rig.use(rig.external_account(impersonate=True))
    conf = " ".join(f"--conf {name}={value}" for name, value in LOCAL_CONF.items())
    made.environment = {
        **Bucket(faults.endpoint, bucket.name).environment,
        **rig.environment,
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] {conf} pyspark-shell",
    }
    for topic, subscription in (names.topic, names.subscription), (made.dead_letters, f"{names.subscription}-dead"):
        emulator.create_topic(topic)
        emulator.create_subscription(subscription, topic)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def payload(flight: int) -> bytes:
    """Return a flight in Avro's binary encoding."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _PARSED, {"carrier": "UA", "flight": flight, "tailnum": None, "dep_delay": 2.0})
    return out.getvalue()


@pytest.mark.timeout(6 * _BOUND)  # three drivers, one after the other
@pytest.mark.parametrize("hundreds", [2, pytest.param(10, marks=pytest.mark.production)])
@pytest.mark.long
def test_killed_job_loses_and_repeats_nothing(job: Job, bucket: Bucket, faults: Faults, rig: Rig, hundreds: int):
    """Two kill -9, 5 % of the bucket's answers 503: each flight is in the table once, other payloads are dead letters.

    Pub/Sub is behind TLS and checks tokens. They are valid for 10 s, and a stream ends with its token. The topic got
    its schema after the first messages, so that some of them do not match it. The first are more than the driver's
    stream has room for, so that tasks pull as well.
    """
    emulator, names, good, bad = job.emulator, job.names, dict[str, int](), set[str]()

    def publish(flights: range) -> None:
        good.update(zip(emulator.publish(names.topic, *map(payload, flights)), flights, strict=True))

    def begin() -> None:
        job.begin(f"{bucket.url}/staging")

    def wait(condition: Callable[[], object]) -> None:
        """Wait for a condition, as long as the job runs."""

        def holds() -> object:
            assert job.process is not None
            result = condition()
            if not result and job.process.poll() is not None:
                # Spark waits 10 s for a Python worker, which a loaded machine exceeds. A supervisor starts the job
                # again.
                assert "Python worker failed to connect back" in job.log.read_text(), job.log.read_text()[-3000:]
                begin()
            return result

        until(holds, lambda: job.log.read_text()[-3000:], seconds=_BOUND)

    more = 100 * hundreds
    for start in range(0, 1000 + more, 100):
        publish(range(start, start + 100))
        bad.update(emulator.publish(names.topic, "no flight", b"\x06UA"))
    emulator.create_schema(names.schema, "AVRO", _SCHEMA)
    client = Client(emulator.endpoint)
    settings = protos.SchemaSettings(schema=names.schema, encoding="BINARY")
    topic = protos.Topic(name=names.topic, schema_settings=settings)
    client.ask("Publisher/UpdateTopic", topic=topic, update_mask={"paths": ["schema_settings"]})
    faults.fault_each = 20
    rig.tokens.lifetime = 10.0
    rig.front.ends_streams = grpc.StatusCode.UNAUTHENTICATED

    begin()
    wait(job.committed)
    number = str(max(map(int, job.committed())) + 2)
    taken = job.folder / "checkpoint" / "commits" / number  # so that Spark writes the batch and cannot commit it
    taken.mkdir()
    wait(lambda: str(int(number) - 1) in job.committed())
    publish(range(2000, 2000 + more))  # a batch with this number, if there was none yet
    wait(lambda: number in job.batches())
    job.kill()
    taken.rmdir()
    publish(range(3000, 3000 + more))
    emulator.advance(LEASE)
    begin()
    before = len(job.committed())
    wait(lambda: len(job.committed()) > before)
    publish(range(4000, 4000 + more))
    before = len(job.committed())
    wait(lambda: list(job.folder.glob("table/query=*/batch=*/_temporary")) or len(job.committed()) > before)
    job.kill()
    emulator.advance(LEASE)
    begin()
    wait(lambda: emulator.backlog(names.subscription) == 0 and rig.front.ended)
    client.ask("Subscriber/DeleteSubscription", subscription=names.subscription)
    client.channel.close()
    assert job.process is not None
    job.process.wait(_BOUND)

    alert = f"ERROR job: query pubsub-to-table failed: Subscription `{names.subscription}` does not exist"
    assert alert in job.log.read_text()
    assert "threw an exception" not in job.log.read_text(), "the listener"
    assert "is Parquet. Add Delta's jar" in job.log.read_text()
    assert {f"query={json.loads((job.folder / 'checkpoint' / 'metadata').read_text())['id']}"} == {
        path.name for path in (job.folder / "table").iterdir()
    }
    assert Counter(good.items()) == Counter(job.rows())
    letters = emulator.messages(f"{names.subscription}-dead")
    assert bad == {letter.attributes["pubsub_spark_message_id"] for letter in letters}
    assert not rig.front.refused
    assert rig.front.ended > 0
    assert {"StreamingPull", "Acknowledge", "Publish", "GetTopic", "GetSchema"} <= rig.methods().keys()
    assert rig.proxy.asked.keys() >= {"pubsub.googleapis.com", "sts.googleapis.com", "iamcredentials.googleapis.com"}
    [metrics] = (job.folder / "metrics").iterdir()
    assert re.search(r"(?m)^pubsub_spark_messages_total\{.*\} [1-9]", metrics.read_text())
