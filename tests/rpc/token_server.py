"""A token server, STS, IAM Credentials and metadata server in one, on 127.0.0.1, that fails on request."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class TokenServer:
    """The faults to come, one a request: a status, "drop" for a connection that is closed, "hang" for no answer.

    constant: a fault of each request. issue: the token that is valid for so many seconds. lifetime: of tokens, seconds.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.faults: list[Any] = []
        self.constant: Any = None
        self.body = "<html>Service Unavailable</html>"
        self.paths: list[str] = []
        self.closing = threading.Event()
        self.issue: Callable[[float], str] = lambda seconds: "t"
        self.lifetime = 3600.0

    @property
    def url(self) -> str:
        return f"http://{self.address}/token"

    def answer(self, path: str) -> Any:
        """Return the answer of a Google server at a path."""
        if path.endswith("/token"):
            kind = {"token_type": "Bearer", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
            return {"access_token": self.issue(self.lifetime), "expires_in": int(self.lifetime), **kind}
        if path.endswith(":generateAccessToken"):
            expires = datetime.now(UTC) + timedelta(seconds=self.lifetime)
            return {"accessToken": self.issue(self.lifetime), "expireTime": f"{expires:%Y-%m-%dT%H:%M:%SZ}"}
        return {"email": "me@example.com", "scopes": []} if "/service-accounts/" in path else "p"

    def external_account(self, folder: Path, impersonate: bool = False) -> dict[str, Any]:
        """Return credentials of a workload identity pool whose tokens are exchanged here."""
        (folder / "subject").write_text("subject-token")
        account = f"http://{self.address}/v1/projects/-/serviceAccounts/a@example.com:generateAccessToken"
        return {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": self.url,
            "credential_source": {"file": str(folder / "subject")},
        } | ({"service_account_impersonation_url": account} if impersonate else {})


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[TokenServer]:
    """Yield a server until the block ends. tls: of HTTPS."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            server.paths.append(path)
            fault = server.faults.pop(0) if server.faults else server.constant
            if fault == "hang":
                server.closing.wait()
            if fault in ("drop", "hang"):
                return
            found = server.answer(path)
            body = (json.dumps(found) if fault is None else server.body).encode()
            self.send_response(fault or 200)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Type", "text/plain" if found == "p" else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer  # noqa: N815 (the names that http.server calls)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        if tls is not None:
            # The handshake is the handler's: in the loop that accepts, a client that stands still would block all.
            http.socket = tls.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
        server = TokenServer(f"127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            http.shutdown()
            thread.join()
