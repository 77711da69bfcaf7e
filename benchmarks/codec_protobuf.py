"""The speed of the Protocol Buffers codec against code written by hand, in one run.

    python benchmarks/codec_protobuf.py [--messages N]

By hand: `FromString` and one list comprehension per column, or `to_pylist` and `SerializeToString` per row. For JSON,
`json_format` is between. Also the cost of bad payloads for their neighbours. CPU time of one core, best of three.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf.json_format import MessageToJson, Parse

sys.path[:0] = [str(Path(__file__).parent.parent)]

from pubsub_spark.codec.protobuf.decode import ProtobufDecoder  # noqa: E402
from pubsub_spark.codec.protobuf.encode import ProtobufEncoder  # noqa: E402
from pubsub_spark.schema.protobuf import parse  # noqa: E402

FLIGHT = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Flight {
  string carrier = 1;
  int32 number = 2;
  string origin = 3;
  string dest = 4;
  double dep_delay = 5;
  google.protobuf.Timestamp time = 6;
  bool cancelled = 7;
}
"""
ORDER = """
syntax = "proto3";
message Order {
  enum State { NEW = 0; PAID = 1; SENT = 2; }
  message Item { string sku = 1; uint32 count = 2; double price = 3; }
  uint64 id = 1;
  State state = 2;
  repeated Item items = 3;
  map<string, string> tags = 4;
  oneof customer { string email = 5; uint64 account = 6; }
  optional string note = 7;
}
"""


