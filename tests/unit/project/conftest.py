"""The commands in docs/, which are no package, as modules."""

import importlib.util
from typing import Any

from tests.conftest import ROOT


def command(name: str) -> Any:
    """Return the module of a command in docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
