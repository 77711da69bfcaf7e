"""The lines of docs/guarantee.md are the cases of the simulator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation import cases

_GUARANTEE = Path(__file__).parents[2] / "docs" / "guarantee.md"
_REPEATS, _LOSSES = [case.sentence for case in cases.CASES], [loss.sentence for loss in cases.LOSSES]
_KNOWN = (*_REPEATS, *_LOSSES, *cases.ENDED.values())


def _lines() -> list[str]:
    """Return the items of the lists of guarantee.md, each as one line."""
    return [" ".join(item.split()) for item in re.findall(r"^- (.*(?:\n  .*)*)", _GUARANTEE.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("line", _lines())
def test_each_line_is_a_case(line):
    """Each line about repeated or lost messages is a case."""
    assert any(line.startswith(sentence) for sentence in _KNOWN)


@pytest.mark.parametrize("sentence", _KNOWN)
def test_each_case_is_a_line(sentence):
    """Each case that allows a repeat or a loss is a line of guarantee.md."""
    assert any(line.startswith(sentence) for line in _lines())
