"""The check of many binary messages at once: it finds those that are plainly right, without building a value.

`error_locator` decides about the others. A Publish request's worth of messages is checked some eight times faster than
one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pubsub_spark.bound import Bound
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
            return Bound(_fixed, size)
        case Enum(symbols=symbols):
            return Bound(_index, len(symbols))
        case Array(items):
            least, check = least_bytes(items), compile_check(items, known)
            return Bound(_items, check, node, least) if least else Bound(_empty_items, weight(items))
        case Map(values):
            check = Bound(_in_order, (_string, compile_check(values, known)))
            return Bound(_items, check, node, 1 + least_bytes(values))
        case Union(branches):
            return Bound(_branches, tuple(compile_check(branch, known) for branch in branches))
        case Record(fields=fields):
            if node not in known:
                known[node] = None
                known[node] = Bound(_in_order, tuple(compile_check(field.node, known) for field in fields))
            return known[node] or Bound(_skip, node)  # a record inside of itself: one by one
    return _PRIMITIVES[node.kind]


def _fixed(size: int, cursors: Cursors) -> None:
    _move(cursors, cursors.fixed_lengths(size))


def _index(count: int, cursors: Cursors) -> None:
    cursors.indices(count)


def _items(check: Check, node: Array | Map, least_bytes: int, cursors: Cursors) -> None:
    item_steps(cursors, node, least_bytes, lambda items, *_: check(items))


def _empty_items(weight: int, cursors: Cursors) -> None:
    empty_items(cursors, weight)


def _skip(node: Record, cursors: Cursors) -> None:
    cursors.skip(node)


def _in_order(checks: tuple[Check, ...], cursors: Cursors) -> None:
    for check in checks:
        check(cursors)


def _branches(checks: tuple[Check, ...], cursors: Cursors) -> None:
    index = cursors.indices(len(checks))
    for number, check in enumerate(checks):
        which = np.flatnonzero(index == number)
        if len(which) == len(cursors):
            check(cursors)
        elif len(which):
            some = cursors.some(which)
            check(some)
            cursors.resume(which, some)


def _int(cursors: Cursors) -> None:
    values = cursors.longs()
    cursors.fall_back((values < INT[0]) | (values > INT[1]))


def _bytes(cursors: Cursors) -> None:
    _move(cursors, cursors.lengths())


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
    "null": Bound(_in_order, ()),
    "boolean": Cursors.booleans,
    "int": _int,
    "long": Cursors.longs,
    "float": Cursors.floats,
    "double": Cursors.doubles,
    "bytes": _bytes,
    "string": _string,
}
