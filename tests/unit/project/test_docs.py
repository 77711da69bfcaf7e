"""README, pages and templates agree with the code: tables, commands, links."""

import json
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from pubsub_spark import errors
from pubsub_spark.cli import app
from pubsub_spark.codec.registry import SchemaRevision, TopicSchema
from tests.conftest import ROOT
from tests.spark import test_pages
from tests.unit.project.conftest import command

README = (ROOT / "README.md").read_text()
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
SHELL_LINES = [
    line.split("#")[0].split()
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]


def test_tables_are_the_codes_own():
    """The tables and examples of errors of the documents are up to date."""
    tables = command("tables")

    pages = [page.read_text() for page in tables.PAGES]
    for page in pages:
        assert tables.render(page) == page, "run `make tables`"
    assert set(tables.PARTS) == {
        part for page in pages for part in re.findall(r"<!-- (?!end|not run|run by)(.+?) -->", page)
    }


def test_first_screen_has_the_commands():
    """The first forty lines have the promises, the costs and both commands."""
    screen = "\n".join(README.splitlines()[:40])

    for words in ("No loss", "What it costs", "make demo", "make test", "spark.readStream"):
        assert words in screen


@pytest.mark.parametrize("line", [line for line in SHELL_LINES if line[:1] == ["pubsub-spark"]], ids=" ".join)
def test_commands_of_the_readme_exist(line: list[str]):
    """Each `pubsub-spark` command in the README is known, with all its options."""
    words = [*takewhile(lambda word: not word.startswith("-"), line[1:])]
    result = CliRunner().invoke(app, [*words, "--help"], terminal_width=200)

    assert result.exit_code == 0
    for word in line[2:]:
        assert not word.startswith("--") or word in result.output


def test_make_targets_of_the_documents_exist():
    """Each `make x` in README and CONTRIBUTING, in text or in a block, is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)

    assert {"demo", "test"} <= set(named)
    assert set(named) <= targets


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml"])
def test_options_in_containers_exist(name: str):
    """Each option of the emulator in examples/docker is one of `pubsub-spark emulator`."""
    text = (ROOT / "examples" / "docker" / name).read_text()
    healthcheck = re.findall(r'"pubsub-spark", "emulator", "([a-z]+)", "(--[a-z]+)"', text)
    given = set(re.findall(r'"(--[a-z-]+)"', text)) - {"--fail", "--request", "--timeout"}  # curl's, the health check's
    result = CliRunner().invoke(app, ["emulator", "run", "--help"], terminal_width=200)

    assert "--data-dir" in given
    assert [] == [option for option in given if option not in result.output]
    assert ([("wait", "--timeout")] if name == "Dockerfile" else []) == healthcheck


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path):
    """Every relative link is a file of the repository, every `#anchor` a heading of its document."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text()):
        path, _, anchor = target.partition("#")
        linked = document.parent / path if path else document
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document: its headings, and the rows of its tables that have one."""
    text = document.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings} | {
        *re.findall(r'<a id="(.+?)">', text)
    }


# Pages whose Bash, Python and SQL blocks a test of their own runs. `tests/spark/test_pages.py` runs all others.
RUN_BY_OTHERS = {
    "README.md": "spark/test_docs.py, rpc/test_cli_docs.py",
    "cli.md": "rpc/test_cli_docs.py",
    "emulator-reference.md": "rpc/test_emulator_docs.py",
    "errors.md": "spark/test_docs.py",
    "index.md": "test_quick_start_is_the_readmes",
    "operations.md": "spark/test_read_features.py, spark/test_docs.py",
    "sql.md": "spark/test_sql.py",
    "testing.md": "rpc/test_testing_docs.py",
    "writing.md": "spark/test_write_docs.py",
}
_COMMAND = re.compile(r"(python3?|pip|gcloud|spark-submit|env|export|%\w+|from|import|while|\w+=) ?", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_is_run_or_says_why_not(document: Path):
    """Bash, Python and SQL blocks are run by a test. A command in another block has a comment with the reason."""
    text = document.read_text()
    fenced = re.findall(r"(?:<!-- (not run|run by)[^\n]+ -->\n)?^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    runnable = [block for _, language, block in fenced if language in ("bash", "python", "sql")]
    shown = [block for why, language, block in fenced if language == "text" and not why and _COMMAND.match(block)]

    if "docs" in document.parts[-3:] and runnable:
        assert (document.name in RUN_BY_OTHERS) != (document.name in test_pages.PAGES), document.name
    if document.name not in ("CONTRIBUTING.md", "CHANGELOG.md"):
        assert [] == shown


def test_site_is_built(tmp_path: Path):
    """`make docs` builds every page into plain files, without a warning. The search index has the pages' words."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)

    assert 0 == built.returncode, built.stderr
    assert {page.stem for page in ROOT.glob("docs/*.md")} <= {page.stem for page in tmp_path.glob("*.html")}
    assert "stagingLocation" in (tmp_path / "search" / "search_index.json").read_text()
    assert "resource" in (tmp_path / "source" / "conf" / "iam.tf.txt").read_text()
    assert "WriteSummary" in (tmp_path / "api.html").read_text()
    assert "Unreleased" in (tmp_path / "project" / "changelog.html").read_text()
    assert (tmp_path / "notebooks" / "1_stream_to_table.html").exists()
    for page in tmp_path.glob("**/*.html"):
        assert [] == re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?:[^\"]+", page.read_text()), page


