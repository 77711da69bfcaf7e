"""Protocol Buffers: `.proto` text, its two encodings, and compatibility of revisions.

protoc         the compiler, a process of its own              definition    a parsed revision and its validation
compatibility  which revision may follow which                 descriptors   differences between protobuf's versions
error_locator  where and why a payload breaks                  json_mapping  a message in JSON
json_pool      the messages made for json_format
"""

from pubsub_spark.schema.protobuf.definition import ProtobufDefinition, check_compatible, parse

__all__ = ["ProtobufDefinition", "check_compatible", "parse"]
