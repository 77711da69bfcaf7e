"""AsyncAPI documents as `pubsub-spark emulator --config` recognizes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pubsub_spark.cli.asyncapi import is_document


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# flights\nasyncapi: 3.0.0\n", True),
        ('{"info": {}, "asyncapi": "3.0.0"}', True),
        ("\ufeffasyncapi: 3.0.0\n", True),
        ("topics:\n  flights:\n    labels:\n      asyncapi: x\n", False),
        ("asyncapi", False),
        ("asyncapi: [", False),
    ],
)
def test_document_is_known_by_its_first_level(tmp_path: Path, content: str, expected: bool):
    """A key `asyncapi` on the first level marks a document, at any position. A nested key does not."""
    path = tmp_path / "config"
    path.write_text(content, encoding="utf-8")

    assert expected == is_document(path)
    assert not is_document(tmp_path / "gone")
