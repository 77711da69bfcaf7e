"""The payloads of rows: encoded by the topic's schema if it has one, else as JSON. Runs in tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..errors import RowError
from ..options import WriteOptions
from ..schema.definition import InvalidMessage
from .json import to_json

if TYPE_CHECKING:
    from ..codec.registry import EncodeRows, TopicSchema


class RowEncoder:
    """The encoder of a task's rows, compiled for their types when the first one arrives."""

    def __init__(self, topic_schema: TopicSchema | None, options: WriteOptions) -> None:
        self._topic_schema = topic_schema
        self._ignore_extra_columns = options.ignore_extra_columns
        self._encoder: EncodeRows | None = None

    def __call__(self, rows: pa.StructArray) -> pa.Array:
        """Raises RowError naming row and column. The payload of a null row is null."""
        if self._topic_schema is None:
            return to_json(rows)
        if self._encoder is None:
            self._encoder = self._topic_schema.encoder(rows.type, self._ignore_extra_columns)
        if not rows.null_count:
            return self._encoder(rows)
        present = np.asarray(rows.is_valid().to_numpy(zero_copy_only=False))
        positions = pa.array(np.cumsum(present) - 1, mask=~present)
        try:
            encoded = self._encoder(rows.filter(pa.array(present)))
        except RowError as error:
            raise RowError(int(np.flatnonzero(present)[error.row]), error.complaint) from None
        reader = self._topic_schema.reader
        try:
            reader.parsed().validate(b"", self._topic_schema.encoding)  # as the service will a null row's message
        except InvalidMessage:
            complaint = f"`value` is null, and the schema `{reader}` has no message without data"
            raise RowError(int(present.argmin()), complaint) from None
        return encoded.take(positions)
