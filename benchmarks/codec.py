"""How fast the Avro codec is, each figure as a ratio taken in one run.

    python benchmarks/codec.py [--messages N] [SCHEMA ...]

Per schema, messages/s of our decoder against `fastavro` and `pa.Table.from_pylist`, and of our encoder against a loop
over `fastavro.schemaless_writer` (its rows are dicts already, at no cost). Both also against `pyruhvro`, if it is
installed and has the types. Then our decoder if one message in a thousand is bad, if ten messages arrive at a time, a
reader that is one revision ahead, JSON both ways, and validation: a request of 1000 messages, and one by one. The best
of some runs counts, in seconds of the processor: all of it runs on one core, and the machine may be busy.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

try:
    import pyruhvro
except ImportError:  # no dependency of ours: `pip install pyruhvro` to compare
    pyruhvro = None

sys.path[:0] = [str(Path(__file__).parent.parent)]

from pubsub_spark.codec.avro import decoder, encoder, value_type  # noqa: E402
from pubsub_spark.demo import flights  # noqa: E402
from pubsub_spark.schema import avro  # noqa: E402

REQUEST_MESSAGES = 1000
FEW_MESSAGES = 10
NEW_YEAR = datetime(2013, 1, 1, tzinfo=UTC)


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": type_} for key, type_ in fields.items()]}


FLIGHT = record(
    "Flight",
    id="long",
    carrier="string",
    flight="int",
    origin="string",
    dest="string",
    dep_delay=["null", "double"],
    time_hour={"type": "long", "logicalType": "timestamp-micros"},
)
PAYMENT = record(
    "Payment",
    id="long",
    amount={"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
    fee={"type": "fixed", "name": "Fee", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 2},
    card={"type": "fixed", "name": "Card", "size": 16},
    receipt="bytes",
)
ORDER = record(
    "Order",
    id="string",
    lines={
        "type": "array",
        "items": record("Line", sku="string", count="int", price=["null", "double"]),
    },
    tags={"type": "map", "values": "string"},
    state={"type": "enum", "name": "State", "symbols": ["OPEN", "PAID", "SENT"]},
    note=["null", "string", "long"],
)


def flight(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "id": number,
        "carrier": chance.choice(["UA", "AA", "B6", "DL"]),
        "flight": chance.randrange(8000),
        "origin": chance.choice(["EWR", "JFK", "LGA"]),
        "dest": chance.choice(["IAH", "MIA", "BQN", "ATL"]),
        "dep_delay": None if chance.random() < 0.03 else chance.uniform(-20, 200),
        "time_hour": NEW_YEAR + timedelta(hours=number % 8760),
    }


def payment(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "id": number,
        "amount": Decimal(chance.randrange(-(10**9), 10**9)).scaleb(-4),
        "fee": Decimal(chance.randrange(10**4)).scaleb(-2),
        "card": chance.randbytes(16),
        "receipt": chance.randbytes(40),
    }


def order(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "id": f"order-{number}",
        "lines": [
            {"sku": f"sku-{chance.randrange(1000)}", "count": chance.randrange(9), "price": chance.uniform(1, 99)}
            for _ in range(chance.randrange(6))
        ],
        "tags": {f"k{key}": "some value" for key in range(chance.randrange(4))},
        "state": chance.choice(["OPEN", "PAID", "SENT"]),
        "note": chance.choice([None, "leave at the door", number]),
    }


def demo_flights(count: int) -> list[dict[str, Any]]:
    return list(flights.read(count).to_pylist())


CASES: dict[str, tuple[dict[str, Any], Callable[[int], list[dict[str, Any]]]]] = {
    "flight, 7 fields": (FLIGHT, lambda count: _made(flight, count)),
    "flight, 20 fields (the demo's)": (json.loads(flights.avro_schema()), demo_flights),
    "payment: decimals and bytes": (PAYMENT, lambda count: _made(payment, count)),
    "order: array, map, enum, union": (ORDER, lambda count: _made(order, count)),
}


def _made(make: Callable[[int, random.Random], dict[str, Any]], count: int) -> list[dict[str, Any]]:
    chance = random.Random(7)
    return [make(number, chance) for number in range(count)]


def best(run: Callable[[], Any], times: int = 5) -> float:
    """Return the processor's seconds of the fastest of some runs."""
    return min(_seconds(run) for _ in range(times))


