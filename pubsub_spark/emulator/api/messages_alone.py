"""Imports the messages of google.pubsub.v1 without the three clients of their package.

The clients take a fifth of an emulator's start, and it does not use them. A later import of the package works as usual.
For a process with one thread: meanwhile the package is empty.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

_PACKAGES = ("google.pubsub_v1", "google.pubsub_v1.types")


def import_messages() -> None:
    """Do nothing if the package is imported or is not installed."""
    spec = None if _PACKAGES[0] in sys.modules else find_spec(_PACKAGES[0])
    if spec is None or not spec.submodule_search_locations:
        return
    [root] = spec.submodule_search_locations
    for name, path in zip(_PACKAGES, (root, f"{root}/types"), strict=True):
        empty = sys.modules[name] = ModuleType(name)
        empty.__path__ = [path]
    try:
        for module in ("pubsub", "schema"):
            import_module(f"google.pubsub_v1.types.{module}")
    finally:
        for name in _PACKAGES:
            del sys.modules[name]
