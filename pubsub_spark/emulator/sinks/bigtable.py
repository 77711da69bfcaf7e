"""The destination of Bigtable subscriptions: a row for each message, in Google's emulator of Bigtable.

Used if BIGTABLE_EMULATOR_HOST names its address. The messages of its API are the part of Google's protos below, without
a client library.

Without a mapping the key of a row is subscription, hash and message id, and the data are in the family `data`. With one
the message is a JSON object. Its fields are columns of `data`, or of the family of their name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from pubsub_spark.emulator.sinks.destination import DestinationError, TopicSchema
from pubsub_spark.emulator.sinks.export_batch import Limits, OpenBatch
from pubsub_spark.emulator.state.message import Message
from pubsub_spark.schema.protobuf.protoc import compile_text

_PROTO = """
syntax = "proto3";
package pubsub_spark.bigtable;
message GetTableRequest { string name = 1; int32 view = 2; }
message ColumnFamily {}
message Table { string name = 1; map<string, ColumnFamily> column_families = 3; }
message SetCell { string family_name = 1; bytes column_qualifier = 2; int64 timestamp_micros = 3; bytes value = 4; }
message Mutation { SetCell set_cell = 1; }
message MutateRowsRequest {
  message Entry { bytes row_key = 1; repeated Mutation mutations = 2; }
  string table_name = 1;
  repeated Entry entries = 2;
  string app_profile_id = 3;
}
message Status { int32 code = 1; string message = 2; }
message MutateRowsResponse {
  message Entry { int64 index = 1; Status status = 2; }
  repeated Entry entries = 1;
}
"""
_GET_TABLE = "/google.bigtable.admin.v2.BigtableTableAdmin/GetTable"
_MUTATE_ROWS = "/google.bigtable.v2.Bigtable/MutateRows"
_SCHEMA_VIEW = 2
_DATA, _METADATA = "data", "pubsub_metadata"  # column families
_LIMITS = Limits(seconds=0.1, messages=1000, bytes=5_000_000)
_TIMEOUT_SECONDS = 30.0
_DENIED = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


class Cell(NamedTuple):
    family: str
    qualifier: bytes
    value: bytes


Row = tuple[bytes, list[Cell]]  # its key and its cells


class BigtableTable:
    limits = _LIMITS

    def __init__(self, address: str, config: Any) -> None:
        self._config = config
        self._channel = grpc.insecure_channel(address)

    def check(self) -> None:
        _check_families(self._config, self._families())

    def write(self, batch: OpenBatch, subscription: str, _: TopicSchema | None) -> Sequence[int]:
        """A message that makes no row, or that the table refuses, cannot be written."""
        families = self._families()
        _check_families(self._config, families)
        request = _message("MutateRowsRequest")(
            table_name=self._config.table, app_profile_id=self._config.app_profile_id
        )
        places: list[int] = []
        misfits: list[int] = []
        for index, lease in enumerate(batch.leases):
            try:
                key, cells = row(self._config, lease.message, subscription, families)
            except Exception:  # any error of a decoder: the message is not a row
                misfits.append(index)
                continue
            micros = round(lease.message.published * 1000) * 1000
            places.append(index)
            mutations = [
                {
                    "set_cell": {
                        "family_name": family,
                        "column_qualifier": qualifier,
                        "timestamp_micros": micros,
                        "value": value,
                    }
                }
                for family, qualifier, value in cells
            ]
            request.entries.add(row_key=key, mutations=mutations)
        return [*misfits, *(places[refused] for refused in self._mutate(request))] if places else misfits

    def _mutate(self, request: Any) -> list[int]:
        response = _message("MutateRowsResponse")
        call = self._channel.unary_stream(_MUTATE_ROWS, type(request).SerializeToString, response.FromString)
        try:
            answers = [entry for answer in call(request, timeout=_TIMEOUT_SECONDS) for entry in answer.entries]
        except grpc.RpcError as problem:
            raise _failure(self._config.table, problem) from None
        return [entry.index for entry in answers if entry.status.code]

    def _families(self) -> frozenset[str]:
        request = _message("GetTableRequest")(name=self._config.table, view=_SCHEMA_VIEW)
        call = self._channel.unary_unary(_GET_TABLE, type(request).SerializeToString, _message("Table").FromString)
        try:
            return frozenset(call(request, timeout=_TIMEOUT_SECONDS).column_families)
        except grpc.RpcError as problem:
            raise _failure(self._config.table, problem) from None


def row(config: Any, message: Message, subscription: str, families: Collection[str]) -> Row:
    """Raise ValueError if the message makes no row."""
    mapping = getattr(config, "column_family_mapping", None)  # older client libraries lack it
    if mapping is not None and config.HasField("column_family_mapping"):
        key, cells = _mapped(mapping, message, families)
    else:
        digest = hashlib.sha256(message.id.encode()).hexdigest()[:8]
        key, cells = f"{subscription}#{digest}#{message.id}".encode(), [Cell(_DATA, b"", message.data)]
    if config.write_metadata:
        cells += _metadata(message, subscription)
    return key, cells


def _mapped(mapping: Any, message: Message, families: Collection[str]) -> Row:
    fields = json.loads(message.data)
    if not isinstance(fields, dict):
        raise ValueError("The message is not a JSON object.")
    names = list(mapping.delimited_key.key_fields)
    if not names:
        raise ValueError("The mapping has no key.")
    if missing := [name for name in names if fields.get(name) is None]:
        raise ValueError(f"The message has no field `{missing[0]}`, which is part of the key.")
    cells: list[Cell] = []
    for name, value in fields.items():
        if name not in families or name == _DATA:
            cells.append(Cell(_DATA, name.encode(), _bytes(value)))
        elif isinstance(value, dict):
            cells += [Cell(name, inner.encode(), _bytes(content)) for inner, content in value.items()]
        else:
            cells.append(Cell(name, b"", _bytes(value)))
    return bytes(mapping.delimited_key.delimiter).join(_bytes(fields[name]) for name in names), cells


def _metadata(message: Message, subscription: str) -> list[Cell]:
    attributes = dict(message.attributes)
    if message.key:
        attributes["ordering_key"] = message.key
    values = {
        "subscription_name": subscription,
        "message_id": message.id,
        "publish_time": str(round(message.published * 1000) * 1000),
        "attributes": json.dumps(attributes),
    }
    return [Cell(_METADATA, name.encode(), value.encode()) for name, value in values.items()]


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _check_families(config: Any, families: Collection[str]) -> None:
    for family in (_DATA, _METADATA) if config.write_metadata else (_DATA,):
        if family not in families:
            said = f"The Bigtable table `{config.table}` has no column family `{family}`. Create it."
            raise DestinationError("SCHEMA_MISMATCH", said)
    mapping = getattr(config, "column_family_mapping", None)
    if mapping is not None and mapping.HasField("row_key_schema"):
        said = f"The Bigtable table `{config.table}` has no structured row key. Set `delimitedKey`."
        raise DestinationError("SCHEMA_MISMATCH", said)


def _failure(table: str, problem: Any) -> Exception:
    if problem.code() in _DENIED:  # a missing table is also denied: NOT_FOUND is unused, as documented
        return DestinationError(
            "PERMISSION_DENIED", f"The Bigtable table `{table}` cannot be used: {problem.details()}."
        )
    return OSError(f"Bigtable does not write to `{table}` now: {problem.details()}")


@cache
def _message(name: str) -> Any:
    return GetMessageClass(_pool().FindMessageTypeByName(f"pubsub_spark.bigtable.{name}"))


@lru_cache(maxsize=1)
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in compile_text(_PROTO).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool
