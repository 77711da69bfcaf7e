"""Bigtable subscriptions against Google's emulator of Bigtable, where the Cloud SDK has it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from pubsub_spark.emulator import Emulator
from pubsub_spark.schema.protobuf.protoc import compile_text
from tests.rpc.conftest import SUB, TOPIC, Client, wait_until

INSTANCE = "projects/p/instances/i"
# The parts of Google's protos that create a table and read it.
PROTO = """
syntax = "proto3";
package test.bigtable;
message ColumnFamily {}
message Table { map<string, ColumnFamily> column_families = 3; }
message CreateTableRequest { string parent = 1; string table_id = 2; Table table = 3; }
message ReadRowsRequest { string table_name = 1; }
message Text { string value = 1; }
message Qualifier { bytes value = 1; }
message ReadRowsResponse {
  message CellChunk { bytes row_key = 1; Text family_name = 2; Qualifier qualifier = 3; bytes value = 6; }
  repeated CellChunk chunks = 1;
}
"""


def program() -> Path | None:
    """Return Google's emulator, in the Cloud SDK that `gcloud` is of."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        return None
    path = Path(gcloud).resolve().parents[1] / "platform" / "bigtable-emulator" / "cbtemulator"
    return path if path.exists() else None


class Bigtable:
    """Google's emulator of Bigtable, by two calls."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address)
        pool = DescriptorPool()
        for file in compile_text(PROTO).file:
            pool.AddSerializedFile(file.SerializeToString())
        self._message = lambda name: GetMessageClass(pool.FindMessageTypeByName(f"test.bigtable.{name}"))

    def create(self, table: str, *families: str) -> str:
        request = self._message("CreateTableRequest")(parent=INSTANCE, table_id=table)
        for family in families:
            request.table.column_families[family].SetInParent()
        call = self.channel.unary_unary("/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable")
        call(request.SerializeToString(), timeout=10)
        return f"{INSTANCE}/tables/{table}"

    def cells(self, table: str) -> list[tuple[str, str, bytes]]:
        """Return family, qualifier and value of each cell."""
        request = self._message("ReadRowsRequest")(table_name=table)
        call = self.channel.unary_stream("/google.bigtable.v2.Bigtable/ReadRows")
        found, family, qualifier = [], "", ""
        for raw in call(request.SerializeToString(), timeout=10):
            for chunk in self._message("ReadRowsResponse").FromString(raw).chunks:  # repeated fields are left out
                family = chunk.family_name.value if chunk.HasField("family_name") else family
                qualifier = chunk.qualifier.value.decode() if chunk.HasField("qualifier") else qualifier
                found.append((family, qualifier, chunk.value))
        return found


@pytest.fixture(scope="module")
def bigtable() -> Iterator[Bigtable]:
    path = program()
    if path is None:
        pytest.skip("the Cloud SDK's emulator of Bigtable is not installed")
    with subprocess.Popen([path, "-port", "0"], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            bigtable = Bigtable(running.stdout.readline().split()[-1])
            yield bigtable
            bigtable.channel.close()
        finally:
            running.kill()


@pytest.fixture
def emulator(bigtable: Bigtable, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable.address)
    with Emulator() as emulator:
        yield emulator


def subscribe(emulator: Emulator, table: str, **config: Any) -> None:
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC, bigtable_config={"table": table, **config})


def drained(emulator: Emulator) -> bool:
    emulator.advance(11)
    return 0 == emulator.backlog(SUB)


def state(client: Client) -> str:
    config = client.subscription().bigtable_config
    return str(config.DESCRIPTOR.enum_types_by_name["State"].values_by_number[config.state].name)


def test_messages_become_rows(bigtable: Bigtable, emulator: Emulator, client: Client):
    """Each message is a row, with its metadata if the subscription asks for it."""
    table = bigtable.create("plain", "data", "pubsub_metadata")
    subscribe(emulator, table, write_metadata=True)
    ids = emulator.publish(TOPIC, b"a", b"\xff")
    wait_until(lambda: drained(emulator))

    cells = bigtable.cells(table)
    assert [b"a", b"\xff"] == sorted(value for family, _, value in cells if family == "data")
    assert ids == sorted(value.decode() for _, qualifier, value in cells if qualifier == "message_id")
    assert "ACTIVE" == state(client)


def test_fields_become_columns(bigtable: Bigtable, emulator: Emulator):
    """With a mapping fields are columns, in the families of their names."""
    table = bigtable.create("mapped", "data", "place")
    subscribe(emulator, table, column_family_mapping={"delimited_key": {"key_fields": ["id"]}})
    emulator.publish(TOPIC, '{"id": "x", "place": {"city": "Newark"}}')
    wait_until(lambda: drained(emulator))

    assert [("data", "id", b"x"), ("place", "city", b"Newark")] == sorted(bigtable.cells(table))


def test_tables_that_cannot_be_written_are_states(bigtable: Bigtable, emulator: Emulator, client: Client):
    """A missing table is PERMISSION_DENIED, as documented, one without the family `data` SCHEMA_MISMATCH. Both hold."""
    subscribe(emulator, f"{INSTANCE}/tables/none")
    emulator.publish(TOPIC, b"a")
    wait_until(lambda: "PERMISSION_DENIED" == state(client))
    without = bigtable.create("without", "other")
    client.update("bigtable_config", bigtable_config={"table": without})
    wait_until(lambda: "SCHEMA_MISMATCH" == state(client))

    assert ([], 1) == (bigtable.cells(without), emulator.backlog(SUB))