def flights(count: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [
        {
            "carrier": rng.choice(("UA", "AA", "DL")),
            "number": rng.randrange(9999),
            "origin": rng.choice(("JFK", "LGA", "EWR")),
            "dest": rng.choice(("LAX", "SFO", "ORD")),
            "dep_delay": rng.random() * 100,
            "time": {"seconds": 1_700_000_000 + row, "nanos": row * 1000},
            "cancelled": rng.random() < 0.02,
        }
        for row in range(count)
    ]


def orders(count: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [
        {
            "id": row,
            "state": rng.randrange(3),
            "items": [{"sku": f"sku{n}", "count": n, "price": n * 1.5} for n in range(rng.randrange(4))],
            "tags": {"k": "v", "source": "web"},
            **({"email": "a@example.com"} if row % 2 else {"account": row}),
            **({"note": "leave at the door"} if row % 5 == 0 else {}),
        }
        for row in range(count)
    ]


def flights_by_hand(message_class: Any, data: pa.BinaryArray) -> list[pa.Array]:
    messages = [message_class.FromString(payload) for payload in data.to_pylist()]
    plain = ("carrier", "number", "origin", "dest", "dep_delay", "cancelled")
    columns = [pa.array([getattr(message, name) for message in messages]) for name in plain]
    micros = [message.time.ToMicroseconds() for message in messages]
    return [*columns, pa.array(micros).cast(pa.timestamp("us", "UTC"))]


def orders_by_hand(message_class: Any, data: pa.BinaryArray) -> list[pa.Array]:
    messages = [message_class.FromString(payload) for payload in data.to_pylist()]
    state = message_class.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number
    rows = [
        {
            "id": message.id,
            "state": state[message.state].name,
            "items": [{"sku": item.sku, "count": item.count, "price": item.price} for item in message.items],
            "tags": list(message.tags.items()),
            "email": message.email if message.HasField("email") else None,
            "account": message.account if message.HasField("account") else None,
            "note": message.note if message.HasField("note") else None,
        }
        for message in messages
    ]
    return [pa.array(rows)]


def flights_written_by_hand(message_class: Any, rows: pa.StructArray) -> list[bytes]:
    payloads = []
    for row in rows.to_pylist():
        time_ = row.pop("time")
        message = message_class(**row)
        message.time.FromDatetime(time_)
        payloads.append(message.SerializeToString())
    return payloads


def orders_written_by_hand(message_class: Any, rows: pa.StructArray) -> list[bytes]:
    payloads = []
    for row in rows.to_pylist():
        row["tags"] = dict(row["tags"])
        payloads.append(message_class(**row).SerializeToString())
    return payloads


def rate(count: int, call: Callable[[], Any], times: int = 3) -> float:
    """Return messages a second of this process, whatever else the machine does. The best of `times` counts."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return count / best


def line(what: str, ours: float, theirs: float) -> None:
    print(f"| {what} | {ours / 1e6:.2f} M/s | {theirs / 1e6:.2f} M/s | {ours / theirs:.1f}x |")


def compare(
    name: str, text: str, rows: list[dict[str, Any]], read: Any, write: Any
) -> tuple[ProtobufDecoder, pa.BinaryArray]:
    definition = parse(text)
    message_class: Any = definition.message_class
    data = pa.array([message_class(**row).SerializeToString() for row in rows], pa.binary())
    decoder = ProtobufDecoder(definition)
    value, _ = decoder.decode(data)
    encoder = ProtobufEncoder(definition, "BINARY", decoder.type)
    few = value.slice(0, len(value) // 10)  # by hand is slow
    some = data.slice(0, len(data) // 4)
    assert message_class.FromString(encoder.encode(value)[7].as_py()) == message_class.FromString(data[7].as_py())
    texts = ProtobufEncoder(definition, "JSON", decoder.type).encode(few)
    json_decoder = ProtobufDecoder(definition, "JSON")
    size = sum(len(payload) for payload in data.to_pylist()) // len(data)
    line(
        f"{name} ({size} bytes), BINARY to columns",
        rate(len(data), lambda: decoder.decode(data)),
        rate(len(some), lambda: read(message_class, some)),
    )
    line(
        f"{name}, columns to BINARY",
        rate(len(value), lambda: encoder.encode(value)),
        rate(len(few), lambda: write(message_class, few)),
    )
    line(
        f"{name}, JSON to columns",
        rate(len(texts), lambda: json_decoder.decode(texts)),
        rate(len(texts), lambda: read_json_by_hand(message_class, texts, read)),
    )
    line(
        f"{name}, columns to JSON",
        rate(len(few), lambda: ProtobufEncoder(definition, "JSON", decoder.type).encode(few)),
        rate(len(few), lambda: [MessageToJson(message_class.FromString(p)) for p in write(message_class, few)]),
    )
    return decoder, data


def read_json_by_hand(message_class: Any, texts: pa.BinaryArray, read: Any) -> list[pa.Array]:
    messages = [Parse(text, message_class()) for text in texts.to_pylist()]
    columns: list[pa.Array] = read(message_class, pa.array([message.SerializeToString() for message in messages]))
    return columns


def bad_payloads(decoder: ProtobufDecoder, data: pa.BinaryArray) -> None:
    for what, every, damage in (
        ("one bad payload", len(data), lambda _: b"\xff"),
        ("one in 10,000", 10_000, lambda _: b"\xff"),
        ("one in 100", 100, lambda _: b"\xff"),
        ("one in 100 that lacks its second half", 100, lambda payload: payload[: len(payload) // 2]),
    ):
        payloads = data.to_pylist()
        payloads[every // 2 :: every] = map(damage, payloads[every // 2 :: every])
        damaged = pa.array(payloads, pa.binary())
        whole = rate(len(data), lambda: decoder.decode(data))
        speed = rate(len(damaged), lambda damaged=damaged: decoder.decode(damaged))  # type: ignore[misc]
        print(f"| {what} | {speed / 1e6:.2f} M/s | {speed / whole:.2f} of the speed without |")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=400_000)
    count = arguments.parse_args().messages
    print("| | ours | by hand | |\n|---|---|---|---|")
    decoder, data = compare("flight, 7 fields", FLIGHT, flights(count), flights_by_hand, flights_written_by_hand)
    compare("order, nested", ORDER, orders(count // 2), orders_by_hand, orders_written_by_hand)
    print("\n| flights with | | |\n|---|---|---|")
    bad_payloads(decoder, data)


if __name__ == "__main__":
    main()
