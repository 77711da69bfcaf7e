"""A query in a process of its own, whose environment says where Google Cloud is: `python -m tests.production.query`.

gRPC reads the CA of TLS once in a process. `Engine` plays Spark. The arguments are options of a read. Each committed
batch is a line of JSON on standard output. An error that ends the query is the last line.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
from typing import Any

from pubsub_spark.backend import Backend, from_options
from pubsub_spark.errors import PubSubError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from tests.engine import Engine
from tests.servers import Remote


class Query(Engine):
    """A query on the Pub/Sub that the options name, in place of an emulator."""

    @property
    def backend(self) -> Backend:  # type: ignore[override]
        return from_options(self.options)


def _say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run until SIGTERM or an error."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    options = ReadOptions.parse(dict(argument.split("=", 1) for argument in sys.argv[1:]), os.environ)
    with tempfile.TemporaryDirectory() as staging:
        query = Query(Remote(""), options, staging, budget=Budget(10_000, 10**8))  # type: ignore[arg-type]
        query.start()
        try:
            while not stopped:
                if query.trigger():
                    _say(query.written[query.committed - 1])
                time.sleep(0.02)
        except PubSubError as error:
            _say({type(error).__name__: str(error)})
        query.stop()


if __name__ == "__main__":
    main()
