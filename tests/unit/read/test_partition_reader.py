"""A task's side: the lease of its pull, and the error for a part that cannot be given again."""

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pubsub_spark.errors import StagingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.task import partition_reader
from pubsub_spark.read.task.partitions import DriverPartition, PullPartition, StagedPartition
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store
from tests.unit.read.service import SUBSCRIPTION, Service, part

NOBODY: Any = None  # a backend that is not asked


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    made = Staging(open_store(str(tmp_path)), SUBSCRIPTION, uuid.uuid4().hex)
    made.write_token()
    return made


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"subscriptionId": SUBSCRIPTION, **given}, {})


@pytest.mark.parametrize(("period", "seconds"), [("2s", 60), ("15s", 60), ("60s", 150)])
def test_lease_outlasts_the_pull(period: str, seconds: int):
    """The lease is twice as long as a pull may take, and half a minute longer."""
    assert seconds == partition_reader.pull_lease_seconds(options(maxFetchPeriod=period))


def test_part_that_is_gone_is_a_sentence(staging: Staging):
    """A replay without its rows would lose them silently."""
    with pytest.raises(StagingError, match=r"1/part-2` is gone from .* Its messages were not acknowledged"):
        list(partition_reader.read(StagedPartition(staging, 1, [2]), options(), NOBODY))


def test_malformed_payloads_are_counted_once_for_each_part(staging: Staging):
    """The malformed payloads of a part are counted once, however often it is read."""
    for each in (DriverPartition(staging, 1, b""), StagedPartition(staging, 1, [2]), StagedPartition(staging, 1, [2])):
        partition_reader.count_malformed(each, 3)
    staging.create("1/part-0", [b"no count"])

    assert 6 == staging.malformed(1)
    assert 0 == staging.malformed(2)


def test_each_attempt_has_a_client_id_of_its_own(staging: Staging):
    """A speculative, retried or zombie attempt must not take over the stream state of another, as the API asks."""
    service = Service()
    backend: Any = SimpleNamespace(connect=lambda: service)
    partition = PullPartition(staging, 1, 1, 10, 10**6)
    for _ in range(3):
        staging.create("1/part-0", part([]))
        list(partition_reader.read(partition, options(idleTimeout="50ms"), backend))
        staging.delete("1/")  # as if the attempts had pulled at the same time

    names = [opening.client_id for opening in service.openings]
    assert (3, 3) == (len(names), len(set(names)))
