"""Codecs: payloads to columns and back, by the schema of a topic.

avro/         Avro                    protobuf/     Protocol Buffers      json/   JSON, with or without a schema
registry      schema@revision to codec: `Decoder`, `TopicSchema`, and the type of the column `value`
spark_types   Spark types made from Arrow types
envelope      the columns around `value`
rows          rows to encode: the columns of fields, and the row of an error       arrays   parts of Arrow arrays
projection    values of one revision as the columns of another
"""
