"""A Spark application of its own, for scenarios that need another master, or that kill the whole driver.

    python -m tests.spark.driver '{"endpoint": ..., "subscription": ..., "folder": ..., "master": "local[2]"}'

Reads the subscription into Parquet under `folder/sink`, checkpoint and staging next to it, until the query ends or the
process is killed. `remote` in place of `master` makes it a Spark Connect application. With `gate`, a folder, tasks that
have rows say so there and wait until it has a file `open`. Prints the error, if any.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from pubsub_spark import register
from tests.spark.scenario import through


def main(given: dict[str, Any]) -> None:
    folder = given["folder"]
    builder = SparkSession.builder.appName("pubsub_spark scenario")
    if "remote" in given:
        builder = builder.remote(given["remote"])
    else:
        builder = builder.master(given["master"])
    for name, value in given.get("conf", {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if "remote" in given:
        register(session)
    options = {
        "subscriptionId": given["subscription"],
        "endpoint": given["endpoint"],
        "stagingLocation": f"{folder}/staging",
        "numFetchPartitions": "2",
        "idleTimeout": "500ms",
        "maxFetchPeriod": "1s",
        **given.get("options", {}),
    }
    options = {name: value for name, value in options.items() if value is not None}
    rows = session.readStream.format("pubsub").options(**options).load()
    if "gate" in given:
        rows = rows.mapInArrow(partial(through, given["gate"]), "data binary")
    query = (
        rows.selectExpr("cast(data as string) as text")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(**given.get("trigger", {"availableNow": True}))
        .start(f"{folder}/sink")
    )
    try:
        query.awaitTermination()
    finally:
        if "remote" in given:
            session.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
