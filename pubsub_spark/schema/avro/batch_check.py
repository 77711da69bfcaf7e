"""The check of many binary messages at once: it finds those that are plainly right, without building a value.

`error_locator` decides about the others. A Publish request's worth of messages is checked some eight times faster than
one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pubsub_spark.schema.avro.array_items import empty_items, item_steps
from pubsub_spark.schema.avro.cursors import Batch, Cursors, padding
from pubsub_spark.schema.avro.error_locator import least_bytes
from pubsub_spark.schema.avro.schema_tree import INT, Array, Enum, Fixed, Map, Node, Record, Union, weight

Check = Callable[[Cursors], object]  # moves each cursor behind its value. A value that is not plainly right falls back


def suspects(root: Node, check: Check, messages: Sequence[bytes]) -> list[int]:
    """Return the indices of the messages that are not plainly right. `check`: compiled of `root`."""
    offsets = np.zeros(len(messages) + 1, np.int64)
    np.cumsum([len(message) for message in messages], out=offsets[1:])
    batch = Batch(b"".join(messages), offsets, padding(root))
    cursors = batch.cursors
    check(cursors)
    return np.flatnonzero((cursors.at != cursors.end) | batch.fell_back).tolist()


def compile_check(node: Node, known: dict[Record, Check | None] | None = None) -> Check:
    known = {} if known is None else known
    match node:
        case Fixed(size=size):
            return lambda cursors: _move(cursors, cursors.fixed_lengths(size))
        case Enum(symbols=symbols):
            count = len(symbols)
            return lambda cursors: cursors.indices(count)
        case Array(items):
            least, work, check = least_bytes(items), weight(items), compile_check(items, known)
            if not least:
                return lambda cursors: empty_items(cursors, work)
            return lambda cursors: item_steps(cursors, node, least, lambda items, *_: check(items))
        case Map(values):
            least, check_value = 1 + least_bytes(values), compile_check(values, known)
            check_entry = _in_order([_string, check_value])
            return lambda cursors: item_steps(cursors, node, least, lambda entries, *_: check_entry(entries))
        case Union(branches):
            return _union([compile_check(branch, known) for branch in branches])
        case Record(fields=fields):
            if node not in known:
                known[node] = None
                known[node] = _in_order([compile_check(field.node, known) for field in fields])
            return known[node] or (lambda cursors: cursors.skip(node))  # a record inside of itself: one by one
    return _PRIMITIVES[node.kind]


def _in_order(checks: list[Check]) -> Check:
    def check(cursors: Cursors) -> None:
        for check_part in checks:
            check_part(cursors)

    return check


def _union(checks: list[Check]) -> Check:
    def check(cursors: Cursors) -> None:
        index = cursors.indices(len(checks))
        for number, check_branch in enumerate(checks):
            which = np.flatnonzero(index == number)
            if len(which) == len(cursors):
                check_branch(cursors)
            elif len(which):
                some = cursors.some(which)
                check_branch(some)
                cursors.resume(which, some)

    return check


def _int(cursors: Cursors) -> None:
    values = cursors.longs()
    cursors.fall_back((values < INT[0]) | (values > INT[1]))


def _move(cursors: Cursors, lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    cursors.at = cursors.at + lengths


def _string(cursors: Cursors) -> None:
    lengths = cursors.lengths()
    start = cursors.at
    _move(cursors, lengths)
    edges = np.stack([start, cursors.at], axis=1).ravel()
    highest = np.maximum.reduceat(cursors.batch.bytes, edges)[::2]  # of a segment of no bytes: the byte behind it
    wrong = np.zeros(len(cursors), np.bool_)
    for index in np.flatnonzero((highest > 127) & (lengths > 0)).tolist():
        wrong[index] = not is_utf8(cursors.batch.bytes[start[index] : cursors.at[index]].tobytes())
    cursors.fall_back(wrong)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


_PRIMITIVES: Final[dict[str, Check]] = {
    "null": lambda _: None,
    "boolean": Cursors.booleans,
    "int": _int,
    "long": Cursors.longs,
    "float": Cursors.floats,
    "double": Cursors.doubles,
    "bytes": lambda cursors: _move(cursors, cursors.lengths()),
    "string": _string,
}
