"""Each `--help`: an example that runs, plain kinds of values, whole sentences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pubsub_spark.cli import app
from pubsub_spark.cli.examples import EXAMPLES

ROOT = typer.main.get_command(app)


def every(command: Any = ROOT, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Return each command and group, by its words."""
    yield " ".join(names), command
    for name, child in getattr(command, "commands", {}).items():
        yield from every(child, (*names, name))


HELPS = {words: CliRunner().invoke(app, [*words.split(), "-h"], terminal_width=80).output for words, _ in every()}


def test_every_command_has_an_example():
    """Each help ends with examples of its own command. No other command has an example."""
    assert {*EXAMPLES} == {*HELPS}
    for words, output in HELPS.items():
        _, examples = output.split("\n\nExamples:\n")
        assert [*EXAMPLES[words]] == [line.removeprefix("  ") for line in examples.splitlines()]


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_examples_can_be_meant(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An example names a command, and uses arguments and options of this command."""
    (tmp_path / "order.avsc").touch()
    monkeypatch.chdir(tmp_path)
    _, *words = shlex.split(re.sub(r'^eval "\$\((.*)\)"$', r"\1", line))
    command, context, path = ROOT, None, "pubsub-spark"
    while hasattr(command, "commands") and words[0] != "help":
        name = "run" if words[0].startswith("-") else words.pop(0)
        context, command, path = (
            command.make_context(path, [], parent=context, resilient_parsing=True),
            command.commands[name],
            name,
        )

    if words[:1] == ["help"]:
        assert " ".join(words[1:]) in HELPS
    else:
        command.make_context(path, words, parent=context).close()


def test_kinds_of_values_are_plain():
    """No help has a Python type, or brackets in brackets."""
    for words, output in HELPS.items():
        output, _ = output.split("\n\nExamples:\n")
        assert not re.search(r"<[a-z]|list\[|\[\[|\{|range|\.\.\.\.", output), words
    assert "publish [OPTIONS] TOPIC [FILE]...\n" in HELPS["publish"]
    assert "[reading|writing]\n" in HELPS["options"]
    assert re.search(r"--port NUMBER .*--data-dir FOLDER ", HELPS["emulator run"], re.DOTALL)


def test_first_sentences_are_whole():
    """The list of a group has the whole first sentence of each command."""
    for words, group in every():
        shown = " ".join(HELPS[words].split())
        for child in getattr(group, "commands", {}).values():
            assert child.get_short_help_str().endswith(".")
            assert child.get_short_help_str() in shown
            assert child.get_short_help_str() in " ".join((child.help or "").split())


def test_help_can_be_asked_for_in_three_ways():
    """`-h`, `--help` and `help` before the command are the same."""
    for words in (["topics", "create", "--help"], ["help", "topics", "create"], ["topics", "help", "create"]):
        assert HELPS["topics create"] == CliRunner().invoke(app, words, terminal_width=80).output
    assert HELPS[""] == CliRunner().invoke(app, ["help"], terminal_width=80).output
