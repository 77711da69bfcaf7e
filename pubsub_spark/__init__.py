"""Apache Spark's connector for Google Cloud Pub/Sub, on PySpark's Python Data Source API.

A map of this package, in the order of the data (the ack takes the same path backwards); docs/design.md has the why:

    source     PubSubDataSource: name, schema, readers and writers
    options    every option once          errors  the hierarchy, drawn          names  resource names
    service_options   those that reading and writing share, and their parsing
    backend/   which Pub/Sub: GCP or an emulator; channel, credentials, the hot calls, the rest
    read/      session (the driver's side: start here), stream_reader, offset, partitions, driver_stream
               partition_reader (a task's side), pull, streaming_pull, staging, staged_part
               leases (pure), ack_worker, acks, lease_extender, deduplication, recent_ids, claims
               batch_reader (`spark.read`)
    codec/     columns of a message; Avro and Protobuf payloads
    write/     writer (start here), plan (driver), data_writer (a task), column_mapping, messages, row_encoder
               request_queue (pure), publisher, retry_scheduler, metrics, summary
    publish/   limits, dead_letters, requests: pure, for `write/` and for the dead letters of `read/`
    emulator/  a Pub/Sub server in pure Python (of its own; the connector never imports it)
    registration  `register(spark)`, for sessions that do not find the source by themselves
    table_function  SQL's `read_pubsub(...)`
    cli/       the `pubsub-spark` command        memory  how a long-lived process keeps memory
    slices     ranges of a column, bounded in entries and bytes
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .registration import register
    from .source import PubSubDataSource

__all__ = ["PubSubDataSource", "__version__", "register"]

try:
    __version__ = version("pubsub-spark")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "unknown"


def __getattr__(name: str) -> Any:
    """`register` and `PubSubDataSource`, imported when they are first asked for: they need PySpark."""
    if name == "register":
        from .registration import register

        return register
    if name == "PubSubDataSource":
        from .source import PubSubDataSource

        return PubSubDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
