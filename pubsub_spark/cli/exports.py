"""The flags of `subscriptions create` for exports, to Cloud Storage and to BigQuery, under gcloud's names."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from .command import exit_with, seconds


class OutputFormat(StrEnum):
    TEXT = "text"
    AVRO = "avro"


def _size(text: str) -> int:
    from ..declare import size

    try:
        return size(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, got `{text}`") from None


def _text(metavar: str, said: str) -> Any:
    return Annotated[str | None, typer.Option(metavar=metavar, help=said)]


def _flag(said: str) -> Any:
    return Annotated[bool | None, typer.Option(help=said)]


# Parameter -> its type (`cloud_storage_bucket` is the flag `--cloud-storage-bucket`).
FLAGS: Mapping[str, Any] = {
    "cloud_storage_bucket": _text("BUCKET", "Write messages as objects into this bucket, as the next flags say."),
    "cloud_storage_file_prefix": _text("TEXT", "The beginning of each object's name."),
    "cloud_storage_file_suffix": _text("TEXT", "The end of each object's name."),
    "cloud_storage_file_datetime_format": _text("FORMAT", "The datetime in it, such as YYYY-MM-DD/hh_mm_ssZ."),
    "cloud_storage_max_duration": Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="DURATION", help="End an object after this time (1m to 10m)."),
    ],
    "cloud_storage_max_bytes": Annotated[
        int | None, typer.Option(parser=_size, metavar="SIZE", help="End an object at this size (1k to 10g).")
    ],
    "cloud_storage_max_messages": Annotated[
        int | None, typer.Option(min=1000, help="End an object at this number of messages.")
    ],
    "cloud_storage_output_format": Annotated[OutputFormat | None, typer.Option(help="The content of objects.")],
    "cloud_storage_write_metadata": _flag("With Avro: also write message ids, publish times and attributes."),
    "cloud_storage_use_topic_schema": _flag("With Avro: the fields of the topic's schema."),
    "cloud_storage_service_account_email": _text("EMAIL", "The service account that writes."),
    "bigquery_table": _text("PROJECT.DATASET.TABLE", "Write messages as rows into this table, as the next flags say."),
    "use_topic_schema": _flag("Columns are the fields of the topic's schema."),
    "use_table_schema": _flag("Columns are the fields of JSON messages."),
    "write_metadata": _flag("Also write columns for subscription, message id, publish time and attributes."),
    "drop_unknown_fields": _flag("Leave out fields without a column, instead of failing."),
    "bigquery_service_account_email": _text("EMAIL", "The service account that writes."),
}
_CLOUD_STORAGE = {
    "cloud_storage_file_prefix": "filename_prefix",
    "cloud_storage_file_suffix": "filename_suffix",
    "cloud_storage_file_datetime_format": "filename_datetime_format",
    "cloud_storage_max_bytes": "max_bytes",
    "cloud_storage_max_messages": "max_messages",
    "cloud_storage_service_account_email": "service_account_email",
}
_AVRO = {"cloud_storage_write_metadata": "write_metadata", "cloud_storage_use_topic_schema": "use_topic_schema"}
_BIGQUERY = {
    "use_topic_schema": "use_topic_schema",
    "use_table_schema": "use_table_schema",
    "write_metadata": "write_metadata",
    "drop_unknown_fields": "drop_unknown_fields",
    "bigquery_service_account_email": "service_account_email",
}


def config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field of Subscription that the flags set, empty without an export."""
    flags = {name: value for name, value in options.items() if value is not None}
    bucket, table = flags.pop("cloud_storage_bucket", None), flags.pop("bigquery_table", None)
    _check(flags, bucket, table)
    if table is not None:
        return {"bigquery_config": {"table": table, **_named(flags, _BIGQUERY)}}
    if bucket is None:
        return {}
    export = {"bucket": bucket, **_named(flags, _CLOUD_STORAGE)}
    if "cloud_storage_max_duration" in flags:
        export["max_duration"] = datetime.timedelta(seconds=flags["cloud_storage_max_duration"])
    if flags.get("cloud_storage_output_format") is OutputFormat.AVRO:
        export["avro_config"] = _named(flags, _AVRO)
    return {"cloud_storage_config": export}


def _check(flags: Mapping[str, Any], bucket: str | None, table: str | None) -> None:
    if bucket is not None and table is not None:
        exit_with("`--cloud-storage-bucket` and `--bigquery-table` exclude each other.", 2)
    is_avro = flags.get("cloud_storage_output_format") is OutputFormat.AVRO
    for name in flags:
        flag = f"--{name.replace('_', '-')}"
        if name in _BIGQUERY and table is None:
            exit_with(f"`{flag}` needs `--bigquery-table`.", 2)
        if name not in _BIGQUERY and bucket is None:
            exit_with(f"`{flag}` needs `--cloud-storage-bucket`.", 2)
        if name in _AVRO and not is_avro:
            exit_with(f"`{flag}` needs `--cloud-storage-output-format avro`.", 2)


def _named(flags: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: flags[name] for name, field in names.items() if name in flags}
