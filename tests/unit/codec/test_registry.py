"""The decoder of a task: the revision of each message, the fetched revisions, and the reason for each failure."""

from __future__ import annotations

import itertools
import json
import pickle
import sys

import pyarrow as pa
import pytest

from pubsub_spark.codec.registry import Decoder, SchemaRevision, TopicSchema
from pubsub_spark.errors import OptionsError, SchemaError

_numbers = itertools.count()


def revision(*types: str, name: str | None = None, id_: str = "aaaaaaaa") -> SchemaRevision:
    """Return a revision of a schema of its own, so that no test finds a revision that another test has fetched."""
    fields = [{"name": f"f{place}", "type": type_, "default": 0} for place, type_ in enumerate(types)]
    name = name or f"projects/p/schemas/s{next(_numbers)}"
    return SchemaRevision(name, id_, "AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))


def no_fetch(name: str) -> SchemaRevision:
    raise AssertionError(f"`{name}` was fetched")


def texts(*values: str | None) -> pa.StringArray:
    return pa.array(values, pa.string())


def messages(*values: bytes) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def test_messages_without_attributes_are_read_with_the_topics_encoding_and_revision():
    """Without attributes nothing is fetched, and the reader's revision is named as the writer's."""
    schema = TopicSchema("JSON", revision("int"))

    decoded = Decoder(schema, no_fetch).decode(messages(b'{"f0":5}'), texts(None), texts(None))

    assert [{"f0": 5}] == decoded.value.to_pylist()
    assert ["aaaaaaaa"] == decoded.revision.to_pylist()
    assert [None] == decoded.error.to_pylist()


def test_messages_keep_their_order_whatever_their_revision_and_encoding():
    """With mixed revisions and encodings, each message is read by its attributes and keeps its place."""
    new = revision("long", "long", id_="bbbbbbbb")
    old = revision("int", name=new.name, id_="aaaaaaaa")
    decoder = Decoder(TopicSchema("BINARY", new), lambda _: old)
    data = messages(b"\x02", b"\x04\x06", b'{"f0":3}', b"\x08\x0a", b"\x0c")
    revisions = texts("aaaaaaaa", "bbbbbbbb", "aaaaaaaa", None, "aaaaaaaa")
    encodings = texts("BINARY", "BINARY", "JSON", None, "BINARY")

    decoded = decoder.decode(data, revisions, encodings)

    expected = [(1, 0), (2, 3), (3, 0), (4, 5), (6, 0)]
    assert [{"f0": first, "f1": second} for first, second in expected] == decoded.value.to_pylist()
    assert ["aaaaaaaa", "bbbbbbbb", "aaaaaaaa", "bbbbbbbb", "aaaaaaaa"] == decoded.revision.to_pylist()


def test_revision_is_fetched_once_per_task():
    """A revision is fetched once for several batches."""
    new = revision("int", id_="bbbbbbbb")
    fetched = []

    def fetch(name: str) -> SchemaRevision:
        fetched.append(name)
        return revision("int", name=new.name, id_="aaaaaaaa")

    decoder = Decoder(TopicSchema("BINARY", new), fetch)
    for _ in range(3):
        decoder.decode(messages(b"\x02"), texts("aaaaaaaa"), texts("BINARY"))

    assert [f"{new.name}@aaaaaaaa"] == fetched


def test_message_of_the_schema_that_the_topic_had_before_is_read_with_it():
    """After a change of the topic's schema, remaining messages name the old schema and resolve to the new one."""
    new, old = revision("long", "long"), revision("int")
    fetched = []

    def fetch(name: str) -> SchemaRevision:
        fetched.append(name)
        return old

    decoder = Decoder(TopicSchema("BINARY", new), fetch)
    none = pa.nulls(3, pa.string())
    decoded = decoder.decode(messages(b"\x02\x04", b"\x06", b"\x08\x0a"), none, none, texts(None, old.name, new.name))

    assert [{"f0": 1, "f1": 2}, {"f0": 3, "f1": 0}, {"f0": 4, "f1": 5}] == decoded.value.to_pylist()
    assert [f"{old.name}@aaaaaaaa"] == fetched


def test_revision_that_is_gone_is_the_reason_of_its_messages_alone():
    """Messages of a deleted revision have the backend's error as reason. The revision is fetched once per task."""
    new = revision("int", id_="bbbbbbbb")
    asked = []

    def fetch(name: str) -> SchemaRevision:
        asked.append(name)
        raise LookupError(f"The schema revision `{name}` does not exist.")

    decoder = Decoder(TopicSchema("BINARY", new), fetch)
    for _ in range(2):
        decoded = decoder.decode(messages(b"\x02", b"\x04"), texts("aaaaaaaa", "bbbbbbbb"), texts("BINARY", "BINARY"))

        assert [None, {"f0": 2}] == decoded.value.to_pylist()
        assert [f"The schema revision `{new.name}@aaaaaaaa` does not exist.", None] == decoded.error.to_pylist()
        assert ["aaaaaaaa", "bbbbbbbb"] == decoded.revision.to_pylist()
    assert 1 == len(asked)


def test_encoding_that_does_not_exist_is_the_reason_of_its_message():
    """The attribute is arbitrary text. Any publisher may have set it while the topic had no schema."""
    decoder = Decoder(TopicSchema("BINARY", revision("int")), no_fetch)

    decoded = decoder.decode(messages(b"\x02"), texts(None), texts("XML"))
    assert ["The message's encoding is `XML`, which is neither BINARY nor JSON"] == decoded.error.to_pylist()


def test_revision_of_the_other_schema_type_is_the_reason_of_its_message():
    """A message of a schema type that the topic had before has that as its reason."""
    new = revision("int", id_="bbbbbbbb")
    old = SchemaRevision(new.name, "aaaaaaaa", "PROTOCOL_BUFFER", 'syntax = "proto3"; message M {}')
    decoder = Decoder(TopicSchema("BINARY", new), lambda _: old)

    decoded = decoder.decode(messages(b"\x02"), texts("aaaaaaaa"), texts("BINARY"))
    assert [f"The schema `{old}` is PROTOCOL_BUFFER, but the column was planned from AVRO"] == decoded.error.to_pylist()


def test_no_messages_are_an_empty_column_of_the_type():
    """An empty batch has the declared types."""
    schema = TopicSchema("BINARY", revision("int"))

    decoded = Decoder(schema, no_fetch).decode(messages(), texts(), texts())
    assert (schema.arrow_type(), pa.string(), pa.string()) == tuple(column.type for column in decoded)
    assert [0, 0, 0] == [len(column) for column in decoded]


def test_message_without_data_is_read_as_no_bytes():
    """A message may consist of attributes alone."""
    decoded = Decoder(TopicSchema("BINARY", revision("int")), no_fetch).decode(
        pa.array([None], pa.binary()), texts(None), texts(None)
    )
    assert ["Field `f0` is cut off: the message ends inside a number"] == decoded.error.to_pylist()


def test_schema_that_spark_cannot_hold_is_refused_by_name():
    """The error message names the revision and the field."""
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    schema = TopicSchema("BINARY", SchemaRevision("projects/p/schemas/s", "aaaaaaaa", "AVRO", json.dumps(node)))

    with pytest.raises(SchemaError, match=r"`projects/p/schemas/s@aaaaaaaa` cannot be a column of Spark: .* `next`"):
        schema.arrow_type()


def test_text_that_is_no_schema_is_refused_by_name():
    """The service would refuse the text, but a `schema` option may name anything."""
    schema = TopicSchema("BINARY", SchemaRevision("projects/p/schemas/s", "aaaaaaaa", "AVRO", "{"))

    with pytest.raises(SchemaError, match=r"^The schema `projects/p/schemas/s@aaaaaaaa` cannot be parsed: .* not JSON"):
        schema.arrow_type()


def test_task_without_the_compiler_fails(monkeypatch: pytest.MonkeyPatch):
    """Without the extra `protoc` a message of a new revision is not malformed. The task fails and names the extra."""
    name = f"projects/p/schemas/s{next(_numbers)}"
    texts_of_revisions = [f"message M{next(_numbers)} {{ optional int32 a = 1; }}" for _ in range(2)]
    new, old = (
        SchemaRevision(name, id_, "PROTOCOL_BUFFER", f'syntax = "proto2"; {text}')
        for id_, text in zip(("bbbbbbbb", "aaaaaaaa"), texts_of_revisions, strict=True)
    )
    decoder = Decoder(TopicSchema("BINARY", new), lambda _: old)
    monkeypatch.setitem(sys.modules, "grpc_tools", None)

    with pytest.raises(OptionsError, match=f"`{name}@aaaaaaaa` cannot be compiled: .* with its extra `protoc` on the"):
        decoder.decode(messages(b"\x08\x01"), texts("aaaaaaaa"), texts("BINARY"))


def test_topic_schema_travels_to_the_tasks():
    """The topic's schema is pickled to tasks, and equal there."""
    schema = TopicSchema("BINARY", revision("int"))

    assert schema == pickle.loads(pickle.dumps(schema))


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_encoder_writes_what_the_decoder_reads(encoding):
    """A message written by the registry's encoder is read by its decoder."""
    schema = TopicSchema(encoding, revision("int", "long"))
    rows = pa.array([{"f0": 1, "f1": 2}, {"f0": -3, "f1": 4}], schema.arrow_type())

    data = schema.encoder(rows.type)(rows)

    none = pa.nulls(2, pa.string())
    assert rows.to_pylist() == Decoder(schema, no_fetch).decode(data, none, none).value.to_pylist()


def test_encoder_that_does_not_fit_names_the_schema():
    """The error names the schema, the column and the types."""
    schema = TopicSchema("BINARY", revision("int"))

    with pytest.raises(SchemaError, match=f"do not fit the schema `{schema.reader}`: Column `f0` is `string`"):
        schema.encoder(pa.struct([pa.field("f0", pa.string())]))
