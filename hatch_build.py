"""The project URLs in the metadata of wheel and sdist: the code host that this clone came from.

A fork, a company's mirror and the project itself each name the place where their users find the code and file an issue.
Hatchling runs this in a clone. From an sdist it uses the URLs of the sdist's metadata.

Plan: address of the remote `origin` -> web page of the code host, without user and password -> a URL for each label of
`[tool.hatch.metadata.hooks.custom.urls]` in pyproject.toml.
"""

import ipaddress
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

_SCP_ADDRESS = re.compile(r"(?:[^@/]+@)?([^@:/]+\.[^@:/]+):(?!//)/?(.+)")  # git@host.name:owner/project.git


class ProjectUrls(MetadataHookInterface):
    """Fills the dynamic field `urls`, or prints the reason on stderr."""

    def update(self, metadata: dict[str, Any]) -> None:
        address = origin_of(Path(self.root))
        page = web_page(address)
        metadata["urls"] = {label: page + rest for label, rest in self.config["urls"].items()} if page else {}
        if page is None:
            sys.stderr.write(
                f"WARNING: the metadata has no project URLs, because the remote `origin` of {self.root} is"
                f" {'no code host' if address else 'not set'}: build from a clone of the code host that users reach.\n"
            )


def origin_of(root: Path) -> str:
    """Return the address of the clone's remote `origin`, or "" if `root` is not a clone or has no `origin`."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "config", "--get", "remote.origin.url"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    except FileNotFoundError:
        return ""


def web_page(address: str) -> str | None:
    """Return the URL of the repository's page, or None for a folder, a `file:` address or this machine."""
    if scp := _SCP_ADDRESS.fullmatch(address):
        site, path = f"https://{scp[1]}", scp[2]
    else:
        parts = urlsplit(address)
        if parts.scheme not in {"https", "http", "ssh", "git"} or _is_this_machine(parts.hostname or "localhost"):
            return None
        web = parts.scheme.startswith("http")
        site = f"{parts.scheme if web else 'https'}://{parts.hostname}{f':{parts.port}' if web and parts.port else ''}"
        path = parts.path
    return f"{site}/{path.strip('/').removesuffix('.git')}"


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"
