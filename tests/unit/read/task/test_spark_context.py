"""The number of tasks that Spark runs at once, by the settings that it has on each kind of cluster."""

import pytest

from pubsub_spark.read.task.spark_context import task_slots, told_by_spark

CLUSTERS = {
    "one core": ({"spark.master": "local"}, 1),
    "some cores": ({"spark.master": "local[3]"}, 3),
    "some cores, with retries": ({"spark.master": "local[3, 4]"}, 3),
    "all cores": ({"spark.master": "local[*]"}, 16),
    "local cluster": ({"spark.master": "local-cluster[3,2,1024]"}, 6),
    "two cores a task": ({"spark.master": "local-cluster[3,4,1024]", "spark.task.cpus": "2"}, 6),
    "YARN, whose executors have one core": ({"spark.master": "yarn", "spark.executor.instances": "5"}, 5),
    "Kubernetes": (
        {"spark.master": "k8s://https://a", "spark.executor.instances": "5", "spark.executor.cores": "4"},
        20,
    ),
    "Dataproc with dynamic allocation": (
        {
            "spark.master": "yarn",
            "spark.dynamicAllocation.enabled": "true",
            "spark.executor.instances": "2",
            "spark.dynamicAllocation.maxExecutors": "10",
            "spark.executor.cores": "4",
        },
        40,
    ),
    "dynamic allocation without an end": (
        {
            "spark.master": "yarn",
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.maxExecutors": "2147483647",
        },
        None,
    ),
    "standalone, whose executors have all cores": ({"spark.master": "spark://a:7077"}, None),
    "standalone with a limit": ({"spark.master": "spark://a:7077", "spark.cores.max": "12"}, 12),
    "parallelism alone": ({"spark.master": "unheard-of", "spark.default.parallelism": "7"}, 7),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("settings", "expected"), CLUSTERS.values(), ids=CLUSTERS)
def test_slots_are_those_of_the_cluster(settings: dict[str, str], expected: int | None):
    """Each kind of cluster says how many tasks run at once, or does not."""
    assert expected == task_slots(settings.get, cores=16)


def test_nothing_is_told_outside_of_a_task():
    """On the driver there is no task context, and a footer has no fields of it."""
    assert {} == told_by_spark()
