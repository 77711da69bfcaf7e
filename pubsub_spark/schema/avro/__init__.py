"""Avro: schema text, its two encodings, and compatibility of revisions.

parser         the text as a tree (schema_tree)             compatibility  may this schema read that one's data
error_locator  the faulty field of one message              batch_check    many binary messages at once
cursors        places in many messages (array_items)        datum          one message by fastavro
json_encoding  JSON to and from fastavro's values           definition     the interface of `schema.definition`
"""

from pubsub_spark.schema.avro.definition import AvroDefinition, check_compatible, parse

__all__ = ["AvroDefinition", "check_compatible", "parse"]
