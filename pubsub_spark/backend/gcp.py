"""The channel to Google Cloud: credentials, the tokens of its calls, TLS.

Google's own client makes the channel, so endpoints of universes and mutual TLS, client certificates, keepalive and
message sizes are its own. `Tokens` differs: for a call without a token it names the server that returned none, and
whether that is an outage. gRPC would log each one with a traceback.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import grpc
from google.auth.credentials import with_scopes_if_required
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.grpc import AuthMetadataPlugin
from google.auth.transport.requests import Request
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from ..errors import ForbiddenError
from . import google_credentials
from .connection import channel_options
from .status import no_token

_log = logging.getLogger(__name__)


def open_channel(
    credentials_json: str | None, endpoint: str | None, universe: str, timeout: float
) -> tuple[grpc.Channel, str]:
    """Return a channel to Pub/Sub and its address. Raises ForbiddenError without usable credentials.

    credentials_json: None for the Application Default Credentials. endpoint: `host:port`, or None for the universe's.
    timeout: seconds until a metadata server or a token server must answer.
    """
    address = endpoint or f"pubsub.{universe}:443"

    def create_channel(host: str, *, credentials: Any, ssl_credentials: Any, options: Any, **_: Any) -> grpc.Channel:
        plugin = Tokens(credentials, host, timeout / 2)  # so that a call of `timeout` seconds ends with its reason
        tokens = grpc.metadata_call_credentials(plugin)
        if ssl_credentials is None:
            tls = grpc.compute_engine_channel_credentials(tokens)
        else:  # a client certificate
            tls = grpc.composite_channel_credentials(ssl_credentials, tokens)
        return grpc.secure_channel(host, tls, [*options, *channel_options(host)])

    class Transport(SubscriberGrpcTransport):
        """Google's, with our channel, also if PUBSUB_EMULATOR_HOST makes Google's client pass another."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**{**settings, "channel": create_channel})

    try:
        credentials = google_credentials.load(credentials_json, address, timeout)
        credentials = with_scopes_if_required(credentials, None, default_scopes=Transport.AUTH_SCOPES)
        client = SubscriberClient(
            credentials=credentials,
            transport=Transport,
            client_options={"api_endpoint": endpoint, "universe_domain": universe},
        )
    except GoogleAuthError as error:
        reason = ": ".join(map(str, error.args)) or type(error).__name__  # some are raised with their cause
        if credentials_json is not None:
            remedy = "Correct the credentials in the options."
        elif endpoint is None:
            remedy = "Set `credentialsFile`, or `endpoint` or `PUBSUB_EMULATOR_HOST` for an emulator."
        else:
            remedy = "Set `credentialsFile`, or `backend=emulator` if it is an emulator."
        raise ForbiddenError(
            f"No usable credentials for `{address}`: {reason.splitlines()[0].rstrip('.')}. {remedy}"
        ) from None
    transport = cast("Transport", client.transport)
    return transport.grpc_channel, transport.host


class Tokens:
    """The tokens of a channel's calls, as a plugin of gRPC.

    A call without a token is UNAVAILABLE, with the text of `no_token`. The first of several in a row is a WARNING.
    timeout: seconds until a token server must answer.
    """

    def __init__(self, credentials: Any, address: str, timeout: float) -> None:
        self._credentials = credentials
        self._address = address
        self._timeout = timeout
        self._request = Request()
        self._is_failing = False

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        request = _TokenRequest(self._request, self._timeout)
        plugin = AuthMetadataPlugin(self._credentials, request, SubscriberGrpcTransport.DEFAULT_HOST)
        try:
            plugin(context, callback)
        except Exception as error:
            reason = no_token(request.url, request.status, " ".join(" ".join(map(str, error.args)).split()))
            if not self._is_failing:
                _log.warning("no token for `%s`: %s", self._address, reason)
            self._is_failing = True
            callback((), RuntimeError(reason))
        else:
            self._is_failing = False


class _TokenRequest:
    def __init__(self, request: Request, timeout: float) -> None:
        self._request = request
        self._timeout = timeout
        self.url: str | None = None
        self.status: int | None = None

    def __call__(self, url: str, *arguments: Any, **settings: Any) -> Any:
        self.url, self.status = url, None
        response = self._request(url, *arguments, **{"timeout": self._timeout, **settings})
        self.status = response.status
        return response
