"""The endpoint of the demo."""

from pathlib import Path

import pytest
from rich.console import Console

from pubsub_spark.demo import run
from pubsub_spark.errors import ServiceError


@pytest.mark.parametrize("endpoint", ["nonsense", "127.0.0.1:1", ""])
def test_endpoint_where_nothing_listens_is_said_at_once(endpoint: str, tmp_path: Path):
    """The demo refuses an endpoint where nothing listens before Spark starts, and before anything is written."""
    with pytest.raises(ServiceError, match=f"No Pub/Sub answers at `{endpoint}`. Start an emulator there"):
        run(endpoint, tmp_path / "output", None, Console())
    assert not (tmp_path / "output").exists()
