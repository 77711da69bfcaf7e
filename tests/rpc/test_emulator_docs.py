"""The pages of the emulator run: the Python of docs/emulator-reference.md, the seed file of docs/emulator.md."""

from __future__ import annotations

import re

import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT

START = (ROOT / "docs" / "emulator.md").read_text()
REFERENCE = (ROOT / "docs" / "emulator-reference.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", REFERENCE, re.DOTALL))
def test_python_of_the_page_runs(block, monkeypatch):
    """The Python of the page runs, with its own asserts, without an emulator in the environment."""
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    exec(compile(block, "docs/emulator-reference.md", "exec"), {})


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", START, re.DOTALL))
def test_file_of_the_page_can_be_loaded(block, tmp_path):
    """The seed file of docs/emulator.md can be loaded, next to its schema."""
    (tmp_path / "flight.avsc").write_text('{"type": "record", "name": "Flight", "fields": []}')
    (tmp_path / "pubsub.yaml").write_text(block)
    with Emulator(rest=False) as emulator:
        emulator.load(tmp_path / "pubsub.yaml")
        assert 0 == emulator.backlog("projects/my-project/subscriptions/flights-sub")


def test_every_verb_of_the_page_exists():
    """Each method in the table of docs/emulator-reference.md is one of Emulator."""
    [table] = re.findall(r"\| method \|.*?\n\n", REFERENCE, re.DOTALL)
    methods = {
        method for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for method in re.findall(r"`(\w+)", cell)
    }
    assert {"publish", "advance", "chaos", "reset"} <= methods
    assert [] == [method for method in methods if not hasattr(Emulator, method)]
