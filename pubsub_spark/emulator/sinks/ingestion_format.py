"""The messages in an object that is ingested from Cloud Storage, and which objects a glob means. Pure.

text          the text between delimiters; the last delimiter may be missing
Avro          each record of the file, in Avro's binary encoding
Pub/Sub Avro  data and attributes of each record, as a Cloud Storage subscription with metadata has written them
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import fastavro

from pubsub_spark.emulator.sinks.ingestion_source import IngestedMessage

# A glob of Cloud Storage, piece by piece: what stands for it in a regular expression.
_GLOB = re.compile(r"(\*\*/)|(\*\*)|(\*)|(\?)|(\[[^\]]+\])|\{([^{}]*)\}|(.)", re.DOTALL)


def messages(settings: Any, content: bytes) -> Iterator[IngestedMessage]:
    """The messages in an object, by the CloudStorage settings of a topic; ValueError where it is of another format."""
    kind = settings.WhichOneof("input_format")
    if kind == "avro_format":
        return _avro(content)
    if kind == "pubsub_avro_format":
        return _pubsub_avro(content)
    delimiter = settings.text_format.delimiter or "\n"
    return (IngestedMessage(each, {}) for each in content.split(delimiter.encode()) if each)


def _avro(content: bytes) -> Iterator[IngestedMessage]:
    try:
        records = fastavro.reader(BytesIO(content), return_named_type=True)
        for record in records:
            data = BytesIO()
            fastavro.schemaless_writer(data, records.writer_schema, record)
            yield IngestedMessage(data.getvalue(), {})
    except Exception as problem:
        raise _no_avro(problem) from None


def _pubsub_avro(content: bytes) -> Iterator[IngestedMessage]:
    try:
        for record in fastavro.reader(BytesIO(content)):
            if not isinstance(record, dict) or not isinstance(record.get("data"), bytes):
                raise ValueError("its records have no `data`, as those of a Cloud Storage subscription have")
            yield IngestedMessage(record["data"], dict(record.get("attributes") or {}))
    except Exception as problem:
        raise _no_avro(problem) from None


def _no_avro(problem: Exception) -> ValueError:
    """The error of fastavro, zlib or a codec about bytes that are no Avro file, of whatever class."""
    return ValueError(str(problem) or type(problem).__name__)


def glob_pattern(glob: str) -> re.Pattern[str]:
    """The names that a glob means; an empty one means all.

    `*` and `?` stop at a slash, `**` does not; `[abc]`, `[!abc]` and `{one,other}` are as in Cloud Storage.
    """
    return re.compile("".join(map(_regex, _GLOB.finditer(glob or "**"))), re.DOTALL)


def _is_regex(text: str) -> bool:
    """Whether it can be compiled, as `[z-a]` cannot."""
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _regex(piece: re.Match[str]) -> str:
    folders, anything, segment, character, group, choices, literal = piece.groups()
    if folders:
        return "(?:.*/)?"
    if anything:
        return ".*"
    if segment:
        return "[^/]*"
    if character:
        return "[^/]"
    if group:
        inside = group[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        pattern = f"[^{inside[1:]}]" if inside[0] == "!" and len(inside) > 1 else f"[{inside}]"
        return pattern if _is_regex(pattern) else re.escape(group)
    if choices is not None:
        return f"(?:{'|'.join(glob_pattern(each).pattern if each else '' for each in choices.split(','))})"
    return re.escape(literal)
