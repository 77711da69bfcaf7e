"""The `pubsub-spark` command: help, refusals, exit codes."""

import json
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import obstore
import pytest
import typer
from obstore.exceptions import PermissionDeniedError
from typer.testing import CliRunner

import pubsub_spark
from pubsub_spark import cli
from pubsub_spark.cli import app
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store


def test_help_names_the_commands():
    """`--help` names every command."""
    result = CliRunner().invoke(app, ["--help"])

    assert 0 == result.exit_code
    for command in ("demo", "emulator"):
        assert command in result.output


def test_every_command_of_a_module_is_known():
    """Commands are imported by a table, which has all of them."""
    families = {module: {*cli.commands_of(module)} for module in cli.MODULES.values()}

    assert {*cli.MODULES} == {*chain(*families.values())}
    assert all(name in families[module] for name, module in cli.MODULES.items())


def test_every_command_prints_json():
    """`--json` is an option of every command."""

    def without(command: Any, name: str) -> Iterator[str]:
        for each, child in getattr(command, "commands", {}).items():
            yield from without(child, f"{name} {each}")
        if not hasattr(command, "commands") and not any("--json" in parameter.opts for parameter in command.params):
            yield name

    assert [] == list(without(typer.main.get_command(app), "pubsub-spark"))


def test_version_is_that_of_the_package():
    """`--version` prints the version and does nothing else."""
    result = CliRunner().invoke(app, ["--version"])

    assert (0, f"pubsub-spark {pubsub_spark.__version__}\n") == (result.exit_code, result.output)


def test_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    """Without the extra `demo` the error names it."""
    monkeypatch.delitem(sys.modules, "pubsub_spark.demo", raising=False)
    monkeypatch.delitem(sys.modules, "pubsub_spark.demo.picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    result = CliRunner().invoke(app, ["demo"])

    assert 1 == result.exit_code
    assert "The demo needs `matplotlib`. Install pubsub-spark with its extra `demo`.\n" == result.stderr


@pytest.mark.parametrize(("complete", "code"), [(True, 0), (False, 1)])
def test_exit_code_is_the_verdict(monkeypatch: pytest.MonkeyPatch, complete: bool, code: int):
    """The demo ends with 1 when the received flights differ from the sent ones."""
    monkeypatch.setattr("pubsub_spark.demo.run", lambda *arguments: complete)

    result = CliRunner().invoke(app, ["demo", "--json"])

    assert (code, {"complete": complete, "output": "demo-output"}) == (result.exit_code, json.loads(result.stdout))


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path):
    """A folder that cannot be made is one sentence, before anything else is done."""
    (tmp_path / "file").touch()

    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "file" / "out")])

    assert 1 == result.exit_code
    assert f"The folder `{tmp_path}/file/out` cannot be made: Not a directory.\n" == result.stderr


def test_of_streams_that_are_not_there_nothing_is_removed(tmp_path: Path):
    """`staging clean` with a misspelt stream id reports it and removes nothing, of the other streams either."""
    Staging(open_store(str(tmp_path)), "projects/p/subscriptions/sub", "mine").write_token()

    result = CliRunner().invoke(app, ["staging", "clean", str(tmp_path), "--stream", "mine", "--stream", "mien"])

    assert 1 == result.exit_code
    assert (
        "No stream has the id `mien`, so nothing is removed. `pubsub-spark staging ls` lists the streams.\n"
        == result.stderr
    )
    assert "mine" in CliRunner().invoke(app, ["staging", "ls", str(tmp_path)]).output
    assert 0 == CliRunner().invoke(app, ["staging", "clean", str(tmp_path), "--stream", "mine"]).exit_code
    assert 1 == CliRunner().invoke(app, ["staging", "ls", str(tmp_path)]).exit_code


def test_nothing_is_removed_unasked(tmp_path: Path):
    """`staging clean` that names neither streams nor an age cannot be meant."""
    result = CliRunner().invoke(app, ["staging", "clean", str(tmp_path)])

    assert (2, True) == (result.exit_code, result.stderr.startswith("Nothing is removed unasked: name streams"))


def test_only_what_is_removed_is_counted(tmp_path: Path):
    """Files that are not ours stay and are not counted, and the line says so."""
    staging = Staging(open_store(str(tmp_path)), "projects/p/subscriptions/sub", "mine")
    staging.write_token()
    staging.create("1/part-0", [b"a part"])
    staging.create("1/notes.txt", [b"somebody's"])

    result = CliRunner().invoke(app, ["staging", "clean", str(tmp_path), "--stream", "mine"])

    assert "removed 2 files of stream mine, left 1 that are not ours\n" == result.output
    assert staging.read("1/notes.txt") is not None


@pytest.mark.parametrize(
    ("call", "command"),
    [("list", ["ls"]), ("list", ["clean", "--stream", "s"]), ("delete", ["clean", "--stream", "s"])],
)
def test_a_staging_area_that_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch, call: str, command: list[str]):
    """A staging area that refuses (no rights, network, credentials) is one sentence that names it."""
    location = "memory:///refuses"
    Staging(open_store(location), "projects/p/subscriptions/sub", "s").write_token()

    def refused(*arguments: Any, **settings: Any) -> Any:
        raise PermissionDeniedError("403 Forbidden\n\nDebug source: of many lines")

    monkeypatch.setattr(obstore, call, refused)
    result = CliRunner().invoke(app, ["staging", *command, location])

    assert 1 == result.exit_code
    assert result.stderr.startswith(f"The staging area `{location}` cannot be used: 403 Forbidden. Set")
    assert 1 == result.stderr.count("\n")


def test_looking_makes_no_folder(tmp_path: Path):
    """`staging ls` of a path that does not exist reports that nothing is there and creates no folder."""
    result = CliRunner().invoke(app, ["staging", "ls", str(tmp_path / "stagign")])

    assert (1, "") == (result.exit_code, result.stdout)
    assert f"No stream has files in `{tmp_path}/stagign`.\n" == result.stderr
    assert not (tmp_path / "stagign").exists()
