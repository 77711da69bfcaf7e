"""The options of an emulator: one declaration for Python, the command line and the documentation."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pubsub_spark.cli import app
from pubsub_spark.declare import declared
from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.options import EmulatorOptions, ServeOptions


@pytest.mark.parametrize(
    ("keyword", "nearest"), [("data_dri", "data_dir"), ("allow_host", "allow_hosts"), ("bigqueryRoot", "bigquery_root")]
)
def test_wrong_keyword_names_the_right_one(keyword: str, nearest: str):
    """A wrong keyword is an error that names the right one, as for the connector's options."""
    given: dict[str, Any] = {keyword: "x"}
    with pytest.raises(TypeError, match=f"^`{keyword}` is not an option; did you mean `{nearest}`\\?$"):
        Emulator(**given)


def test_keyword_that_is_near_to_none_lists_them():
    """A keyword that resembles no option is an error that ends with the list of options."""
    with pytest.raises(TypeError, match=r"^`x` is not an option; host, port, data_dir, .*on_failure$"):
        Emulator(x=1)  # type: ignore[call-arg]


def test_signature_is_that_of_the_options():
    """A shell's or notebook's help shows the options. Only host and port may be positional."""
    parameters = inspect.signature(Emulator).parameters
    positional = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    assert ["host", "port"] == positional
    assert set(declared(EmulatorOptions)) <= set(parameters)


def test_every_option_is_a_flag():
    """Each option has its default, and a flag for it."""
    start = get_command(app).commands["emulator"].commands["start"]  # type: ignore[attr-defined]
    flags = {flag: parameter for parameter in start.params for flag in parameter.opts}
    options = declared(ServeOptions)

    assert [] == [option.name for option in options.values() if f"--{option.name}" not in flags]
    assert (8085, 0) == (flags["--port"].default, Emulator().port)


def test_emulator_starts_with_what_it_was_given():
    """Options are attributes of the emulator."""
    emulator = Emulator("::1", 7, data_dir=Path("x"), allow_hosts=["a.b"])

    assert ("::1", 7, Path("x"), ["a.b"], "group") == (
        emulator.host,
        emulator.port,
        emulator.data_dir,
        emulator.allow_hosts,
        emulator.fsync,
    )
