"""The files that pages load: style sheets and the script."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from ...html import assets
from ...problems import Kind, Problem

FOR_EVER = "public, max-age=31536000, immutable"

router = APIRouter(prefix="/static", tags=["pages"])


@router.get("/{name}", include_in_schema=False)
async def asset(
    name: Annotated[str, Path(description="Of the file.")],
    v: Annotated[str, Query(max_length=64, description="Its version: another content has another one.")] = "",
) -> Response:
    """A file under its version never changes; without, a browser asks each time. It needs no key: `gate.STATIC`."""
    one = assets().get(name)
    if one is None:
        raise Problem(Kind.NOT_FOUND, "pages load no such file")
    kept = FOR_EVER if v == one.version else "public, no-cache"
    return Response(one.content, headers={"Cache-Control": kept}, media_type=one.media_type)
