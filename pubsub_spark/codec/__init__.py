"""From message bytes to columns and back: what a topic's schema says about its payloads.

definition   a schema's text: parse, validate a message, compare revisions. Needs no Spark
registry     schema@revision to codec: `Decoder`, `Encoder`, and the type of the column `value`
spark        an Arrow type as Spark's
avro/        Avro                    protobuf/    Protocol Buffers
envelope     the columns around `value`
"""
