"""A Pub/Sub server that answers Publish at once: a message id for every message, and nothing kept.

    python benchmarks/write_server.py          prints its port; ends with its standard input

It reads of a request only how many messages there are (each stays bytes), so that it is never the bottleneck on the
cores that it shares with what is measured. The ids are as long as the service's.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.pubsub_v1 import types

_FIRST_ID = 10**16


def _skim() -> Any:
    """A message type that is to PublishRequest as a table of contents: `repeated bytes messages = 2`."""
    file = descriptor_pb2.FileDescriptorProto(name="skim.proto", package="bench", syntax="proto3")
    field = file.message_type.add(name="Skim").field.add(name="messages", number=2)
    field.type, field.label = field.TYPE_BYTES, field.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Skim"))


Skim = _skim()


@cache
def answer(messages: int) -> bytes:
    """A serialized PublishResponse with so many ids."""
    ids = [str(_FIRST_ID + number) for number in range(messages)]
    made: bytes = types.PublishResponse.pb()(message_ids=ids).SerializeToString()
    return made


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Publish, whoever calls it."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method.endswith("/Publish"):
            return grpc.unary_unary_rpc_method_handler(lambda body, _: answer(len(Skim.FromString(body).messages)))
        return None


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
