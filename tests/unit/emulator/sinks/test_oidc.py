"""The tokens of pushes and the documents that verify them."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor

from google.auth import jwt

from pubsub_spark.emulator.sinks.oidc import Signer
from pubsub_spark.emulator.sinks.push_worker import one_signer


def test_token_is_verified_by_google_auth():
    """google-auth accepts the token with the served certificate, and finds the documented claims."""
    signer = Signer()
    now = 1_600_000_000.0

    token = signer.token("push@p.iam.gserviceaccount.com", "http://localhost/push", now)

    head, claims, _, _ = jwt._unverified_decode(token)
    assert {"alg": "RS256", "kid": signer.key_id, "typ": "JWT"} == head
    assert "https://accounts.google.com" == claims["iss"]
    assert "push@p.iam.gserviceaccount.com" == claims["email"]
    assert claims["email_verified"]
    assert 3600 == claims["exp"] - claims["iat"]
    day = 86_400 * 365 * 100
    assert claims == jwt.decode(
        token, certs=signer.certificates(), audience="http://localhost/push", clock_skew_in_seconds=day
    )


def test_key_set_names_the_key_that_signs():
    """The JSON Web Key Set holds the one public key, under the id that tokens carry."""
    signer = Signer()

    [key] = signer.jwks()["keys"]

    assert signer.key_id == key["kid"]
    assert ("RSA", "RS256", "sig", "AQAB") == (key["kty"], key["alg"], key["use"], key["e"])
    assert 256 == len(base64.urlsafe_b64decode(key["n"] + "=="))


def test_threads_share_one_key():
    """A token is verified with the served certificates, whichever threads asked first for a signer."""
    signer = one_signer()
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: signer().key_id, range(8)))

    assert 1 == len(keys)
