"""Schemas: definitions, the messages that fit them, and the revisions that may follow one another.

schema_types        the table of schema types: parse a definition, compare revisions
definition          the interface of a parsed definition, and the errors about schemas and messages
avro/               Avro                    protobuf/     Protocol Buffers
compiled_protobuf   a compiled Protocol Buffer schema as a text

The emulator imports this package and nothing above it. Nothing here needs Spark or Arrow: columns are made in `codec`.
"""
