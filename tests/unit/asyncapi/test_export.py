"""The document of a project's resources, as a value."""

from __future__ import annotations

from pathlib import Path

from google.pubsub_v1 import types

from pubsub_spark.asyncapi.api import read
from pubsub_spark.asyncapi.export import document


def test_names_that_mean_something_in_a_reference(tmp_path: Path):
    """An id may contain `~1` or `%41`, which a `$ref` has to escape."""
    topic = types.Topic(name="projects/p/topics/a~1b%41")
    subscription = types.Subscription(name="projects/p/subscriptions/sub", topic=topic.name)
    for as_json in (False, True):
        path = tmp_path / "exported"
        path.write_text(document("p", {}, [topic], [subscription], as_json))

        assert {topic.name} == {each.topic for each in read(path, "p").subscriptions.values()}
