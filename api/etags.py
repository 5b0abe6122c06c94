"""ETags: answers that a client may keep, and ask for again only where they changed (RFC 9110)."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import Header

UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "It is still what the ETag was given for."}}
"""Of the `responses` of a route that answers so."""

IfNoneMatch = Annotated[str | None, Header(max_length=1000, description="ETags that are known (RFC 9110).")]


def headers_of(content: bytes) -> dict[str, str]:
    """The headers of an answer that may be kept; `content` is that, or what it follows from."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return {"ETag": tag, "Cache-Control": "private, max-age=5, stale-if-error=86400"}


def is_match(header: str | None, tag: str) -> bool:
    """Whether an If-None-Match names a tag (RFC 9110, 13.1.2)."""
    if header is None:
        return False
    return header.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in header.split(","))
