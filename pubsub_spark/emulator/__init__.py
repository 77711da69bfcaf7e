"""A Pub/Sub server in pure Python: google.pubsub.v1 for tests and for a laptop, in process or on a port.

    with Emulator() as emulator:
        os.environ["PUBSUB_EMULATOR_HOST"] = emulator.endpoint

The layers, from the outside in. Each layer imports only those below it:

    page       the web page: views, forms, live charts
    transport  listener (one port, two protocols), grpc_server, http_app and transcoding (JSON), verbs, event_loop
    rpc        dispatcher, registry (the handler of each RPC), context, interceptors, status
    handlers   publisher, subscriber, streaming_pull, snapshots, schemas, iam: parse, check, ask the broker once, reply
    resources  the rules of resources: validation, limits, field masks, pagination, filters
    runtime    engine (the one lock, the waking of consumers), clock, faults
    state      broker, subscription, its queues, leases, message, events: pure, without lock and clock
    api        protobuf messages, the table of RPCs and their HTTP routes, errors

`sinks`, which push, export and ingest, are above runtime and state, `metrics` also above rpc. Of the rest of the
package the emulator imports only `names`, `memory`, `declare` and `schema`.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pubsub_spark.emulator.emulator import Emulator
    from pubsub_spark.emulator.records import Record
    from pubsub_spark.emulator.rpc.interceptors import Recorded

__all__ = ["Emulator", "Record", "Recorded"]

_MODULES = {"Emulator": "emulator", "Record": "records", "Recorded": "rpc.interceptors"}
_PACKAGES = ("h11", "starlette", "uvicorn", "yaml")  # of the extra `emulator`


def __getattr__(name: str) -> Any:
    """Import on first use, because pytest loads the plugin even if it is not used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Processes that are started next to an emulator (Spark's JVM) would sometimes die in gRPC's handlers of forks.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    for package in _PACKAGES:  # some are imported only when they are needed
        if find_spec(package) is None:
            raise ModuleNotFoundError(
                f"The emulator needs `{package}`. Install pubsub-spark with its extra `emulator`.", name=package
            )
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
