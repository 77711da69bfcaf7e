"""The rules against foreign pages in a browser: for verbs, metrics and the page of the emulator, and for its API.

A page on the web can make a browser send requests to a server on the same machine. Two rules refuse them:

    Host     a foreign name that was made to resolve to this machine (DNS rebinding) is refused. Accepted are IP
             literals, names without a dot, `*.localhost`, the host that the server is bound to, and the names allowed.
    Origin   the Origin, if there is one, must be the server's own. The API and the verbs also accept the sites of
             `allow_origins`.

The API has only the second rule, because containers and proxies reach it under names that the emulator does not know.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit


class OriginError(ValueError):
    """A text of `allow_origins` is not the origin of a site."""


def site(text: str) -> str:
    """Return the origin as browsers send it. Raise OriginError if the text is not that of a site."""
    parts = urlsplit(text.lower().removesuffix("/"))
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.geturl() != f"{parts.scheme}://{parts.netloc}"
    ):
        raise OriginError(f"`{text}` is not the origin of a site (`allow_origins`), such as http://localhost:3000.")
    return parts.geturl()


def refusal(
    host: str,
    origin: str | None,
    scheme: str,
    allowed_hosts: Collection[str] | None,
    allowed_origins: Collection[str] = (),
) -> str | None:
    """Return the reason to refuse a request with these headers, as one sentence, or None.

    allowed_hosts: names in addition to those that are always accepted, in lower case. None accepts every name.
    allowed_origins: other sites whose pages may send requests.
    """
    if allowed_hosts is not None and not _is_accepted(_name(host).lower(), allowed_hosts):
        return f"The host `{_name(host)}` is not one of this emulator's. Start it with `--allow-host {_name(host)}`."
    own = f"{scheme}://{host}"
    if origin is not None and origin.lower() != own.lower() and origin not in allowed_origins:
        return (
            f"A request of `{origin}` is refused, because it is another site than `{own}`. Open the emulator there, or "
            f"for the JSON API start it with `--allow-origin {origin}`."
        )
    return None


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_accepted(name: str, allowed_hosts: Collection[str]) -> bool:
    return "." not in name or name.endswith(".localhost") or name in allowed_hosts or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
