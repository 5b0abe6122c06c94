"""Route of snapshots: all that is known of a target, for when no server is there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Response
from fastapi.responses import StreamingResponse

from tunewright.db.access import Scope
from tunewright.db.errors import NotFound
from tunewright.db.known import Marks
from tunewright.db.sql_store import SqlStore
from tunewright.search_space.sketches import current

from ..access import needs
from ..etags import UNCHANGED, IfNoneMatch, headers_of, unchanged
from ..openapi import problems
from ..problems import Kind, Problem
from ..schemas import SHA256
from ..service import Here, Service, in_thread
from .prepared import exact

PAGE = 500
"""Records that are read at once."""

FORM = "1"
"""Part of the ETag: it changes when lines are put otherwise."""

LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A line of JSON for each task: the answers that a lookup of all tasks would have.",
        "content": {"application/jsonl": {"schema": {"type": "string"}}},
    }
}

TargetInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of a target.")]

router = APIRouter(prefix="/v1/snapshots", tags=["lookups"])


@router.get(
    "/{target_key}",
    summary="All records of a target",
    response_class=StreamingResponse,
    responses=LINES | UNCHANGED | problems(Kind.INVALID, Kind.NO_SUCH_TARGET),
    dependencies=[needs(Scope.RECORDS_READ)],
)
async def take_snapshot(
    target_key: TargetInPath,
    here: Here,
    if_none_match: IfNoneMatch = None,
    accept_encoding: Annotated[str, Header(max_length=1000, description="With `gzip` the lines come packed.")] = "",
) -> Response:
    """The best of every task that was measured on a target, for use where no server can be reached."""
    marks = await in_thread(partial(_marks, here, target_key))
    packed = accepts_gzip(accept_encoding)
    # Equal marks mean the same records of every target, so this makes a strong tag that costs one query.
    followed = " ".join([FORM, target_key, *map(str, marks), "gzip" if packed else "identity"])
    headers = headers_of(followed.encode()) | {"Vary": "Accept-Encoding"}
    if same := unchanged(if_none_match, headers):
        return same
    lines = _lines(here.store, target_key)
    if packed:
        headers["Content-Encoding"] = "gzip"
        lines = gzipped(lines)
    return StreamingResponse(lines, media_type="application/jsonl", headers=headers)


def _marks(here: Service, target_key: str) -> Marks:
    """What tells whether there is anything new, read before the records are. Raises Problem for an unknown target."""
    marks = here.store.known.marks()
    try:
        here.store.target(target_key)
    except NotFound as error:
        raise Problem(Kind.NO_SUCH_TARGET, "nothing was measured there") from error
    return marks


def _lines(store: SqlStore, target_key: str) -> Iterator[bytes]:
    after, known = "", current()
    while page := store.known.best_on(target_key, after, PAGE):
        outdated = [best.task_key for best in page if (best.sketch, best.sketch_version) not in known]
        newer = store.known.fastest(outdated, target_key, known, limit=1) if outdated else {}
        usable = [best for best in page if best.task_key not in outdated] + [best for [best] in newer.values()]
        yield b"".join(exact(best).text + b"\n" for best in usable)
        after = page[-1].task_key


def gzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces as one gzip stream."""
    deflate = zlib.compressobj(6, wbits=zlib.MAX_WBITS | 16)
    for piece in pieces:
        if packed := deflate.compress(piece):
            yield packed
    yield deflate.flush()


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding allows gzip (RFC 9110, 12.5.3), `*` not being taken for it."""
    for part in header.split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
