"""Avro: schema text, its two encodings, resolution between revisions, and columns.

schema_parser  the text as a tree (nodes)                   compatibility  may this schema read that one's data
types          a node's column, in Arrow                    resolution     the rules for what was written otherwise
columns        all messages of a batch to Arrow (cursors, item_steps, decimals)
error_locator  the faulty field of one message (mismatch)   decode         columns, and a reason for the rest
messages       one message by fastavro                      json_encoding  JSON and what fastavro reads and writes
encode         rows to messages (buffers)                   json_columns   JSON of many messages, by way of columns
definition     what `codec.definition` promises             codec          what `codec.registry` asks for

Nothing here needs Spark, so the emulator can use it.
"""

from pubsub_spark.codec.avro.definition import AvroDefinition, check_compatible, parse

__all__ = ["AvroDefinition", "check_compatible", "parse"]
