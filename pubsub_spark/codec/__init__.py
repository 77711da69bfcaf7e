"""Codecs: payloads to columns and back, by the schema of a topic.

schema_types  the table of schema types: parse a definition, compare revisions, find a codec
definition    the interface of a parsed definition, and the errors about schemas and messages
avro/         Avro                    protobuf/     Protocol Buffers
registry      schema@revision to codec: `Decoder`, `Encoder`, and the type of the column `value`
spark         Spark types made from Arrow types
envelope      the columns around `value`

The first three need neither Spark nor the others: the emulator uses them.
"""
