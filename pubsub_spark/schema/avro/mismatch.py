"""The findings that a value does not fit its schema, and that a schema cannot read another's values."""

from __future__ import annotations

from pubsub_spark.schema.definition import Mismatch

__all__ = ["Mismatch", "Unresolvable"]


class Unresolvable(Mismatch):
    """The finding that no data written with one schema can be read with the other."""
