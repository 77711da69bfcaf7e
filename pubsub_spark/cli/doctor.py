"""`pubsub-spark doctor`: placeholder until the checks are there."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
