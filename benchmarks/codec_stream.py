"""The share of decoding in a whole streaming run: the same flights read with `decode=topic` and as bytes.

    python benchmarks/codec_stream.py [--messages N]
    python benchmarks/codec_stream.py serve EVERY MESSAGES      its server, in a process of its own

The server is that of `canned.py`, with the demo's flights (20 fields of Avro, 60 bytes) as payloads and their schema.
The query is that of `read.py`: `local[2]`, two partitions, `noop` sink, staging on local disk. Each way runs twice, and
the better counts. The share is the growth of the time per message. A third way has every hundredth payload cut in half,
with `mode=PERMISSIVE`.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

import fastavro
from google.pubsub_v1 import types

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import canned  # noqa: E402
import read  # noqa: E402

from pubsub_spark.demo import flights  # noqa: E402

SCHEMA = "projects/bench/schemas/flight"
REVISION = "f11947ab"


def serve(messages: int, every: int) -> None:
    """Serve flights in place of the random payloads, and their schema. One of `every` is cut in half."""
    flown = flights.read(canned.PER_RESPONSE).to_pylist()
    parsed = fastavro.parse_schema(json.loads(flights.avro_schema()))
    payloads = []
    for flight in flown:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, flight)
        payloads.append(out.getvalue())
    if every:
        payloads[::every] = [payload[: len(payload) // 2] for payload in payloads[::every]]
    attributes = {
        "googclient_schemaname": SCHEMA,
        "googclient_schemaencoding": "BINARY",
        "googclient_schemarevisionid": REVISION,
    }
    schema = types.Schema.pb()(
        name=SCHEMA, type_=types.Schema.Type.AVRO, definition=flights.avro_schema(), revision_id=REVISION
    )
    service = canned.Canned(
        messages,
        [_with_payloads(response, payloads, attributes) for response in canned.responses()],
        {b"/google.pubsub.v1.SchemaService/GetSchema": schema.SerializeToString()},
    )
    service.serve()


def _with_payloads(data: bytes, payloads: list[bytes], attributes: dict[str, str]) -> bytes:
    response = types.StreamingPullResponse.pb().FromString(data)
    for received, payload in zip(response.received_messages, payloads, strict=True):
        received.message.data = payload
        received.message.attributes.clear()
        received.message.attributes.update(attributes)
    return bytes(response.SerializeToString())


def run(spark: Any, messages: int, every: int = 0, **options: Any) -> float:
    """Return messages/s of a query against its own server. One payload of `every` is malformed, or none if it is 0."""
    command = [sys.executable, __file__, "serve", str(every)]
    return read.read_canned(spark, messages, server=command, maxMessagesPerTrigger=400_000, **options)


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve(messages=int(sys.argv[3]), every=int(sys.argv[2]))
        return
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=2_000_000)
    messages = arguments.parse_args().messages
    spark = read.session()
    as_bytes = decoded = malformed = 0.0
    for _ in range(2):
        as_bytes = max(as_bytes, run(spark, messages))
        decoded = max(decoded, run(spark, messages, decode="topic", schema=SCHEMA))
        options = {"decode": "topic", "schema": SCHEMA, "mode": "PERMISSIVE"}
        malformed = max(malformed, run(spark, messages, 100, **options))
    print(f"as bytes       {as_bytes:12,.0f} messages/s")
    print(f"decode=topic   {decoded:12,.0f} messages/s, of which decoding is {1 - decoded / as_bytes:.0%}")
    print(f"1 of 100 bad   {malformed:12,.0f} messages/s, {malformed / decoded:.2f} of that")


if __name__ == "__main__":
    main()
