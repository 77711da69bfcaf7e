"""The messages in an object that is ingested from Cloud Storage. Pure.

text          the text between delimiters. The last delimiter may be missing.
Avro          each record of the file, as its bytes. fastavro reads blocks alone: it refuses names beyond ASCII
Pub/Sub Avro  data and attributes of each record, as a Cloud Storage subscription with metadata has written them
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final

import fastavro

from pubsub_spark.emulator.sinks.ingestion_source import IngestedMessage
from pubsub_spark.schema import avro
from pubsub_spark.schema.avro import error_locator

# The header of an Avro file, as the specification has it
HEADER: Final = {
    "type": "record",
    "name": "org.apache.avro.file.Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
    ],
}


def messages(settings: Any, content: bytes) -> Iterator[IngestedMessage]:
    """Raise ValueError if the object has another format."""
    kind = settings.WhichOneof("input_format")
    if kind == "avro_format":
        return _avro(content)
    if kind == "pubsub_avro_format":
        return _pubsub_avro(content)
    delimiter = settings.text_format.delimiter or "\n"
    return (IngestedMessage(text, {}) for text in content.split(delimiter.encode()) if text)


def _avro(content: bytes) -> Iterator[IngestedMessage]:
    try:
        source, without_schema = BytesIO(content), BytesIO()
        header: Any = fastavro.schemaless_reader(source, HEADER, None)
        root = avro.parse(header["meta"]["avro.schema"].decode()).root
        header["meta"]["avro.schema"] = b'"null"'
        fastavro.schemaless_writer(without_schema, HEADER, header)
        blocks: Any = fastavro.block_reader(BytesIO(without_schema.getvalue() + source.read()))
        for block in blocks:
            data, start = memoryview(block.bytes_.getvalue()), 0
            for _ in range(block.num_records):
                end = start + error_locator.end(root, data[start:])
                yield IngestedMessage(bytes(data[start:end]), {})
                start = end
    except Exception as problem:
        raise _no_avro(problem) from None


def _pubsub_avro(content: bytes) -> Iterator[IngestedMessage]:
    try:
        for record in fastavro.reader(BytesIO(content)):
            if not isinstance(record, dict) or not isinstance(record.get("data"), bytes):
                raise ValueError("its records have no `data`, as those of a Cloud Storage subscription have")
            attributes = record.get("attributes") or {}
            if not isinstance(attributes, dict) or not all(isinstance(value, str) for value in attributes.values()):
                raise ValueError("the `attributes` of its records are no map of texts")
            yield IngestedMessage(record["data"], attributes)
    except Exception as problem:
        raise _no_avro(problem) from None


def _no_avro(problem: Exception) -> ValueError:
    return ValueError(str(problem) or type(problem).__name__)
