"""Avro: schema text, its two encodings, resolution between revisions, and columns.

schema         the text as a tree of nodes                  compatibility  may this schema read that one's data
datum          a value in Python, and what does not fit     binary, json   the encodings, one message at a time
resolution     the writer's datum to the reader's value     types          a node's column, in Arrow
columns        all messages of a batch in step (lanes, rounds)   decode   columns where it can, else one by one
encode         rows to messages, joined from pieces         decimals       between Avro's bytes and Arrow's
definition     what `codec.definition` promises             codec          what `codec.registry` asks for

Nothing here needs Spark, so the emulator can use it.
"""

from pubsub_spark.codec.avro.definition import AvroDefinition, check_compatible, parse

__all__ = ["AvroDefinition", "check_compatible", "parse"]
