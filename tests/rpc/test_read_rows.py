"""Rows of payloads that cannot be decoded: a null, no row, a failure, a dead letter. Against the emulator."""

import json
from collections.abc import Mapping

import pyarrow as pa
import pytest

from pubsub_spark.backend import EmulatorBackend
from pubsub_spark.backend.schemas import for_reading
from pubsub_spark.codec.envelope import MESSAGES
from pubsub_spark.codec.registry import SchemaRevision, TopicSchema
from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api.errors import Code
from pubsub_spark.errors import DataError, ForbiddenError, MissingError, PubSubError, ServiceError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.rows import Rows
from tests.conftest import Names

SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
GOOD, BAD = b"\x02", b"\xff"


def rows(emulator: Emulator, names: Names, **options: str) -> Rows:
    """Return the rows of `decode=topic` with a schema of one int."""
    given = {"subscriptionId": names.subscription, "endpoint": emulator.endpoint, "decode": "topic"} | options
    revision = SchemaRevision(names.schema, "1", "AVRO", SCHEMA)
    parsed = ReadOptions.parse(given, {})
    backend = EmulatorBackend(emulator.endpoint, parsed.connect_timeout)
    return Rows(parsed, backend, TopicSchema("BINARY", revision))


ATTRIBUTES = {"kind": "test", "googclient_schemaencoding": "BINARY"}


def batch(*payloads: bytes, attributes: Mapping[str, str] = ATTRIBUTES) -> pa.RecordBatch:
    """Return messages `m0`, `m1`... with these payloads, and each with these attributes."""
    columns = {
        "message_id": [f"m{i}" for i in range(len(payloads))],
        "data": payloads,
        "attributes": [list(attributes.items())] * len(payloads),
        "publish_time": [0] * len(payloads),
        "ordering_key": [""] * len(payloads),
        "delivery_attempt": [0] * len(payloads),
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in MESSAGES], schema=MESSAGES)


def test_permissive_keeps_the_row_and_says_why(emulator: Emulator, names: Names):
    """PERMISSIVE: a null value, a reason, the payload untouched, the neighbours decoded."""
    [made] = rows(emulator, names).of(iter([batch(GOOD, BAD, GOOD)]))

    assert [{"a": 1}, None, {"a": 1}] == made.column("value").to_pylist()
    assert [False, True, False] == made.column("decode_error").is_valid().to_pylist()
    assert [GOOD, BAD, GOOD] == made.column("data").to_pylist()


def test_dropmalformed_drops_and_counts(emulator: Emulator, names: Names):
    """DROPMALFORMED: no row, and the number is reported to the driver."""
    told: list[int] = []

    made = list(rows(emulator, names, mode="DROPMALFORMED").of(iter([batch(GOOD, BAD), batch(BAD, BAD)]), told.append))

    assert [["m0"], []] == [part.column("message_id").to_pylist() for part in made]
    assert [3] == told


def test_failfast_names_the_message(emulator: Emulator, names: Names):
    """FAILFAST: the sentence has the message id and the subscription."""
    with pytest.raises(DataError, match=f"Message `m1` of `{names.subscription}` cannot be decoded"):
        list(rows(emulator, names, mode="FAILFAST").of(iter([batch(GOOD, BAD)])))


def test_dead_letters_say_what_was_wrong(emulator: Emulator, names: Names):
    """`deadLetterTopic`: payload and own attributes go there with the reason, before the rows of the batch continue."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(f"{names.subscription}-dead", names.topic)

    parts = rows(emulator, names, deadLetterTopic=names.topic).of(iter([batch(GOOD, BAD)]))
    next(parts)

    [letter] = emulator.messages(f"{names.subscription}-dead")
    reason = letter.attributes.pop("pubsub_spark_error")
    assert BAD == letter.data
    assert {
        "kind": "test",
        "pubsub_spark_message_id": "m1",
        "pubsub_spark_subscription": names.subscription,
        "pubsub_spark_data_bytes": "1",
    } == letter.attributes
    assert reason


def test_dead_letter_has_the_ordering_key_as_an_attribute(emulator: Emulator, names: Names):
    """A key that is stuck must not hold back the next dead letter, and a redrive needs the key."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(f"{names.subscription}-dead", names.topic)
    keyed = batch(BAD)
    keyed = keyed.set_column(MESSAGES.get_field_index("ordering_key"), "ordering_key", pa.array(["k"]))

    list(rows(emulator, names, deadLetterTopic=names.topic).of(iter([keyed])))

    [letter] = emulator.messages(f"{names.subscription}-dead")
    assert ("", "k") == (letter.ordering_key, letter.attributes["pubsub_spark_ordering_key"])
    assert "pubsub_spark_incomplete" not in letter.attributes


