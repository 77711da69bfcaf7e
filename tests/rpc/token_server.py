"""A token server, STS, IAM Credentials and metadata server in one, on 127.0.0.1, that fails when it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_ANSWERS = {  # by the end of a path
    "/token": {"access_token": "t", "expires_in": 3600, "token_type": "Bearer"},
    ":generateAccessToken": {"accessToken": "t", "expireTime": "2100-01-01T00:00:00Z"},
    "/default/": {"email": "me@example.com", "scopes": []},
}


class TokenServer:
    """The faults to come, one a request: a status, "drop" for a connection that is closed, "hang" for no answer."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.faults: list[Any] = []
        self.body = "<html>Service Unavailable</html>"
        self.paths: list[str] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://{self.address}/token"

    def external_account(self, folder: Path, impersonate: bool = False) -> dict[str, Any]:
        """Credentials of a workload identity pool whose tokens are exchanged here."""
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
def serving() -> Iterator[TokenServer]:
    """A server until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            server.paths.append(path)
            fault = server.faults.pop(0) if server.faults else None
            if fault == "hang":
                server.closing.wait()
            if fault in ("drop", "hang"):
                return
            found = next((answer for end, answer in _ANSWERS.items() if path.endswith(end)), "p")
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
        server = TokenServer(f"127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            http.shutdown()
            thread.join()
