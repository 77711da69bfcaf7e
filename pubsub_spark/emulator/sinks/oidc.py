"""The OpenID Connect tokens that authenticated pushes carry, and the documents that verify them.

The emulator generates one RSA key, and publishes it as Google does: `jwks()` at Google's path `/oauth2/v3/certs`,
`certificates()` at `/oauth2/v1/certs`. A receiver under test needs only the other address.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt

ISSUER = "https://accounts.google.com"
LIFETIME_SECONDS = 3600  # "tokens ... can be up to one hour old"

# Wide enough for any clock that a test sets.
_VALID_FROM = datetime(2000, 1, 1, tzinfo=UTC)
_VALID_UNTIL = datetime(2200, 1, 1, tzinfo=UTC)


class Signer:
    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = self._key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.key_id = hashlib.sha256(public).hexdigest()[:40]  # the `kid`: a digest of the key, as Google's are
        self._signer = crypt.RSASigner(self._key, self.key_id)

    def token(self, service_account: str, audience: str, now: float) -> str:
        subject = _subject(service_account)
        claims = {
            "aud": audience,
            "azp": subject,
            "email": service_account,
            "email_verified": True,
            "exp": int(now) + LIFETIME_SECONDS,
            "iat": int(now),
            "iss": ISSUER,
            "sub": subject,
        }
        token: bytes = jwt.encode(self._signer, claims)
        return token.decode()

    def jwks(self) -> dict[str, Any]:
        """Return a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "alg": "RS256",
            "use": "sig",
            "kid": self.key_id,
            "n": _encoded(numbers.n.to_bytes(256)),
            "e": _encoded(numbers.e.to_bytes(3)),
        }
        return {"keys": [key]}

    @cached_property
    def _certificate(self) -> str:
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pubsub-emulator")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_VALID_FROM)
            .not_valid_after(_VALID_UNTIL)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    def certificates(self) -> dict[str, str]:
        """Return certificates by key id, the form that google-auth reads."""
        return {self.key_id: self._certificate}


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _subject(service_account: str) -> str:
    """Return a stable 21-digit number for the account, in the form of Google's `sub`."""
    digest = int.from_bytes(hashlib.sha256(service_account.encode()).digest()[:8])
    return f"1{digest % 10**20:020d}"
