"""JSON web tokens, signed with the secret key of a broker."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Final

ROLES: Final = ("admin", "client", "stranger", "proxy")
"""The roles of cases: a superuser, one with rights in public/default, one without rights, a proxy."""


def sign(key: bytes, **claims: object) -> str:
    """Return a token with these claims, signed with `key` (HS256)."""

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    signing_input = f"{encode(json.dumps({'alg': 'HS256'}).encode())}.{encode(json.dumps(claims).encode())}"
    return f"{signing_input}.{encode(hmac.digest(key, signing_input.encode(), hashlib.sha256))}"


def make_tokens(key: bytes) -> dict[str, str]:
    """Return the tokens that cases use, by name: those of `ROLES`, an expired and a forged one."""
    tokens = {role: sign(key, sub=role) for role in ROLES}
    tokens["expired"] = sign(key, sub="client", exp=1_500_000_000)
    tokens["forged"] = sign(hashlib.sha256(key).digest(), sub="admin")
    return tokens
