"""Bodies of cases that judge the schemas and codecs by other implementations and specifications.

    protobuf_conformance   protobuf's own conformance suite, by its own runner
    avro_schemas           schemas with the structure of Apache Avro's and fastavro's tests, and messages of them
    json_texts             JSON texts by the grammar of RFC 8259, as the value of a field
    random_messages        schemas and messages that hypothesis makes up, against google.protobuf and fastavro

Each has `count(whole)`: the outcomes of its cases, all of them or a sample. `make test-bodies` counts all of them and
writes the counts to docs/bodies.json, the source of the table of docs/types.md.
"""
