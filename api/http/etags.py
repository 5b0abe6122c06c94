"""ETags: answers that a client may keep, and ask for again only where they changed (RFC 9110)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Header, Response

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "It is still what the ETag was given for."}}
"""The `responses` of a route with ETags."""

FRESH = {"Cache-Control": "private, no-cache"}
"""A client may keep an answer, but asks each time whether it is still the same."""

OF_A_BODY = frozenset({"Content-Type", "Content-Encoding"})

IfNoneMatch = Annotated[str | None, Header(max_length=1000, description="ETags that are known (RFC 9110).")]


def cache_headers(content: bytes) -> dict[str, str]:
    """The headers of an answer that may be kept; `content` is that, or what it follows from."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return {"ETag": tag, "Cache-Control": "private, max-age=5, stale-if-error=86400"}


def not_modified(header: str | None, headers: Mapping[str, str]) -> Response | None:
    """The answer 304 to an If-None-Match that names the tag in `headers`, which are those of the whole answer.

    A browser gives what it kept the headers of the 304, so it has all of them; what describes a body it has not.
    """
    if not is_match(header, headers["ETag"]):
        return None
    return Response(status_code=304, headers={name: headers[name] for name in headers if name not in OF_A_BODY})


def is_match(header: str | None, tag: str) -> bool:
    """Whether an If-None-Match names a tag (RFC 9110, 13.1.2)."""
    if header is None:
        return False
    return header.strip() == "*" or tag in (known_tag.strip().removeprefix("W/") for known_tag in header.split(","))
