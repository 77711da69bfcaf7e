"""The output of `make` on a machine that lacks something: one sentence, and a failure."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPT = ROOT / ".ci" / "environment"


@pytest.fixture
def machine(tmp_path: Path):
    """Return a PATH with the shell's own tools only. `machine(name, script)` adds a program."""
    for tool in ("bash", "sed", "head", "dirname"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)

    def put(name: str, script: str) -> None:
        program = tmp_path / name
        program.write_text(f"#!{shutil.which('sh')}\n{script}\n")
        program.chmod(0o755)

    return put


def run(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    bash = shutil.which("bash")
    assert bash is not None
    clean = {key: value for key, value in os.environ.items() if key not in {"JAVA_HOME", "PATH"}}
    done = subprocess.run(
        [bash, str(SCRIPT), *arguments],
        env={**clean, "PATH": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2024-01-16' >&2"


def test_missing_java_is_one_sentence(machine, tmp_path: Path):
    """Without a java nothing is started."""
    code, words = run(tmp_path, "java")

    assert 1 == code
    assert words.startswith("Java 17 or newer is needed, and `java` does not run: install a JRE")
    assert 1 == words.count("\n")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_old_java_is_one_sentence(machine, tmp_path: Path, version: str):
    """A java older than 17 is named with its version."""
    machine("java", java(version))

    sentence = f"Java 17 or newer is needed, and `java` is {version}: install a newer one or point JAVA_HOME at it.\n"
    assert (1, sentence) == run(tmp_path, "java")


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_new_java_is_taken(machine, tmp_path: Path, version: str):
    """Versions 17 and newer are accepted silently."""
    machine("java", java(version))

    assert (0, "") == run(tmp_path, "java")


def test_java_home_comes_first(machine, tmp_path: Path):
    """Spark takes the java of JAVA_HOME when it is set, so that one is checked."""
    machine("java", java("17.0.15"))

    code, words = run(tmp_path, "java", JAVA_HOME="/nowhere")

    assert 1 == code
    assert "`/nowhere/bin/java` does not run" in words


@pytest.mark.parametrize(
    "python3",
    [
        pytest.param("test \"$1\" = --version && echo 'Python 3.9.2'", id="too old"),
        pytest.param("echo 'pyenv: python3: command not found' >&2; exit 127", id="a shim for nothing"),
    ],
)
def test_unfit_python_is_one_sentence(machine, tmp_path: Path, python3: str):
    """A python that is too old, or only a shim, is refused before anything is built."""
    machine("python3", python3)

    code, words = run(tmp_path, "python", str(tmp_path / "venv"))

    assert 1 == code
    assert words.startswith("Python 3.11 or newer with its venv module is needed, and here is ")
    assert 1 == words.count("\n")
    assert not (tmp_path / "venv").exists()


def test_missing_browser_is_one_sentence(machine, tmp_path: Path):
    """Outside CI no browser is installed by running tests: a message reports that tests are skipped, and they run."""
    code, words = run(tmp_path, "browser", CI="")

    assert 0 == code
    assert words.startswith("Chromium is not installed: the tests of the emulator's page in a browser will be skipped")
    assert 1 == words.count("\n")


def test_browser_is_installed_for_ci(machine, tmp_path: Path):
    """With CI=true root installs Debian's Chromium, silently."""
    machine("id", "echo 0")
    machine("timeout", 'shift; "$@"')
    machine("sh", f"""exec {shutil.which("sh")} "$@" """)
    machine("apt-get", f'echo "$@" >> {tmp_path}/installed')

    assert (0, "") == run(tmp_path, "browser", CI="true")
    assert "update\ninstall -y chromium\n" == (tmp_path / "installed").read_text()


def test_browser_that_is_there_is_taken(machine, tmp_path: Path):
    """If a browser exists nothing is installed and nothing is printed."""
    machine("google-chrome", "exit 1")

    assert (0, "") == run(tmp_path, "browser", CI="true")
