"""Spark's context of a task: the batch, and from the application's settings the number of tasks that run at once.

Spark tells the driver-side Python process nothing about the cluster. A task of a streaming query has the application's
settings as its local properties, and reports to the driver in the footer of its part.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from pyspark import TaskContext

_BATCH_ID_PROPERTY = "streaming.sql.batchId"

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[(\d+),(\d+),\d+\]")


def told_by_spark() -> dict[str, int | None]:
    """Return Spark's batchId and the tasks that run at once, as fields of a footer, or {} outside of a task."""
    context = TaskContext.get()
    if context is None:
        return {}
    batch = context.getLocalProperty(_BATCH_ID_PROPERTY)
    slots = task_slots(context.getLocalProperty, os.cpu_count() or 1)
    return {"spark_batch": int(batch) if batch else None, "task_slots": slots}


def task_slots(setting: Callable[[str], str | None], cores: int) -> int | None:
    """Return the number of tasks that run at once, or None if the settings do not say.

    setting: returns the value of a setting of Spark, or None. cores: of this machine, for `local[*]`.
    https://spark.apache.org/docs/latest/configuration.html
    """
    master = (setting("spark.master") or "").replace(" ", "")
    if match := _LOCAL.fullmatch(master):
        return cores if match[1] == "*" else int(match[1] or 1)
    per_task = _number(setting("spark.task.cpus")) or 1
    if match := _LOCAL_CLUSTER.fullmatch(master):
        return int(match[1]) * max(1, int(match[2]) // per_task)
    executors = _number(setting("spark.executor.instances"))
    if setting("spark.dynamicAllocation.enabled") == "true":  # tasks that wait for a slot bring executors up to this
        executors = _number(setting("spark.dynamicAllocation.maxExecutors")) or executors
    of_executor = _number(setting("spark.executor.cores")) or (None if master.startswith("spark:") else 1)
    if executors and of_executor:
        return executors * max(1, of_executor // per_task)
    if most := _number(setting("spark.cores.max")):
        return max(1, most // per_task)
    return _number(setting("spark.default.parallelism"))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) < 2**31 - 1 else None
