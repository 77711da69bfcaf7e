"""What a stranger gets: metadata, the shim that Spark looks for, the typed marker, no surprise imports."""

import importlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest

import pubsub_spark
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_pyspark_is_not_forced():
    """A cluster brings its own PySpark, so none of the plain dependencies is PySpark."""
    assert [] == [line for line in PROJECT["dependencies"] if line.startswith("pyspark")]
    assert ["pyspark>=4.0"] == PROJECT["optional-dependencies"]["spark"]


def test_emulator_is_an_extra():
    """The connector needs no web server; the demo and the tests need the emulator."""
    extras = PROJECT["optional-dependencies"]
    names = {re.split(r"[^\w-]", line)[0] for line in extras["emulator"]}

    assert {"cryptography", "pyyaml", "starlette", "urllib3", "uvicorn"} == names
    assert not [line for line in PROJECT["dependencies"] if re.split(r"[^\w-]", line)[0] in names]
    assert "pubsub-spark[emulator,spark]" in extras["demo"]
    assert "pubsub-spark[asyncapi,demo]" in extras["test"]


@pytest.mark.parametrize("absent", ["starlette", "uvicorn", "yaml", "cryptography"])
def test_emulator_says_what_to_install(absent: str):
    """Without its extra the command and the import end with one sentence."""
    hidden = f"import sys; sys.modules[{absent!r}] = None; "
    sentence = f"The emulator needs `{absent}`; run `pip install 'pubsub-spark[emulator]'`."
    for code, line in (
        ("from pubsub_spark.cli import app; app(['emulator', '--port', '0'])", sentence),
        ("from pubsub_spark.emulator import Emulator", f"ModuleNotFoundError: {sentence}"),
    ):
        ended = subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, cwd=ROOT)

        assert 1 == ended.returncode
        assert line == ended.stderr.splitlines()[-1]


def test_console_script_is_installed():
    """`pubsub-spark` starts the typer application."""
    [script] = metadata.entry_points(group="console_scripts", name="pubsub-spark")

    assert "pubsub_spark.cli:app" == script.value


def test_types_are_announced():
    """Type checkers of users see the annotations."""
    assert (ROOT / "pubsub_spark" / "py.typed").exists()
    assert PROJECT["name"] == metadata.metadata("pubsub-spark")["Name"]


@pytest.mark.parametrize("name", ["pubsub", "pubsub_spark"])
def test_shims_hold_the_source(name: str):
    """Spark imports `pyspark_*` modules and registers their `DefaultSource`, one each."""
    from pubsub_spark.source import PubSubDataSource

    shim = importlib.import_module(f"pyspark_{name}")

    assert issubclass(shim.DefaultSource, PubSubDataSource)
    assert name == shim.DefaultSource.name()


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pubsub_spark.cli", "pyspark"),
        ("pubsub_spark.cli", "google.cloud"),
        ("pubsub_spark.cli", "pyarrow"),
        ("pubsub_spark.emulator", "pyspark"),
        ("pubsub_spark.source", "pubsub_spark.emulator"),
        ("pubsub_spark.source", "matplotlib"),
    ],
)
def test_imports_stay_apart(module: str, absent: str):
    """The command answers at once, the emulator needs no Spark, and the connector no emulator."""
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode


def test_exported_names_exist():
    """Every name that `__all__` promises exists."""
    for name in getattr(pubsub_spark, "__all__", ()):
        assert hasattr(pubsub_spark, name)