def test_dead_letter_has_the_attributes_that_there_is_room_for(emulator: Emulator, names: Names):
    """A dead letter has at most 100 attributes, including its own."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(f"{names.subscription}-dead", names.topic)
    attributes = {f"k{n}": "v" * 1024 for n in range(100)}

    list(rows(emulator, names, deadLetterTopic=names.topic).of(iter([batch(BAD, attributes=attributes)])))

    [letter] = emulator.messages(f"{names.subscription}-dead")
    kept = {key: value for key, value in letter.attributes.items() if not key.startswith("pubsub_spark_")}
    assert 100 == len(letter.attributes)
    assert "attributes" == letter.attributes["pubsub_spark_incomplete"]
    assert 95 == len(kept)
    assert kept.items() <= attributes.items()


def test_large_dead_letters_are_cut_and_fit_their_requests(emulator: Emulator, names: Names):
    """A payload near Pub/Sub's limit is cut, because a dead letter has more attributes."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(f"{names.subscription}-dead", names.topic)
    lengths = [4_900_000, 6_000_000, 1, 9_999_900]

    payloads = [b"\xff" * length for length in lengths]
    list(rows(emulator, names, deadLetterTopic=names.topic).of(iter([batch(*payloads)])))

    letters = emulator.messages(f"{names.subscription}-dead")
    assert [4_900_000, 6_000_000, 1, 9_000_000] == [len(letter.data) for letter in letters]
    assert [None, None, None, "data"] == [letter.attributes.get("pubsub_spark_incomplete") for letter in letters]
    assert lengths == [int(letter.attributes["pubsub_spark_data_bytes"]) for letter in letters]


def test_dead_letter_topic_that_is_missing_fails_the_task(emulator: Emulator, names: Names):
    """Nothing is lost: without the topic the batch fails with its name."""
    with pytest.raises(MissingError, match=f"Topic `{names.topic}` does not exist"):
        list(rows(emulator, names, deadLetterTopic=names.topic).of(iter([batch(BAD)])))


@pytest.mark.parametrize("named", ["schema", "topicId"])
def test_schema_of_a_subscription_that_may_not_be_looked_at(emulator: Emulator, names: Names, named: str):
    """`schema` or `topicId` names the schema where the caller may pull from the subscription, but not get it."""
    emulator.create_schema(names.schema, "AVRO", SCHEMA)
    emulator.create_topic(names.topic, schema=names.schema, encoding="JSON")
    emulator.fail("GetSubscription", "PERMISSION_DENIED")
    if named == "schema":
        emulator.fail("GetTopic", "PERMISSION_DENIED")
    given = {"schema": names.schema, "schemaEncoding": "JSON"} if named == "schema" else {"topicId": names.topic}
    given |= {"subscriptionId": names.subscription, "endpoint": emulator.endpoint, "decode": "topic"}

    with EmulatorBackend(emulator.endpoint).connect() as connection:
        found = for_reading(connection.admin, ReadOptions.parse(given, {}))

    assert ("JSON", names.schema, SCHEMA) == (found.encoding, found.reader.name, found.reader.definition)


NEWER = ATTRIBUTES | {"googclient_schemarevisionid": "deadbeef"}


def test_revision_that_does_not_exist_makes_the_payload_undecodable(emulator: Emulator, names: Names):
    """A message whose revision was deleted is a row with a reason, which names the revision."""
    [made] = rows(emulator, names).of(iter([batch(GOOD, attributes=NEWER)]))

    assert [None] == made.column("value").to_pylist()
    assert f"{names.schema}@deadbeef" in made.column("decode_error")[0].as_py()


@pytest.mark.parametrize("revision", ["", "no revision", "a@b", "é"])
def test_revision_that_cannot_exist_makes_the_payload_undecodable(emulator: Emulator, names: Names, revision: str):
    """A forged attribute, which the service calls invalid, is a row with a reason and stops no query."""
    emulator.fail("GetSchema", "INVALID_ARGUMENT", message="Invalid revision id")
    forged = ATTRIBUTES | {"googclient_schemarevisionid": revision}
    [made] = rows(emulator, names).of(iter([batch(GOOD, attributes=forged)]))

    assert [None] == made.column("value").to_pylist()
    assert f"{names.schema}@{revision}" in made.column("decode_error")[0].as_py()


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
@pytest.mark.parametrize(
    ("code", "error"),
    [("PERMISSION_DENIED", ForbiddenError), ("UNAUTHENTICATED", PubSubError), ("UNAVAILABLE", ServiceError)],
)
def test_schema_service_that_does_not_give_the_revision_fails_the_batch(
    emulator: Emulator, names: Names, code: Code, error: type[PubSubError], mode: str
):
    """A refused right or an outage is no property of the message: no row is dropped or made null for it."""
    emulator.fail("GetSchema", code, count=1000)
    made = rows(emulator, names, mode=mode, connectTimeout="1s").of(iter([batch(GOOD, attributes=NEWER)]))

    with pytest.raises(error, match=f"{names.schema}@deadbeef"):
        list(made)
