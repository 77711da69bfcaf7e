"""The values of many JSON texts: parsed at once where all of them are JSON, and without a name given twice.

Python's parser takes the last of the values that a name is given. To ask it for every name costs a third more; so the
colons in the texts are counted instead, and only texts with more of them than their values have names are parsed again.
"""

from __future__ import annotations

import json
from json.scanner import make_scanner
from typing import Any, Final

import numpy as np

from pubsub_spark.codec.json_scan import scan_each
from pubsub_spark.schema.protobuf.json_mapping import UNCOMMON, scan_unique

Values = list[Any]  # JSON values of one field, of all messages; None where the field is absent

_COLON, _QUOTE, _SPACE = b':" '
_SEPARATOR: Final = object()
_decoder: Final = json.JSONDecoder(parse_constant={"NaN": _SEPARATOR}.__getitem__)
_scan: Final = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]


def parse_together(texts: list[bytes]) -> tuple[list[int], Values]:
    """The values of the texts that are JSON, and their places; of a name given twice the last value.

    All are parsed as one array, in which a constant that JSON does not have comes before each: where those are, and
    there alone, is one text behind each.
    """
    data = b"[NaN,%b]" % b",NaN,".join(texts)
    try:
        values = _decoder.decode(data.decode())
        if data.count(b"NaN") == len(texts) == values[::2].count(_SEPARATOR) == len(values) / 2:
            return list(range(len(texts))), values[1::2]
    except UNCOMMON:
        pass
    return scan_each(_scan, texts)


def parse_strictly(texts: list[bytes]) -> tuple[list[int], Values]:
    """The values of the texts that are JSON, without a name given twice, and their places."""
    return scan_each(scan_unique, texts)


def most_names(texts: list[bytes]) -> int:
    """The most names that the objects in JSON texts can have: behind each is a colon after a quote or whitespace.

    A text's values have fewer names than that if an object has a name twice, or else if a string looks like a name.
    """
    data = np.frombuffer(b"".join(texts), np.uint8)
    before = data[np.flatnonzero(data == _COLON) - 1]
    return int(np.count_nonzero((before == _QUOTE) | (before <= _SPACE)))
