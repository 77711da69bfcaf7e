"""A hook of mkdocs: files outside `docs/` that a page links to (`../conf/iam.tf`) become text files of the site."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\]\(\.\./([^)#]+)\)")


def _source(target: str) -> str:
    """The path in the site of a file of the repository."""
    return f"source/{target}.txt"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file that a page links to."""
    for page in files.documentation_pages():
        for target in _LINK.findall(page.content_string):
            if (_ROOT / target).is_file() and files.get_file_from_path(_source(target)) is None:
                files.append(File.generated(config, _source(target), content=(_ROOT / target).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """The page with its links to those files led to their copies; one to a folder becomes its name alone."""

    def led(match: re.Match[str]) -> str:
        return f"]({_source(match[1])})" if (_ROOT / match[1]).is_file() else "]()"

    return re.sub(r"\[([^\]]+)\]\(\)", r"\1", _LINK.sub(led, markdown))
