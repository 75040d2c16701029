"""Whom a request's work is charged to: the owner of the API key, else the session."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def tenant_of(session: str | None, headers: Mapping[str, str]) -> str:
    """Return the tenant's name for the engines; it does not tell the key, empty is everybody else.

    Args:
        session: the request's session key.
        headers: by lower-case name.
    """
    scheme, _, key = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return "key-" + _digest(key.strip())
    return "session-" + _digest(session) if session else ""


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
