"""A hook of mkdocs: pages and links for files outside `docs/`.

CHANGELOG, CONTRIBUTING, SECURITY and the notebooks become pages of the site. Other files that a page links to
(`../conf/iam.tf`) become text files of the site. Links to the repository use the code host of the remote `origin`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
from hatch_build import origin_of, web_page  # noqa: E402
from notebooks import cells  # type: ignore[attr-defined] # noqa: E402

_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")
_PAGES = {f"{name}.md": f"project/{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
_PAGES |= {f"notebooks/{path.stem}.ipynb": f"notebooks/{path.stem}.md" for path in ROOT.glob("notebooks/*.py")}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the address of the repository, if the clone has one."""
    config.repo_url = config.repo_url or web_page(origin_of(ROOT))
    if config.repo_url is None:
        config.edit_uri = None
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository, and every file that a page links to."""
    for source, target in _PAGES.items():
        files.append(File.generated(config, target, content=_markdown(ROOT / source)))
    for page in list(files.documentation_pages()):
        for path, _ in _LINK.findall(page.content_string):
            linked = _repository_file(page.src_uri, path)
            if linked and linked not in _PAGES and files.get_file_from_path(_text_file(linked)) is None:
                files.append(File.generated(config, _text_file(linked), content=(ROOT / linked).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Return the page with its links to the repository's files turned into links to their copies."""
    above = "../" * page.file.src_uri.count("/")

    def replace(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        linked = _repository_file(page.file.src_uri, path)
        if linked:
            return f"]({above}{_PAGES.get(linked) or _text_file(linked)}{anchor})"
        source = _source_of(page.file.src_uri)
        if source and (ROOT / source.parent / path).resolve().is_relative_to(ROOT / "docs"):
            inside = (ROOT / source.parent / path).resolve().relative_to(ROOT / "docs")
            return f"]({above}{inside}{anchor})"
        return match[0] if source is None and not path.startswith("../") else "]()"

    return re.sub(r"\[([^\]]+)\]\(\)", r"\1", _LINK.sub(replace, markdown))


def _source_of(page: str) -> Path | None:
    """Return the file of the repository that a generated page is made of, None for a page of `docs/`."""
    return next((Path(source) for source, target in _PAGES.items() if target == page), None)


def _repository_file(page: str, link: str) -> str | None:
    """Return the path of a linked file outside `docs/`, None for any other link."""
    folder = (ROOT / (_source_of(page) or Path("docs", page))).parent
    linked = (folder / link).resolve()
    inside = linked.is_file() and linked.is_relative_to(ROOT) and not linked.is_relative_to(ROOT / "docs")
    return linked.relative_to(ROOT).as_posix() if inside else None


def _text_file(path: str) -> str:
    """Return the path in the site of a file of the repository."""
    return f"source/{path}.txt"


def _markdown(path: Path) -> str:
    """Return a page's text: the file's own, or the cells of a notebook."""
    if path.suffix == ".md":
        return path.read_text()
    sources = cells(path.with_suffix(".py").read_text())
    return "\n\n".join(cell.source if cell.kind == "markdown" else f"```python\n{cell.source}\n```" for cell in sources)
