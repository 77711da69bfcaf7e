"""`pubsub-spark options`: the options of `format("pubsub")`, from their declaration."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from .command import Json
from .output import print_json, print_table


class Direction(StrEnum):
    READING = "reading"
    WRITING = "writing"


def register(app: typer.Typer) -> None:
    app.command("options")(options)


def options(
    direction: Annotated[Direction | None, typer.Argument(metavar="reading|writing", show_default="both")] = None,
    as_json: Json = False,
) -> None:
    """List the options of `format("pubsub")`: name, kind, default, bounds and meaning."""
    from ..options import ReadOptions, WriteOptions

    classes = [cls for cls in (ReadOptions, WriteOptions) if direction is None or cls.purpose == direction]
    if as_json:
        print_json(
            {
                cls.purpose: [
                    {
                        "name": option.name,
                        "kind": option.kind,
                        "choices": list(option.choices),
                        "default": option.default.replace("`", ""),
                        "bounds": option.bounds,
                        "meaning": option.sentence.replace("`", ""),
                    }
                    for option in cls.declared()
                ]
                for cls in classes
            }
        )
        return
    for cls in classes:
        rows = [
            [
                option.name,
                "|".join(option.choices) or option.kind,
                option.default.replace("`", ""),
                option.sentence.replace("`", "") + (f" ({option.bounds})" if option.bounds else ""),
            ]
            for option in cls.declared()
        ]
        print_table([f"option of {cls.purpose}", "kind", "default", "meaning"], rows)
