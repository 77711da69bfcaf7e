"""The Jupyter notebooks of `notebooks/`, made from their sources in Databricks' format and run here.

    python docs/notebooks.py [NAME ...]     runs each and writes NAME.ipynb with its outputs and pictures

A source is a Python file with its cells between `# COMMAND ----------`. Each line of a text cell has `# MAGIC` first.
`6_databricks` is not run: it needs a workspace. A test asks that the cells of both files are the same.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

FOLDER = Path(__file__).parent.parent / "notebooks"
_FIRST_LINE = "# Databricks notebook source\n"
_SEPARATOR = "\n\n# COMMAND ----------\n\n"
_MAGIC, _MARKDOWN = "# MAGIC", "%md"
_NOT_RUN = "6_databricks"
_TIMEOUT_SECONDS = 600


class Cell(NamedTuple):
    """A cell of a notebook."""

    kind: Literal["markdown", "code"]
    source: str


def cells(source: str) -> list[Cell]:
    """Return the cells of a source in Databricks' format."""
    return [_cell(text.strip("\n")) for text in source.removeprefix(_FIRST_LINE).split(_SEPARATOR)]


def _cell(text: str) -> Cell:
    if not text.startswith(_MAGIC):
        return Cell("code", text)
    lines = [line.removeprefix(_MAGIC).removeprefix(" ") for line in text.splitlines()]
    if lines[0] == _MARKDOWN:
        return Cell("markdown", "\n".join(lines[1:]))
    return Cell("code", "\n".join(lines))


def cells_of_jupyter(notebook: dict[str, Any]) -> list[Cell]:
    """Return the cells of a Jupyter notebook, as its JSON has them."""
    return [Cell(each["cell_type"], "".join(each["source"])) for each in notebook["cells"]]


def make(source: Path) -> None:
    """Run a notebook and write it next to its source, with its output and charts."""
    nbformat: Any = import_module("nbformat")
    from nbclient import NotebookClient

    makers = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    notebook = nbformat.v4.new_notebook(
        cells=[makers[cell.kind](cell.source, id=f"cell-{n}") for n, cell in enumerate(cells(source.read_text()))],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    if source.stem != _NOT_RUN:
        resources = {"metadata": {"path": str(FOLDER.parent)}}
        NotebookClient(notebook, timeout=_TIMEOUT_SECONDS, record_timing=False, resources=resources).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]  # logs: other each time
    notebook.metadata.pop("language_info", None)  # the version of this Python
    nbformat.write(notebook, source.with_suffix(".ipynb"))


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(each.stem for each in FOLDER.glob("*.py")):
        make(FOLDER / f"{name}.py")
        print(f"{name}.ipynb")
