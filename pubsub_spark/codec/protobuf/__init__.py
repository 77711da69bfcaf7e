"""Protocol Buffers: `.proto` text, its two encodings, revisions, and columns.

protoc         the compiler, a process of its own              compatibility  may this revision follow that one
definition     what `codec.definition` promises for Protocol Buffers: `parse`, `check_compatible`, validation
schema         a message's descriptor as a tree of columns     types          a column's type in Spark and in Arrow
layout         the tree as `ptars` and upb are told about it   fault          where and why a payload breaks
columns        payloads to columns                             objects        the same from Python objects, slowly
encode         columns to payloads

Nothing here imports Spark but `types`, so the emulator can use the rest.
"""

from pubsub_spark.codec.protobuf.definition import ProtobufDefinition, check_compatible, parse

__all__ = ["ProtobufDefinition", "check_compatible", "parse"]
