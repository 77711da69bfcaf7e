"""An object store whose answers a test decides: moto's S3, which can be out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Faults:
    """The answers of a server. statuses: of its next requests, each in place of an answer. asked: what it was asked."""

    endpoint: str = ""
    statuses: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def s3_with_faults() -> Iterator[Faults]:
    """moto's S3, of the same buckets as any other in this process."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    faults, s3 = Faults(), DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        faults.asked.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        if faults.statuses:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(f"{faults.statuses.pop(0)} Fault", [("Content-Length", "0")])
            return []
        return s3(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    faults.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield faults
    server.shutdown()
    thread.join()
    server.server_close()
