"""docs/cli.md: its blocks run, and it names every command. Also the resources of the README's examples."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pubsub_spark.cli import app
from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text()
SCRIPT = "".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL))
NOT_RUN = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SHELL = f"""
set -e -o pipefail
pubsub-spark() {{ {shlex.quote(sys.executable)} -c 'from pubsub_spark.cli import app; app()' "$@"; }}
"""


@pytest.mark.long
def test_blocks_run_in_their_order(emulator: Emulator, tmp_path: Path):
    """Each command of the page succeeds, and the last ones delete the resources that the first ones create."""
    environment = {**os.environ, "PUBSUB_EMULATOR_HOST": emulator.endpoint, "GOOGLE_CLOUD_PROJECT": "my-project"}
    environment["PYSPARK_PYTHON"] = sys.executable
    environment["TMPDIR"] = str(tmp_path)
    ended = subprocess.run(
        ["bash", "-c", SHELL + SCRIPT], capture_output=True, text=True, env=environment, check=False, timeout=240
    )

    assert (0, "") == (ended.returncode, ended.stderr)
    assert '{"carrier": "UA", "delay": 11}' in ended.stdout
    assert "deleted projects/my-project/schemas/departure" == ended.stdout.splitlines()[-1]


def test_resources_of_the_readme(emulator: Emulator):
    """The commands of the README make the topic, with its schema, and the subscription of its examples."""
    readme = (ROOT / "README.md").read_text()
    [block] = re.findall(r"```bash\n(eval \"\$\(pubsub-spark emulator start\)\".*?)```", readme, re.DOTALL)
    _, *commands = block.splitlines()
    script = f"export PUBSUB_EMULATOR_HOST={emulator.endpoint}\n" + "\n".join(commands)
    ended = subprocess.run(["bash", "-c", SHELL + script], capture_output=True, text=True, cwd=ROOT, check=False)

    assert (0, "") == (ended.returncode, ended.stderr)
    emulator.publish("projects/my-project/topics/flights", b"\x04UA\x02\x00\x00")
    assert 1 == emulator.backlog("projects/my-project/subscriptions/flights-to-lake")


@pytest.mark.parametrize("line", NOT_RUN)
def test_commands_that_do_not_run_here_exist(line: str):
    """Each command that is only shown is known, with its options."""
    _, *words = shlex.split(line)
    has_commands = hasattr(typer.main.get_command(app).commands[words[0]], "commands")  # type: ignore[attr-defined]
    command = words[: 2 if has_commands else 1]
    result = CliRunner().invoke(app, [*command, "--help"], terminal_width=200)

    assert 0 == result.exit_code
    for word in words:
        assert not word.startswith("--") or word in result.output


def commands(group: Any, before: str = "pubsub-spark") -> list[str]:
    """Return the names of all commands of a group, with the groups before them."""
    found = []
    for name, command in group.commands.items():
        words = f"{before} {name}"
        found += commands(command, words) if hasattr(command, "commands") else [words]
    return found


def test_every_command_is_on_the_page():
    """A command that the page neither shows nor mentions is missing from it."""
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    # The four families have the same three. One of each family is shown.
    shown = {*re.findall(r"pubsub-spark [a-z-]+(?: [a-z-]+)?", PAGE)}
    alike = {
        f"pubsub-spark {family} {verb}"
        for family in ("topics", "subscriptions", "snapshots", "schemas")
        for verb in ("list", "describe", "update")
    }

    missing = [each for each in commands(group) if not any(line.startswith(each) for line in shown)]
    assert set() == set(missing) - alike
