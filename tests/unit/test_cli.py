"""The `pubsub-spark` command: help, refusals, exit codes."""

import sys

import pytest
from typer.testing import CliRunner

from pubsub_spark.cli import app


def test_help_names_the_commands():
    """`--help` shows what there is."""
    result = CliRunner().invoke(app, ["--help"])

    assert 0 == result.exit_code
    for command in ("demo", "emulator"):
        assert command in result.output


def test_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    """Without the extra `demo` the command says what to install."""
    monkeypatch.delitem(sys.modules, "pubsub_spark.demo", raising=False)
    monkeypatch.delitem(sys.modules, "pubsub_spark.demo.picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    result = CliRunner().invoke(app, ["demo"])

    assert 1 == result.exit_code
    assert "The demo needs `matplotlib`; run `pip install 'pubsub-spark[demo]'`.\n" == result.stderr


@pytest.mark.parametrize(("complete", "code"), [(True, 0), (False, 1)])
def test_exit_code_is_the_verdict(monkeypatch: pytest.MonkeyPatch, complete: bool, code: int):
    """The demo ends with 1 when what arrived is not what was sent."""
    monkeypatch.setattr("pubsub_spark.demo.run", lambda *arguments: complete)

    assert code == CliRunner().invoke(app, ["demo"]).exit_code