def _seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(name: str, declared: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    count = len(rows)
    parsed = fastavro.parse_schema(declared)
    definition = avro.parse(json.dumps(declared))
    schema = pa.schema(list(value_type(definition)))

    def write(row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        return out.getvalue()

    def read_all(messages: list[bytes]) -> pa.Table:
        read: list[Any] = [fastavro.schemaless_reader(io.BytesIO(message), parsed) for message in messages]
        for row in read:  # values that from_pylist does not accept from fastavro
            if "tags" in row:
                row["tags"] = list(row["tags"].items())
                row["note"] = _members(row["note"])
        return pa.Table.from_pylist(read, schema=schema)

    messages = [write(row) for row in rows]
    data = pa.array(messages, pa.binary())
    decode = decoder(definition, definition, "BINARY")
    ahead = avro.parse(json.dumps(_next_revision(declared)))
    column, errors = decode(data)
    assert errors.null_count == count
    assert read_all(messages[:100]).to_pylist() == column[:100].to_pylist()
    encode = encoder(definition, "BINARY", column.type, False)
    assert encode(column).equals(data)
    some_bad = pa.array([b"\xff" if place % 1000 == 999 else message for place, message in enumerate(messages)])

    theirs, ours = best(lambda: read_all(messages), 2), best(lambda: decode(data))
    print(f"\n{name}: {count:,} messages of {data.nbytes // count} bytes")
    line("decode", count, ours, theirs, "fastavro and from_pylist")
    compare_pyruhvro(json.dumps(declared), messages, ours, best(lambda: encode(column)))
    few = [data.slice(start, FEW_MESSAGES) for start in range(0, REQUEST_MESSAGES, FEW_MESSAGES)]
    line("decode, 10 at a time", REQUEST_MESSAGES, best(lambda: [decode(some) for some in few]), None, "")
    line("decode, 1 of 1000 bad", count, best(lambda: decode(some_bad)), ours, "all good")
    resolve = decoder(definition, ahead, "BINARY")
    line("decode, reader one revision ahead", count, best(lambda: resolve(data)), ours, "same revision")
    line(
        "encode",
        count,
        best(lambda: encode(column)),
        best(lambda: [write(row) for row in rows], 2),
        "fastavro.schemaless_writer",
    )
    to_json, from_json = encoder(definition, "JSON", column.type, False), decoder(definition, definition, "JSON")
    texts = to_json(column[:REQUEST_MESSAGES])
    line("encode JSON", REQUEST_MESSAGES, best(lambda: to_json(column[:REQUEST_MESSAGES])), None, "")
    line("decode JSON", REQUEST_MESSAGES, best(lambda: from_json(texts)), None, "")
    request = messages[:REQUEST_MESSAGES]

    def validate() -> None:
        for message in request:
            definition.validate(message, "BINARY")

    one_by_one = best(validate)
    line("validate one by one", len(request), one_by_one, None, "")
    line(
        "validate a request of 1000",
        len(request),
        best(lambda: definition.first_invalid(request, "BINARY")),
        one_by_one,
        "one by one",
    )


def compare_pyruhvro(declared: str, messages: list[bytes], our_decode: float, our_encode: float) -> None:
    """Compare pyruhvro (Rust) on the same messages. It needs a list of bytes, while we get an array."""
    if pyruhvro is None:
        print("  pyruhvro: not installed")
        return
    try:
        batch = pyruhvro.deserialize_array(messages, declared)
    except BaseException as error:  # a type that it does not have is a panic, which is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        print(f"  pyruhvro: cannot read this schema ({type(error).__name__}: {error})")
        return
    decode = best(lambda: pyruhvro.deserialize_array(messages, declared))
    line("  by pyruhvro: decode", len(messages), decode, our_decode, "ours")
    encode = best(lambda: pyruhvro.serialize_record_batch(batch, declared, 1))
    line("  by pyruhvro: encode", len(messages), encode, our_encode, "ours")


def _members(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"member0": value, "member1": None} if isinstance(value, str) else {"member0": None, "member1": value}


def _next_revision(declared: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the last field removed, and one with a default added in front."""
    return declared | {"fields": [{"name": "added", "type": "string", "default": "none"}, *declared["fields"][:-1]]}


def line(what: str, count: int, ours: float, other: float | None, than: str) -> None:
    ratio = f"{other / ours:8.2f} x {than}" if other else ""
    print(f"  {what:36}{count / ours:14,.0f}/s{ratio}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("schemas", nargs="*", help="words of the names of the schemas to measure; all if none")
    arguments.add_argument("--messages", type=int, default=100_000)
    given = arguments.parse_args()
    for name, (declared, make) in CASES.items():
        if not given.schemas or any(word in name for word in given.schemas):
            measure(name, declared, make(given.messages))


if __name__ == "__main__":
    main()
