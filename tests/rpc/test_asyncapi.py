"""`pubsub-spark apply`, `asyncapi export` and `emulator --config`, on the emulator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import yaml
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from typer.testing import Result

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.schema.protobuf.protoc import compile_text
from tests.rpc.conftest import COMMAND, Client, invoke

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "flights.asyncapi.yaml"


def run(host: str, *arguments: str | Path, code: int = 0) -> Result:
    """Run a command of `pubsub-spark` on the emulator of an address, with the project `p`."""
    environment = {**os.environ, "GOOGLE_CLOUD_PROJECT": "p", "PUBSUB_EMULATOR_HOST": host}
    return invoke(map(str, arguments), environment, code)


def actions(result: Result) -> list[str]:
    return [step["action"] for step in json.loads(result.stdout)["steps"]]


def test_apply_creates_and_a_second_run_changes_nothing(emulator: Emulator):
    """A dry run changes nothing, a run creates everything, another one nothing."""
    host = emulator.endpoint

    for flags, expected in ((["--dry-run"], "create"), ([], "create"), ([], "none"), (["--dry-run"], "none")):
        result = run(host, "apply", EXAMPLE, "--json", *flags)
        assert {expected} == set(actions(result))
    emulator.publish(
        "projects/p/topics/flight-departures",
        {"data": b"\x04UA\x02\x00\x00", "ordering_key": "N1"},
    )
    assert 1 == emulator.backlog("projects/p/subscriptions/flight-departures-to-table")


def test_export_is_what_apply_would_make(emulator: Emulator, tmp_path: Path):
    """The document of existing resources changes nothing in its own project, and creates the same ones elsewhere."""
    host = emulator.endpoint
    run(host, "apply", EXAMPLE)
    exported = tmp_path / "exported.yaml"

    run(host, "asyncapi", "export", "--output", exported)

    assert {"none"} == set(actions(run(host, "apply", exported, "--json")))
    as_json = run(host, "asyncapi", "export", "--json").stdout
    assert yaml.safe_load(exported.read_text()) == json.loads(as_json)
    emulator.reset()
    assert {"create"} == set(actions(run(host, "apply", exported, "--json")))
    assert exported.read_text() == run(host, "asyncapi", "export").stdout


def test_export_names_a_compiled_schema(emulator: Emulator, tmp_path: Path):
    """A compiled schema has no definition as a text: the document names it, with the reason of the missing payload."""
    host = emulator.endpoint
    [file] = compile_text('syntax = "proto3"; message M { int32 count = 1; }').file
    compiled = {"root_message": "M", "compiled_bytes": FileDescriptorSet(file=[file]).SerializeToString()}
    schema = protos.Schema(type_=1, compiled_proto_schema=compiled)
    Client(emulator.endpoint).ask("SchemaService/CreateSchema", parent="projects/p", schema_id="number", schema=schema)
    emulator.create_topic("projects/p/topics/numbers", schema="projects/p/schemas/number", encoding="JSON")
    exported = tmp_path / "exported.yaml"

    run(host, "asyncapi", "export", "--output", exported)

    assert (
        "The schema is compiled" in exported.read_text() and "name: projects/p/schemas/number" in exported.read_text()
    )
    again = run(host, "apply", exported, "--json")
    assert {"none"} == set(actions(again)), again.stderr


def test_change_of_the_document_is_an_update(emulator: Emulator, tmp_path: Path):
    """Another label, a longer retention and a new field are updates of the topic and a revision of the schema."""
    host = emulator.endpoint
    (tmp_path / "flight.avsc").write_text((ROOT / "examples" / "flight.avsc").read_text())
    document = tmp_path / "api.yaml"
    document.write_text(EXAMPLE.read_text())
    run(host, "apply", document)
    document.write_text(EXAMPLE.read_text().replace("team: flights", "team: other").replace("86400s", "172800s"))
    schema = json.loads((tmp_path / "flight.avsc").read_text())
    schema["fields"].append({"name": "gate", "type": ["null", "string"], "default": None})
    (tmp_path / "flight.avsc").write_text(json.dumps(schema))

    result = run(host, "apply", document, "--json")

    changed = [step for step in json.loads(result.stdout)["steps"] if step["action"] != "none"]
    assert [("update", "Schema"), ("update", "Topic")] == [(step["action"], step["kind"]) for step in changed]
    assert {"none"} == set(actions(run(host, "apply", document, "--json")))


def test_conflict_and_refusal_are_sentences(emulator: Emulator):
    """An impossible change is one error, and nothing is done. If the service refuses, the error lists the changes."""
    host = emulator.endpoint
    emulator.create_topic("projects/p/topics/other")
    emulator.create_subscription("projects/p/subscriptions/flight-departures-to-table", "projects/p/topics/other")

    result = run(host, "apply", EXAMPLE, code=1)

    assert "is of Topic `projects/p/topics/other`, which cannot be changed" in result.stderr
    emulator.reset()
    emulator.fail("CreateTopic", "PERMISSION_DENIED", message="no")
    refused = run(host, "apply", EXAMPLE, code=1)
    made = "1 of 4 changes are made (Schema `projects/p/schemas/flight`). Run it again for the others."
    assert made in refused.stderr
    run(host, "apply", EXAMPLE)


def test_wrong_document_creates_nothing(emulator: Emulator, tmp_path: Path):
    """All errors of a document are reported, with their lines, and nothing is created."""
    wrong = tmp_path / "api.yaml"
    text = EXAMPLE.read_text().replace("source: nyc", "source: 8")
    wrong.write_text(text.replace("team: flights", "team: 7").replace("encoding: binary", "encoding: xml"))
    (tmp_path / "flight.avsc").write_text("{}")

    result = run(emulator.endpoint, "apply", wrong, code=1)

    assert "has 3 problems" in result.stderr
    assert "bindings.googlepubsub.attributes.source`: this must be of type string, got `8`" in result.stderr
    assert "line 15, `channels.departures.bindings.googlepubsub.labels.team`" in result.stderr
    assert "encoding` must be JSON or BINARY, got `xml`" in result.stderr


def test_emulator_begins_with_a_document(tmp_path: Path):
    """`pubsub-spark emulator --config` also accepts an AsyncAPI document."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), "GOOGLE_CLOUD_PROJECT": "p"}
    process = subprocess.Popen(
        [*COMMAND, "emulator", "--port", "0", "--config", str(EXAMPLE)], env=given, text=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        host = process.stdout.readline().strip().removeprefix("export PUBSUB_EMULATOR_HOST=")
        assert {"none"} == set(actions(run(host, "apply", EXAMPLE, "--json")))
    finally:
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30)
        process.stdout.close()
