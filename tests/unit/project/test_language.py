"""The check of plain English: `make lint` runs it over the repository."""

from __future__ import annotations

import pytest

from tests.unit.project.conftest import command

language = command("language")


@pytest.fixture
def count(tmp_path, monkeypatch):
    """Count the patterns of a text in a file of this name."""
    monkeypatch.setattr(language, "ROOT", tmp_path)

    def occurrences(name, text):
        path = tmp_path / name
        path.write_text(text)
        return {key: len(lines) for key, lines in language.findings([path]).items() if lines}

    return occurrences


def test_patterns_are_counted_in_each_kind_of_text(count):
    """Docstrings, comments and messages are distinguished, and code is left out."""
    text = '"""One; two."""\nx = 1; y = 2\n# gives x; gives y\nraise E(f"`{x}` is what is wrong here; fix it")\n'

    expected = {"docstrings/semicolon": 1, "comments/semicolon": 1, "comments/give": 2, "messages/semicolon": 1}
    assert {**expected, "messages/what": 1} == count("module.py", text)


def test_blocks_of_code_and_names_in_backticks_are_not_prose(count):
    """A page's code blocks and code spans have their own grammar."""
    assert {} == count("page.md", "See `a; b`.\n\n```sql\nSELECT 1; SELECT 2;\n```\n\nWhat happens? What is it?\n")


def test_long_sentences_are_counted(count):
    """A sentence ends at its full stop, and rows and list items are read one by one."""
    words = " ".join(["word"] * 31)

    assert {"docs/over-30-words": 1} == count("page.md", f"{words}.\n\n- {words[:100]}\n- {words[:100]}\n")


def test_a_count_may_only_fall():
    """More than allowed fails, and fewer is a number to write down."""
    occurrences = {"docs/what": ["a", "b"], "docs/who": ["c"]}
    allowed = {"docs/what": 1, "docs/who": 1, "docs/give": 3}

    assert (["docs/what"], {"docs/give": 0}) == language.compare(occurrences, allowed)
