"""JSON: the reader and the writer of every format that has JSON messages, and payloads without a schema resource.

reader    texts to Arrow columns                         writer       Arrow columns to texts
payloads  `JsonSchema`: `decode=json`, with the columns of a DDL or a JSON schema
ddl       `carrier STRING, delay INT` as an Arrow type   json_schema  the same of Spark's JSON and of JSON Schema

The differences between formats are in `codec.avro.json`, `codec.protobuf.json`, `payloads` and `write.json`.
"""

from pubsub_spark.codec.json.payloads import JsonSchema

__all__ = ["JsonSchema"]
