"""Calls of `/_emulator/...`, the emulator's own verbs, over HTTP."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from .command import exit_with

_TIMEOUT_SECONDS = 20.0
_LOOK_SECONDS = 2.0


def ask(endpoint: str, method: str, verb: str, **fields: Any) -> Any:
    """Return the response of a verb, as JSON. End the command if the emulator refuses it or does not answer."""
    import urllib.error
    import urllib.parse

    path = f"/_emulator/{verb}"
    try:
        if method == "GET":
            query = urllib.parse.urlencode(fields)
            return json.loads(_answer(endpoint, "GET", f"{path}?{query}", None, _TIMEOUT_SECONDS))
        return json.loads(_answer(endpoint, method, path, json.dumps(fields).encode(), _TIMEOUT_SECONDS))
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.FORBIDDEN:  # called by another name than its own
            exit_with(error.read().decode().strip())
        with suppress(ValueError, TypeError, KeyError):
            exit_with(json.loads(error.read())["error"]["message"])
        exit_with(f"`{endpoint}` has no verb `{verb}`. Only `pubsub-spark emulator` has it.")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        exit_with(
            f"No emulator answers at `{endpoint}`: {getattr(reason, 'strerror', None) or reason}. Start one with "
            "`pubsub-spark emulator start`, or name its address with `--endpoint`."
        )


def is_ready(endpoint: str) -> bool:
    return _look(endpoint, "/healthz") is not None


def is_listening(host: str, port: int) -> bool:
    """Return whether any server accepts connections. Trying is faster than importing a client of HTTP."""
    with suppress(OSError), socket.create_connection((host, port), _LOOK_SECONDS):
        return True
    return False


def pid_at(endpoint: str) -> int | None:
    """Return the process id that an emulator reports as its own, or None if none answers."""
    with suppress(ValueError, TypeError, KeyError):
        return int(json.loads(_look(endpoint, "/_emulator/process") or "")["pid"])
    return None


def page_of(endpoint: str) -> str:
    """Return the address of its page in a browser of this machine."""
    host, _, port = endpoint.rpartition(":")
    return f"http://{'localhost' if host in ('0.0.0.0', '[::]') else host}:{port}/"  # noqa: S104 (nothing is bound)


def _look(endpoint: str, path: str) -> bytes | None:
    with suppress(OSError, ValueError):
        return _answer(endpoint, "GET", path, None, _LOOK_SECONDS)
    return None


def _answer(endpoint: str, method: str, path: str, body: bytes | None, seconds: float) -> bytes:
    """Raises HTTPError for another status than success, other OSErrors without a response."""
    import urllib.request

    from ..service_options import host_of, is_loopback

    host = host_of(endpoint)
    is_near = is_loopback(host) or "." not in host  # no proxy knows the names of a compose file
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({} if is_near else None))
    request = urllib.request.Request(f"http://{endpoint}{path}", body, method=method)
    with opener.open(request, timeout=seconds) as response:
        content: bytes = response.read()
        return content
