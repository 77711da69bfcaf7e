"""From message bytes to columns and back: what a topic's schema says about its payloads.

definition   a parsed schema definition: its interface and its errors. Needs no Spark
schema_types the table of schema types: parse a definition, compare revisions, find a codec. Needs no Spark
registry     schema@revision to codec: `Decoder`, `Encoder`, and the type of the column `value`
spark        an Arrow type as Spark's
avro/        Avro                    protobuf/    Protocol Buffers
envelope     the columns around `value`
"""
