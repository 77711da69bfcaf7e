"""Protocol Buffers: `.proto` text, its two encodings, revisions, and columns.

protoc         the compiler, a process of its own              definition    a parsed revision and its validation
compatibility  which revision may follow which                 descriptors   what protobuf's versions answer differently
error_locator  where and why a payload breaks                  json          JSON messages, read and written
column_tree    a message's descriptor as a tree of columns     types         a column's type in Arrow
ptars_schema   the schema given to `ptars`                     decode        payloads to columns
column_arrays  the arrays that ptars makes, as columns         encode        columns to payloads
row_reader     message objects to rows, value by value         json_columns  JSON messages to columns
json_batches   the same by Arrow's JSON reader                 json_arrays   what both do with arrays
json_values    many JSON texts, parsed                         json_texts    columns to JSON messages
codec          the functions that `codec.registry` calls

Nothing here needs Spark, so the emulator can use it.
"""

from pubsub_spark.codec.protobuf.definition import ProtobufDefinition, check_compatible, parse

__all__ = ["ProtobufDefinition", "check_compatible", "parse"]
