"""The options of an emulator, each declared once.

`Emulator(...)`, `serve`, the flags of `pubsub-spark emulator` and the table of docs/emulator-reference.md are made of
these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from pubsub_spark.declare import declare, suggest_keywords

FsyncPolicy = Literal["group", "call", "never"]
LogFormat = Literal["text", "json"]


@suggest_keywords
@dataclass(eq=False)
class EmulatorOptions:
    """The options of `Emulator(...)`. An unknown keyword is a TypeError that names the nearest option.

    tls: private key and certificate, both PEM. rest: whether the JSON API is served in addition to gRPC. remembered:
    how many acknowledged messages of a subscription `messages` still shows. on_failure: called on any thread after an
    exception on a background thread has ended the emulator.
    """

    host: str = declare("host", "string", "127.0.0.1", "The address to listen on.")
    port: int = declare("port", "integer", 0, "The port to listen on. 0 takes a free one.", low=0, high=65535)
    _: KW_ONLY
    data_dir: Path | str | None = declare(
        "data-dir", "folder", None, "Folder that keeps everything until the next start."
    )
    fsync: FsyncPolicy = declare(
        "fsync",
        "choice",
        "group",
        "When that folder must be on the disk: before a group of calls is answered, before each call is, or never.",
        choices=("group", "call", "never"),
    )
    allow_hosts: Collection[str] = declare(
        "allow-host", "list", (), "A host name with a dot that browsers may use for the page and `/_emulator/`."
    )
    allow_origins: Collection[str] = declare(
        "allow-origin", "list", (), "A site, such as http://localhost:3000, whose pages may call the JSON API (CORS)."
    )
    record: bool = declare("record", "boolean", False, "Keep every call with its metadata, for `calls`.")
    allow_well_known_imports: bool = declare(
        "allow-well-known-imports",
        "boolean",
        False,
        "Protobuf schemas may import `google/protobuf/*.proto`, which Pub/Sub does not support.",
    )
    storage_root: Path | str | None = declare(
        "storage-root", "url", None, "Folder of buckets, gs:// or s3://, for Cloud Storage subscriptions and ingestion."
    )
    bigquery_root: Path | str | None = declare(
        "bigquery-root", "folder", None, "Folder of DuckDB files, one for each project, for BigQuery subscriptions."
    )
    bigquery_endpoint: str | None = declare(
        "bigquery-endpoint", "url", None, "A server of BigQuery's REST API, instead of those files."
    )
    kinesis_endpoint: str | None = declare(
        "kinesis-endpoint", "url", None, "A server of Kinesis' API (moto) that topics ingest from."
    )
    kafka_endpoint: str | None = declare(
        "kafka-endpoint", "address", None, "A Kafka broker, which stands for Event Hubs, MSK and Confluent Cloud."
    )
    kafka_config: Path | str | None = declare(
        "kafka-config", "file", None, "librdkafka's settings for TLS or a login there, `name=value` a line."
    )
    tls: tuple[bytes, bytes] | None = None
    rest: bool = True
    remembered: int = 10_000
    on_failure: Callable[[], object] = lambda: None


@suggest_keywords
@dataclass(eq=False)
class ServeOptions(EmulatorOptions):
    """The options of an emulator that is a process of its own."""

    port: int = declare("port", "integer", 8085, "The port to listen on. 0 takes a free one.", low=0, high=65535)
    _: KW_ONLY
    config: Path | None = declare(
        "config", "file", None, "YAML file of topics, subscriptions and schemas, or an AsyncAPI document."
    )
    seed: int | None = declare(
        "seed", "integer", None, "Chaos: reorder, redeliver, end leases early. The same seed makes the same choices."
    )
    verbose: bool = declare(
        "verbose", "boolean", False, "Log every call, its resource, messages and duration, to standard error."
    )
    log_format: LogFormat = declare(
        "log-format", "choice", "text", "Lines of text, or of JSON.", choices=("text", "json")
    )
