"""The HTTP client of pushes. It is imported for the first push subscription, because urllib3 takes time."""

from __future__ import annotations

import time
from http import HTTPStatus
from urllib.parse import urlsplit

import urllib3

from pubsub_spark.emulator.sinks import push_request

_MAX_BODY_BYTES = 1 << 20  # of an answer: only the status counts, so the rest is cut off


class Poster:
    """Connections are kept. Redirects are answers like others, nothing is sent twice, and proxies of the environment
    are not used.
    """

    def __init__(self, url: str, connections: int) -> None:
        parts = urlsplit(url)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        kind = urllib3.HTTPSConnectionPool if parts.scheme == "https" else urllib3.HTTPConnectionPool
        self._pool = kind(parts.hostname or "", parts.port, maxsize=connections)

    def post(self, headers: dict[str, str], body: bytes, timeout: float) -> int:
        """Return the status code of the answer, or 0 if it is incomplete after `timeout` seconds.

        Each header line has that time, and so has the whole body. http.client reads at most a hundred header lines.
        """
        ends = time.monotonic() + timeout
        try:
            response = self._pool.urlopen(
                "POST",
                self._target,
                body,
                {"User-Agent": push_request.USER_AGENT, **headers},
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(total=timeout),
                preload_content=False,
                decode_content=False,
            )
            whole = _read(response, ends)
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            return 0
        return int(response.status) if whole else 0

    def close(self) -> None:
        self._pool.close()


def _read(response: urllib3.BaseHTTPResponse, ends: float) -> bool:
    """Return whether the body arrived in time. Its connection is used again, except after a 1xx or a body that is too
    long.
    """
    read = 0
    while chunk := response.read1(_MAX_BODY_BYTES):
        read += len(chunk)
        if time.monotonic() > ends or read > _MAX_BODY_BYTES:
            response.close()
            return read > _MAX_BODY_BYTES and time.monotonic() <= ends
    if response.status < HTTPStatus.OK:
        response.close()
    response.release_conn()
    return True
