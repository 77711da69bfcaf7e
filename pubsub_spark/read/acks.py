"""Acknowledge and ModifyAckDeadline for any number of messages: Arrow columns to requests, a few at a time.

Requests hold at most MAX_IDS ids and MAX_BYTES bytes and are encoded in Rust from the Arrow column of ack ids.
Retryable codes are tried again until a deadline. On a subscription with exactly-once delivery the service names the
ids that failed (google.rpc.ErrorInfo): transient ones are sent again, permanent ones are given back. An ack that
fails is never an error here: the ids that may not have counted are the result, and the caller decides.

Limits: https://cloud.google.com/pubsub/quotas#resource_limits (512 KiB a request); 1000 ids is what Google's clients
send. Failures: https://cloud.google.com/pubsub/docs/exactly-once-delivery#handle_failures
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..backend import Connection
from ..backend.status import RETRYABLE, delays

MAX_IDS = 1000
MAX_BYTES = 512 * 1024
_IN_FLIGHT = 32  # requests; at 30 ms for an answer, a million acks a second
_ID_OVERHEAD = 4  # tag and length of an ack id of up to 2 MiB on the wire
_TIMEOUT = 30.0  # seconds for one request, before it is tried again
_log = logging.getLogger(__name__)


@lru_cache(maxsize=2)
def _handler(kind: str) -> Any:
    from google.pubsub_v1 import types
    from ptars import HandlerPool

    descriptor = getattr(types, kind).pb().DESCRIPTOR
    return HandlerPool([descriptor.file]).get_for_message(descriptor)


def cuts(ack_ids: pa.Array, fixed_bytes: int) -> Iterator[tuple[int, int]]:
    """Start and end of the ids of each request; `fixed_bytes` is what a request takes besides them."""
    ends = np.cumsum(pc.binary_length(ack_ids).to_numpy(zero_copy_only=False).astype(np.int64) + _ID_OVERHEAD)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        fits = int(np.searchsorted(ends, before + MAX_BYTES - fixed_bytes, side="right"))
        end = min(start + MAX_IDS, max(fits, start + 1))
        yield start, end
        start = end


def requests(subscription: str, ack_ids: pa.Array, seconds: int | None) -> list[tuple[bytes, pa.Array]]:
    """Serialized requests with the ids of each: acks, or modifications of the deadline to `seconds`."""
    places = list(cuts(ack_ids, len(subscription) + 16))
    if not places:
        return []
    offsets = pa.array([0, *(end for _, end in places)], pa.int32())
    columns = {
        "subscription": pa.array([subscription] * len(places), pa.string()),
        "ack_ids": pa.ListArray.from_arrays(offsets, ack_ids.cast(pa.string())),
    }
    kind = "AcknowledgeRequest"
    if seconds is not None:
        kind = "ModifyAckDeadlineRequest"
        columns["ack_deadline_seconds"] = pa.array([seconds] * len(places), pa.int32())
    handler = _handler(kind)
    schema = handler.schema()
    batch = pa.RecordBatch.from_arrays(
        [columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema
    )
    encoded = handler.record_batch_to_array(batch)
    return [(encoded[i].as_py(), ack_ids.slice(start, end - start)) for i, (start, end) in enumerate(places)]


class Failed(NamedTuple):
    """Ack ids that may not have counted: `refused` for good, `unanswered` when the time was over."""

    refused: pa.Array
    unanswered: pa.Array


_Request: TypeAlias = tuple[bytes, pa.Array, Iterator[float]]  # serialized, its ids, the pauses before it is sent again


def send(
    connection: Connection, subscription: str, ack_ids: Iterable[pa.Array], seconds: int | None, deadline: float
) -> Failed:
    """Acknowledge (seconds None) or set the lease of messages; the ack ids that may not have counted.

    ack_ids: arrays of strings, taken as they are needed. deadline: time.monotonic() seconds after which nothing is
    tried again.
    """
    call = connection.acknowledge if seconds is None else connection.modify_ack_deadline
    fresh = ((r, i, delays()) for ids in ack_ids for r, i in requests(subscription, ids, seconds))
    flying: deque[tuple[Any, _Request]] = deque()
    again: list[tuple[float, _Request]] = []  # and when
    refused: list[pa.Array] = []
    unanswered: list[pa.Array] = []
    while True:
        now = time.monotonic()
        due = [request for at, request in again if at <= now]
        again = [(at, request) for at, request in again if at > now]
        due += islice(fresh, max(0, _IN_FLIGHT - len(flying) - len(again) - len(due)))
        timeout = max(0.1, min(_TIMEOUT, deadline - now))
        flying.extend((call(subscription, request[0], timeout), request) for request in due)
        if not flying:
            if not again:
                break
            time.sleep(min(at for at, _ in again) - now)
            continue
        future, (request, ids, pauses) = flying.popleft()
        try:
            future.result()
        except grpc.RpcError as error:
            permanent, transient = _failures(error)
            if permanent or transient:
                refused.append(pa.array(permanent, pa.string()))
                retry = [(r, i, pauses) for r, i in requests(subscription, pa.array(transient, pa.string()), seconds)]
            elif error.code() in RETRYABLE:
                retry = [(request, ids, pauses)]
            else:
                asked = "acks" if seconds is None else "leases"
                _log.warning("%d %s of `%s` are refused: %s", len(ids), asked, subscription, error.details())
                refused.append(ids)
                continue
            at = time.monotonic() + next(pauses)
            if at > deadline:
                unanswered.extend(i for _, i, _ in retry)
            else:
                again.extend((at, each) for each in retry)
    return Failed(_joined(refused), _joined(unanswered))


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays([ids.cast(pa.string()) for ids in arrays]) if arrays else pa.array([], pa.string())


def _failures(error: Any) -> tuple[list[str], list[str]]:
    """The ack ids that ErrorInfo names: permanent failures, transient ones."""
    from google.rpc.error_details_pb2 import ErrorInfo
    from grpc_status import rpc_status

    try:
        status = rpc_status.from_call(error)
    except ValueError:  # the details do not match the status: not a message for us
        return [], []
    permanent, transient = [], []
    for detail in status.details if status is not None else ():
        if detail.Is(ErrorInfo.DESCRIPTOR):
            info = ErrorInfo()
            detail.Unpack(info)
            for ack_id, reason in info.metadata.items():
                if reason.startswith("PERMANENT_FAILURE"):
                    permanent.append(ack_id)
                elif reason.startswith("TRANSIENT_FAILURE"):
                    transient.append(ack_id)
    return permanent, transient
