"""One way to answer with a Struct as JSON."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from litestar import MediaType, Response


def json_reply(
    body: msgspec.Struct, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response[bytes]:
    """Return `body` encoded by msgspec alone; absent fields stay absent."""
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type=MediaType.JSON,
        headers=dict(headers or {}),
    )