@pytest.mark.parametrize(("origin", "page"), [("git@host.example:us/it.git", "https://host.example/us/it"), ("", None)])
def test_pages_link_to_the_code_host(monkeypatch: pytest.MonkeyPatch, origin: str, page: str | None):
    """The link to edit a page leads to the code host of the clone, and is left out in a clone without one."""
    hook = command("site_links")
    monkeypatch.setattr(hook, "origin_of", lambda _: origin)

    config = hook.on_config(SimpleNamespace(repo_url=None, edit_uri="blob/HEAD/docs/"))

    assert page == config.repo_url
    assert (page is None) == (config.edit_uri is None)


def test_search_finds_names():
    """The search's words are the names of errors and roles, without the brackets and paths around them."""
    [separator] = re.findall(r"separator: '(.+)'", (ROOT / "mkdocs.yml").read_text())

    assert "DATA_SOURCE_NOT_FOUND" in re.split(separator, "with `[DATA_SOURCE_NOT_FOUND]` for")
    assert "pubsub.subscriber" in re.split(separator, "the role `roles/pubsub.subscriber` on")


def test_example_schemas_have_the_same_fields():
    """The registry accepts the example schemas of both languages, with the same columns."""
    examples = ROOT / "examples"
    avro = SchemaRevision("projects/p/schemas/flight", "1", "AVRO", (examples / "flight.avsc").read_text())
    protobuf = SchemaRevision(
        "projects/p/schemas/flight", "1", "PROTOCOL_BUFFER", (examples / "flight.proto").read_text()
    )
    names = [TopicSchema("BINARY", schema).struct_type().names for schema in (avro, protobuf)]

    assert names == [["carrier", "flight", "tailnum", "dep_delay"]] * 2


def test_quick_start_is_the_readmes():
    """The first query of docs/index.md is the one of the README, which a test runs."""
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.DOTALL)

    assert block.replace("in this process", "in this process: no account, no Docker") in README


def test_errors_page_has_every_class():
    """docs/errors.md lists every class of error."""
    page = (ROOT / "docs" / "errors.md").read_text()
    classes = [name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")]

    assert len(classes) >= 10
    assert [] == [name for name in classes if f"`{name}`" not in page and f"errors.{name}`" not in page]


@pytest.mark.parametrize("template", sorted((ROOT / "conf").glob("*[!n]")), ids=lambda path: path.name)  # no .json
def test_every_setting_has_its_reason(template: Path):
    """In a template each setting, or the group it opens, is under a comment."""
    for paragraph in template.read_text().strip().split("\n\n"):
        assert paragraph.startswith("#"), paragraph


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.name)
def test_notebooks_are_databricks_sources(notebook: Path):
    """A notebook is in Databricks' source format, and no cell mixes Markdown and code."""
    first, *cells = re.split(r"\n\n# COMMAND -{10}\n\n", notebook.read_text())
    cells.insert(0, first.removeprefix("# Databricks notebook source\n"))

    assert first.startswith("# Databricks notebook source\n")
    for cell in cells:
        magic = [line.startswith("# MAGIC") for line in cell.strip().splitlines()]
        assert all(magic) or not any(magic), cell


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.name)
def test_jupyter_notebooks_are_current(notebook: Path):
    """A .ipynb has the cells of its source. Each that was run has outputs, no error, and no path of the machine."""
    notebooks = command("notebooks")
    made = json.loads(notebook.with_suffix(".ipynb").read_text())

    assert notebooks.cells(notebook.read_text()) == notebooks.cells_of_jupyter(made), "run `make notebooks`"
    outputs = [output for cell in made["cells"] for output in cell.get("outputs", [])]
    assert bool(outputs) == (notebook.stem != "6_databricks")
    assert "error" not in {output["output_type"] for output in outputs}
    assert not re.search(r"/tmp/|/home/|/root/|MAGIC %md", notebook.with_suffix(".ipynb").read_text())
