"""Header values we read from clients and write from request data."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from trnrt_router.protocol import CacheReport

MAX_REQUEST_ID_CHARS = 128
MAX_NAMED_FIELDS = 20
MAX_FIELD_CHARS = 64
_PLAIN = string.punctuation.replace("%", "") + " "


def request_id(headers: Mapping[str, str]) -> str:
    """Return the client's request id if it is fit for a header, else a new one."""
    given = headers.get("x-request-id", "")
    if 0 < len(given) <= MAX_REQUEST_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return f"req-{secrets.token_hex(12)}"


def field_list(names: Iterable[str]) -> str:
    """Return field names as one value; anything that could end the header is percent-encoded."""
    quoted = [quote(name[:MAX_FIELD_CHARS], safe="") for name in names]
    shown = quoted[:MAX_NAMED_FIELDS]
    if len(quoted) > len(shown):
        shown.append(f"and-{len(quoted) - len(shown)}-more")
    return ", ".join(shown)


def cache_fields(report: CacheReport) -> dict[str, str]:
    """Return what a request found in the prefix cache, by the names clients and logs know."""
    return {
        "kv_depth": str(report.kv_depth),
        "state_depth": str(report.state_depth),
        "replayed": str(report.replayed),
        "tier": report.tier or "none",
        "reason": report.reason or "none",
    }


def key_values(fields: Mapping[str, str]) -> str:
    """Return plain fields as one value, a dictionary of RFC 8941."""
    return ", ".join(f"{name}={value}" for name, value in fields.items())


def sentence_list(sentences: Iterable[str]) -> str:
    """Return sentences as one value, as readable as a header allows."""
    return "; ".join(quote(sentence, safe=_PLAIN) for sentence in sentences)
