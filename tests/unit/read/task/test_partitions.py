"""The partitions of a batch: a replay has those of the first time."""

from __future__ import annotations

from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store
from pubsub_spark.read.task.partitions import StagedPartition, replay_partitions

STAGING = Staging(open_store("memory:///"), "projects/p/subscriptions/sub", "stream")


def parts(staged: list[int]) -> list[list[int]]:
    return [list(partition.parts) for partition in replay_partitions(STAGING, 1, staged, None)]


def test_replay_has_the_partitions_of_the_first_time():
    """The driver stream's rows are in the first pull's. A task that staged nothing leaves its partition empty."""
    assert [[0, 1], [2], [3]] == parts([0, 1, 2, 3])
    assert [[0], [], [3]] == parts([0, 3])
    assert [[0]] == parts([0])
    assert [[]] == parts([])


def test_replayed_partition_has_the_number_of_its_last_part():
    """A task's record of a partition has the same name at each evaluation."""
    assert [1, 2] == [partition.part for partition in replay_partitions(STAGING, 1, [0, 1, 2], None)]


def test_replayed_partitions_name_the_reader_schema():
    """They are decoded with the schema of the first time."""
    assert [StagedPartition(STAGING, 1, [0], "schema")] == replay_partitions(STAGING, 1, [0], "schema")
