"""A Pub/Sub server that answers Publish at once: a message id for every message, and nothing kept.

Its topic has the schema of the demo's flights.

    python benchmarks/write_server.py          prints its port, ends with its standard input

Of a request it reads only the number of messages (each stays bytes), so that it is never the bottleneck on the cores
that it shares with the measured process. The ids are as long as the service's.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.pubsub_v1 import types

sys.path[:0] = [str(Path(__file__).parent.parent)]

from pubsub_spark.demo import flights  # noqa: E402

SCHEMA = "projects/bench/schemas/flight"
_FIRST_ID = 10**16


def _skim() -> Any:
    """Return a message type that is to PublishRequest as a table of contents: `repeated bytes messages = 2`."""
    file = descriptor_pb2.FileDescriptorProto(name="skim.proto", package="bench", syntax="proto3")
    field = file.message_type.add(name="Skim").field.add(name="messages", number=2)
    field.type, field.label = field.TYPE_BYTES, field.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Skim"))


Skim = _skim()


@cache
def answer(messages: int) -> bytes:
    """Return a serialized PublishResponse with `messages` ids."""
    ids = [str(_FIRST_ID + number) for number in range(messages)]
    made: bytes = types.PublishResponse.pb()(message_ids=ids).SerializeToString()
    return made


@cache
def resources() -> dict[str, bytes]:
    """Return the answers to the calls that look for the topic and its schema, by the end of their names."""
    settings = types.SchemaSettings(schema=SCHEMA, encoding=types.Encoding.BINARY)
    topic = types.Topic(name="projects/bench/topics/write", schema_settings=settings)
    schema = types.Schema(
        name=SCHEMA, type_=types.Schema.Type.AVRO, definition=flights.avro_schema(), revision_id="f11947ab"
    )
    revisions = types.ListSchemaRevisionsResponse(schemas=[schema])
    return {
        "GetTopic": types.Topic.serialize(topic),
        "GetSchema": types.Schema.serialize(schema),
        "ListSchemaRevisions": types.ListSchemaRevisionsResponse.serialize(revisions),
    }


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Publish for any caller, and the calls before it."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method.endswith("/Publish"):
            return grpc.unary_unary_rpc_method_handler(lambda body, _: answer(len(Skim.FromString(body).messages)))
        known = resources().get(details.method.rpartition("/")[2])
        return known and grpc.unary_unary_rpc_method_handler(lambda *_: known)


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
