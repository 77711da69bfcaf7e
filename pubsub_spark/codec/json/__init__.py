"""JSON payloads without a schema resource: `decode=json`, with the columns of a DDL or a JSON schema.

ddl       `carrier STRING, delay INT` as an Arrow type          json_schema  the same of Spark's JSON and of JSON Schema
payloads  `JsonSchema`: messages to values, and the reasons of those that have none
"""

from pubsub_spark.codec.json.payloads import JsonSchema

__all__ = ["JsonSchema"]
