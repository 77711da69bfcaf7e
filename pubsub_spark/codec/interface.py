"""The interface of a schema type's module `codec`, and the two functions that it compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from pubsub_spark.schema.definition import Definition, Encoding

# From messages to (values, reasons): in each row one of the two is null
DecodeMessages = Callable[[pa.BinaryArray], tuple[pa.StructArray, pa.StringArray]]
# From rows to messages. Raises RowError with the row and the column that cannot be encoded
EncodeRows = Callable[[pa.StructArray], pa.BinaryArray]


class Codec(Protocol):
    """The interface of a schema type's module `codec`."""

    def value_type(self, definition: Definition) -> pa.StructType:
        """Return the type of the column `value`. Raises SchemaError with the path of a type that Spark cannot hold."""

    def decoder(self, writer: Definition, reader: Definition, encoding: Encoding) -> DecodeMessages:
        """Return the decoder of messages of revision `writer` to values of the type of `reader`."""

    def encoder(
        self, definition: Definition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool
    ) -> EncodeRows:
        """Return the encoder of rows of a type. Raises SchemaError with every column that does not fit."""
