"""The backends, Google Cloud and emulators: the only folder of the connector that imports Google's client library.

    options --from_options--> Backend --connect()--> Connection   hot calls, raw bytes both ways        (connection)
                                                       └─ .admin  everything else, as protobuf messages (admin)

A `Backend` is plain values: Spark pickles it to the executors. It opens nothing until `connect()`, which is called
where the connection is used, after the fork, and closed there.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..errors import OptionsError
from ..options import ServiceOptions
from .connection import Connection, channel_options

__all__ = ["Backend", "Connection", "EmulatorBackend", "GcpBackend", "credentials_json", "from_options"]

_PROBE_AFTER_SECONDS = 10.0  # an emulator may take HTTP/2's keepalive for an attack, as Google's does
GLOBAL_ENDPOINT = "pubsub.googleapis.com:443"


class Backend(Protocol):
    """An endpoint of Pub/Sub and the credentials for it, as picklable values."""

    @property
    def address(self) -> str:
        """The endpoint as `host:port`, for error messages."""

    def connect(self) -> Connection:
        """Return an open connection, to be closed in the process that opened it."""


@dataclass(frozen=True)
class EmulatorBackend:
    """The endpoint of an emulator, ours or Google's: no TLS, no credentials."""

    address: str
    connect_timeout: float = 20.0

    def connect(self) -> Connection:
        import grpc

        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_metadata_size", 4 * 2**20),  # as Google's transports: failed acks are named in the trailer
            *channel_options(self.address),
        ]
        channel = grpc.insecure_channel(self.address, options=options)
        return Connection(channel, self.address, self.connect_timeout, _PROBE_AFTER_SECONDS)


@dataclass(frozen=True)
class GcpBackend:
    """An endpoint of Google Cloud, with Application Default Credentials or a key in JSON that `repr` leaves out.

    endpoint: `host:port`, or None for the one that Google's clients use: by the universe (the domain of Google's
    endpoints) and the variables of mutual TLS.
    """

    endpoint: str | None = None
    credentials_json: str | None = field(default=None, repr=False)
    connect_timeout: float = 20.0
    universe: str = "googleapis.com"

    @property
    def address(self) -> str:
        """The endpoint, for error messages. Only a Connection knows the endpoint of mutual TLS."""
        return self.endpoint or f"pubsub.{self.universe}:443"

    def connect(self) -> Connection:
        """Raises ForbiddenError without usable credentials."""
        from .gcp import open_channel

        channel, address = open_channel(self.credentials_json, self.endpoint, self.universe, self.connect_timeout)
        return Connection(channel, address, self.connect_timeout)


def from_options(options: ServiceOptions) -> Backend:
    """Raises OptionsError if the credentials cannot be read."""
    if options.is_emulator:
        assert options.endpoint is not None, "options refuse an emulator without endpoint"
        return EmulatorBackend(options.endpoint, options.connect_timeout)
    credentials, universe = credentials_json(options), options.universe
    if credentials is not None:
        universe = json.loads(credentials).get("universe_domain", universe)
    return GcpBackend(options.endpoint, credentials, options.connect_timeout, universe)


def credentials_json(options: ServiceOptions) -> str | None:
    """Return the credentials of the options, or None. Raises OptionsError if they cannot be read."""
    if options.credentials_file is not None:
        source, text = f"`credentialsFile` `{options.credentials_file}`", _read(options.credentials_file)
    elif options.credentials is not None:
        source, text = "`credentials`", _decoded(options.credentials)
    elif options.private_key is not None:
        return json.dumps(
            {
                "type": "service_account",
                "client_email": options.client_email,
                "client_id": options.client_id,
                "private_key": options.private_key.replace("\\n", "\n"),
                "private_key_id": options.private_key_id,
                "token_uri": "https://oauth2.googleapis.com/token",
            }
        )
    else:
        return None
    try:
        if isinstance(json.loads(text), dict):
            return text
    except ValueError:
        pass
    raise OptionsError([f"{source} must hold credentials in JSON, such as a service account key"])


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise OptionsError([f"`credentialsFile` `{path}` cannot be read on the driver: {error.strerror}"]) from None


def _decoded(text: str) -> str:
    if text.lstrip().startswith("{"):
        return text
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return text
