"""The context of one RPC."""

from __future__ import annotations

from dataclasses import dataclass

from pubsub_spark.emulator.runtime.unanswered import Answer

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(slots=True)
class RpcContext:
    method: str  # `/google.pubsub.v1.Publisher/Publish`
    metadata: Metadata = ()
    peer: str = ""  # the client's address
    deadline: float | None = None  # on the emulator's clock: the client stops waiting then
    cancelled: bool = False  # the client stopped waiting, or is gone
    request: bytes = b""  # serialized: for a stream the first one, once the stream has ended
    messages: int = 0  # delivered by a stream, once it has ended
    answer: Answer | None = None  # of a Publish, from a transport that reports when it was written

    @property
    def rpc(self) -> str:
        """The method without its service."""
        return self.method.rpartition("/")[2]
