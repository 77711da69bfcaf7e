"""Google's credentials, for Pub/Sub and for a staging area on `gs://`.

In a new pod the metadata server may answer some seconds after the container has started. So it is waited for.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

import google.auth
from google.auth.exceptions import DefaultCredentialsError

from .status import Retries, delays

_MAX_PAUSE_SECONDS = 2.0  # between two looks for a metadata server
_NOT_FOUND = "default credentials were not found"  # google.auth.default, after the metadata server as its last resort
_log = logging.getLogger(__name__)
# `google.auth.default` would say at each connection that it does not know a project, which no call needs.
logging.getLogger("google.auth._default").addFilter(lambda record: "No project ID" not in record.getMessage())


def load(credentials_json: str | None, used_for: str, timeout: float) -> Any:
    """Return credentials without scopes: with them google-auth would ask two servers for a project's id.

    credentials_json: None for the Application Default Credentials. used_for: the address or URL, for the log. timeout:
    seconds, for a metadata server. Raises GoogleAuthError.
    """
    if credentials_json is not None:
        return google.auth.load_credentials_from_dict(json.loads(credentials_json))[0]
    server = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    retries = Retries(time.monotonic(), delays(most=_MAX_PAUSE_SECONDS))
    has_warned = False
    while True:
        try:
            return google.auth.default()[0]
        except DefaultCredentialsError as error:
            if _NOT_FOUND not in str(error) or os.environ.get("NO_GCE_CHECK") == "true":
                raise
        pause = retries.pause(time.monotonic(), retries.started_at + timeout)
        if pause is None:
            raise DefaultCredentialsError(
                f"there is no credentials file, and the metadata server `{server}` did not answer for {timeout:g} s"
            )
        if not has_warned:
            has_warned = True
            _log.warning(
                "no credentials for `%s` yet: there is no credentials file, and the metadata server `%s` does not "
                "answer. Trying for %g s",
                *(used_for, server, timeout),
            )
        time.sleep(pause)
