"""A Google Cloud Pub/Sub connector for Apache Spark, on PySpark's Python Data Source API.

The map, in the order of the data. Acks take the same path backwards. docs/design.md has the reasons:

    registration     `register(spark)`, for sessions that do not find the source by themselves
    source           `PubSubDataSource`: name, schema, readers and writers
    table_function   SQL's `read_pubsub(...)`
    options          every option once. `service_options`: those of reading and writing. `declare`: their parsing
    asyncapi/        options and resources from an AsyncAPI document
    backend/         the only importer of Google's client: channel, credentials, hot calls, admin calls
    read/            subscription to rows. Start with `driver/query_driver` and `driver/ledger`
    codec/           columns of a message, and Avro, Protobuf and JSON payloads as columns
    schema/          schemas of Pub/Sub: parsing, validation, compatibility
    write/           rows to messages. Start with `writer`
    publish/         limits, dead letters and requests (pure), for `write/` and the dead letters of `read/`
    cli/, demo/      the `pubsub-spark` command, and its demo
    emulator/        a Pub/Sub server in pure Python. The connector never imports it
    errors, logs     the hierarchy of errors, and the log of a process
    names, slices    resource names, and ranges of a column bounded in entries and bytes
    memory           malloc and garbage collection of long-lived processes
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str

    from .registration import register
    from .source import PubSubDataSource

__all__ = ["PubSubDataSource", "__version__", "register"]

if not TYPE_CHECKING:  # a type checker would take any name

    def __getattr__(name: str) -> object:
        """Import a name of `__all__` on first use: two need PySpark, and the version needs `importlib.metadata`."""
        if name == "register":
            from .registration import register

            return register
        if name == "PubSubDataSource":
            from .source import PubSubDataSource

            return PubSubDataSource
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("pubsub-spark")
            except PackageNotFoundError:  # a source tree that was never installed
                return "unknown"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
