"""Acknowledge and ModifyAckDeadline for any number of messages: Arrow columns to requests, a few at a time.

Requests hold at most MAX_IDS ids and MAX_BYTES bytes and are cut out of the Arrow column of ack ids, which Arrow turns
into the entries of a protobuf message. Retryable codes are tried again until a deadline. On a subscription with
exactly-once delivery the service names the ids that failed (google.rpc.ErrorInfo): transient ones are sent again,
permanent ones are given back. An ack that fails is never an error here: the ids that may not have counted are the
result, and the caller decides.

Limits: https://cloud.google.com/pubsub/quotas#resource_limits (512 KiB a request); 1000 ids is what Google's clients
send. Failures: https://cloud.google.com/pubsub/docs/exactly-once-delivery#handle_failures
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..backend import Connection
from ..backend.status import RETRYABLE, delays
from ..slices import slices

MAX_IDS = 1000
MAX_BYTES = 512 * 1024
_IN_FLIGHT = 128  # requests, 25 MB of ids; with 32 the sender waited so often that each cost a seventh more
_TIMEOUT = 30.0  # seconds for one request, before it is tried again
_log = logging.getLogger(__name__)


def requests(subscription: str, ack_ids: pa.Array, seconds: int | None) -> list[tuple[bytes, pa.Array]]:
    """Serialized requests with the ids of each: acks, or modifications of the deadline to `seconds`."""
    if not len(ack_ids):
        return []
    empty = _empty(subscription, seconds)
    start = empty.SerializeToString()
    entries = _entries(ack_ids, type(empty))
    _, places, content = entries.buffers()
    ends = np.frombuffer(places, np.int32, len(entries) + 1)
    wire = memoryview(content)
    return [
        (b"".join((start, wire[ends[first] : ends[end]])), ack_ids.slice(first, end - first))
        for first, end in slices(ends, MAX_IDS, MAX_BYTES - len(start))
    ]


def _empty(subscription: str, seconds: int | None) -> Any:
    """A request as a protobuf message that has everything but its ids."""
    from google.pubsub_v1 import types

    if seconds is None:
        return types.AcknowledgeRequest.pb()(subscription=subscription)
    return types.ModifyAckDeadlineRequest.pb()(subscription=subscription, ack_deadline_seconds=seconds)


def _entries(ack_ids: pa.Array, kind: type[Any]) -> pa.Array:
    """Each id as it is in a serialized request of this kind, one after the other in memory."""
    lengths = pc.binary_length(ack_ids).dictionary_encode()  # few are different
    samples = [(kind(ack_ids=["x" * length]).SerializeToString(), length) for length in lengths.dictionary.to_pylist()]
    heads = pa.array([sample[: len(sample) - length] for sample, length in samples], pa.binary())
    return pc.binary_join_element_wise(heads.take(lengths.indices), ack_ids.cast(pa.binary()), b"")


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
    denied, why = 0, ""
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
            elif error.code() is grpc.StatusCode.CANCELLED:  # we are closing
                unanswered.append(ids)
                continue
            else:
                denied, why = denied + len(ids), error.details()
                refused.append(ids)
                continue
            at = time.monotonic() + next(pauses)
            if at > deadline:
                unanswered.extend(i for _, i, _ in retry)
            else:
                again.extend((at, each) for each in retry)
    if denied:
        asked = "acks" if seconds is None else "leases"
        _log.warning("%d %s of `%s` are refused: %s", denied, asked, subscription, why)
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
