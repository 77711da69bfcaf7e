"""Messages to rows: the columns that the options ask for, and the treatment of payloads that cannot be decoded.

Spark compares its schema with the record batches exactly, so both come from one Arrow schema.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from .. import names
from ..backend import Backend
from ..backend.schemas import fetcher
from ..codec.envelope import DATABRICKS, MESSAGES, attribute, databricks, envelope
from ..codec.json import JsonSchema
from ..codec.projection import IncompatibleTypeError, project
from ..codec.registry import Decoded, Decoder, TopicSchema
from ..codec.spark_types import struct_type
from ..errors import DataError
from ..options import ReadOptions
from . import dead_letters
from .staging.schemas import Fetch, ReaderSchema, StagedSchemas

_log = logging.getLogger(__name__)
DecodeBatch = Callable[[pa.RecordBatch], Decoded]


@dataclass(frozen=True)
class Rows:
    """The columns of the rows of one query. Picklable. topic_schema: of decoded payloads."""

    options: ReadOptions
    backend: Backend
    topic_schema: ReaderSchema | None = None

    @property
    def arrow_schema(self) -> pa.Schema:
        if self.options.columns == "databricks":
            return DATABRICKS
        schema = MESSAGES
        if self.topic_schema is not None:
            schema = schema.append(pa.field("value", self.topic_schema.arrow_type()))
            if isinstance(self.topic_schema, TopicSchema):
                schema = schema.append(pa.field("schema_revision", pa.string()))
            if self.options.mode == "PERMISSIVE":
                schema = schema.append(pa.field("decode_error", pa.string()))
        return schema

    @property
    def spark_schema(self) -> StructType:
        return struct_type(pa.struct(list(self.arrow_schema)))

    def of(
        self,
        batches: Iterator[pa.RecordBatch],
        count_malformed: Callable[[int], None] | None = None,
        schemas: StagedSchemas | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of message batches (schema MESSAGES), in their order.

        count_malformed: called at the end with the number of undecodable payloads, if there were any. schemas: of the
        batch, so that each evaluation decodes alike, or None if there is one evaluation.
        """
        if self.options.columns == "databricks":
            yield from map(databricks, batches)
        elif self.topic_schema is None:
            yield from map(envelope, batches)
        else:
            decode = self._decoder(self.topic_schema, schemas)
            malformed = 0
            for batch in batches:
                rows, bad = self._decoded(batch, decode)
                malformed += bad
                yield rows
            if malformed and count_malformed is not None:
                count_malformed(malformed)

    def _decoder(self, schema: ReaderSchema, schemas: StagedSchemas | None) -> DecodeBatch:
        """Return a decoder that reads with the batch's schema and yields the columns of `schema`."""
        fetch = fetcher(self.backend)
        if schemas is None:
            return _decoder(schema, fetch)
        fetch, reader = schemas.fetcher(fetch), schemas.reader(schema)
        decode = _decoder(reader, fetch)
        if reader == schema:
            return decode
        type_ = schema.arrow_type()
        try:
            project(pa.nulls(0, reader.arrow_type()), type_)
        except IncompatibleTypeError as error:
            _log.warning(
                "batch %d of `%s` was decoded with another schema than the current one: %s. The values of its replay "
                "are decoded with the current schema",
                schemas.batch,
                self.options.subscription,
                error,
            )
            return _with_values_of(decode, _decoder(schema, fetch, reader))

        def projected(messages: pa.RecordBatch) -> Decoded:
            decoded = decode(messages)
            return decoded._replace(value=project(decoded.value, type_))

        return projected

    def _decoded(self, messages: pa.RecordBatch, decode: DecodeBatch) -> tuple[pa.RecordBatch, int]:
        decoded = decode(messages)
        decoded = self._checked(messages, decoded)
        bad = len(messages) - decoded.error.null_count
        columns = [*envelope(messages).columns, decoded.value]
        if isinstance(self.topic_schema, TopicSchema):
            columns.append(decoded.revision)
        if bad:
            self._handle_malformed(messages, decoded.error)
        if self.options.mode == "PERMISSIVE":
            return pa.RecordBatch.from_arrays([*columns, decoded.error], schema=self.arrow_schema), bad
        rows = pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)
        return (rows.filter(pc.is_null(decoded.error)) if bad else rows), bad

    def _checked(self, messages: pa.RecordBatch, decoded: Decoded) -> Decoded:
        """Return the messages, with an error and no value if their attributes contradict the AsyncAPI document."""
        for name, expected in self.options.described_attributes:
            actual = attribute(messages, name)
            wrong = pc.fill_null(pc.not_equal(actual, expected), True)
            wrong = pc.and_(wrong, pc.is_null(decoded.error))
            if not pc.any(wrong).as_py():
                continue
            shown = pc.if_else(pc.is_null(actual), "missing", pc.binary_join_element_wise("`", actual, "`", ""))
            reason = pc.binary_join_element_wise(f"attribute `{name}` is ", shown, f", not `{expected}`", "")
            error = pc.if_else(wrong, reason, decoded.error)
            decoded = decoded._replace(value=_null_where(wrong, decoded.value), error=error)
        return decoded

    def _handle_malformed(self, messages: pa.RecordBatch, errors: pa.StringArray) -> None:
        wrong = pc.is_valid(errors)
        if self.options.mode == "FAILFAST":
            first = pc.index(wrong, True).as_py()
            raise DataError(
                f"Message `{messages.column('message_id')[first]}` of `{self.options.subscription}` cannot be decoded: "
                f"{errors[first]}. Use mode=PERMISSIVE to get such messages with a null `value`, or mode=DROPMALFORMED "
                "to leave them out, and deadLetterTopic to keep their payloads."
            )
        topic = self.options.dead_letter
        if topic is not None:
            reasons = errors.filter(wrong).to_pylist()
            dead_letters.publish(topic, self.options.subscription, messages.filter(wrong), reasons, self.backend)


def _decoder(schema: ReaderSchema, fetch: Fetch, writer: ReaderSchema | None = None) -> DecodeBatch:
    """Return a function from messages to their values and errors.

    writer: the schema of messages whose attributes name none, by default `schema`.
    """
    if isinstance(schema, JsonSchema):

        def decode_json(messages: pa.RecordBatch) -> Decoded:
            value, error = schema.decode(messages.column("data"))
            return Decoded(value, pa.nulls(len(messages), pa.string()), error)

        return decode_json
    decoder = Decoder(schema, fetch, writer if isinstance(writer, TopicSchema) else None)
    return lambda messages: decoder.decode(
        messages.column("data"),
        attribute(messages, names.SCHEMA_REVISION),
        attribute(messages, names.SCHEMA_ENCODING),
        attribute(messages, names.SCHEMA_NAME),
    )


def _with_values_of(first: DecodeBatch, current: DecodeBatch) -> DecodeBatch:
    """Return a decoder with the values of `current`, and the revisions and the malformed rows of `first`."""

    def decode(messages: pa.RecordBatch) -> Decoded:
        _, revision, error = first(messages)
        value, _, current_error = current(messages)
        error = pc.coalesce(error, current_error)
        return Decoded(_null_where(pc.is_valid(error), value), revision, error)

    return decode


def _null_where(wrong: pa.BooleanArray, values: pa.StructArray) -> pa.StructArray:
    return values.take(pa.array(range(len(values)), pa.int64(), mask=wrong.to_numpy(zero_copy_only=False)))
