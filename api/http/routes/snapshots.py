"""Route of snapshots: all best records of a target, for use without a server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Path, Response
from fastapi.responses import StreamingResponse

from tunewright.db.access import KeyScope
from tunewright.db.best import Marks
from tunewright.db.errors import NotFound
from tunewright.db.store import Store
from tunewright.search_space.sketches import current

from ..access import needs
from ..compression import accepts_gzip, gzip_stream
from ..etags import NOT_MODIFIED, IfNoneMatch, cache_headers, not_modified
from ..openapi import json_lines_answer, problems
from ..problems import Problem, ProblemKind
from ..schemas.base import SHA256
from ..service import Service, ServiceDep, in_thread
from .lookup_cache import exact_item

PAGE = 500
"""Records that are read at once."""

FORM = "1"
"""Part of the ETag: it changes when lines are put otherwise."""

LINES = json_lines_answer("A line of JSON for each task: the answers that a lookup of all tasks would have.")

TargetInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of a target.")]

router = APIRouter(prefix="/v1/snapshots", tags=["lookups"])


@router.get(
    "/{target_key}",
    summary="All records of a target",
    response_class=StreamingResponse,
    responses=LINES | NOT_MODIFIED | problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_TARGET),
    dependencies=[needs(KeyScope.RECORDS_READ)],
)
async def take_snapshot(
    target_key: TargetInPath,
    service: ServiceDep,
    if_none_match: IfNoneMatch = None,
    accept_encoding: Annotated[str, Header(max_length=1000, description="With `gzip` the lines come packed.")] = "",
) -> Response:
    """The best of every task that was measured on a target, for use where no server can be reached."""
    marks = await in_thread(partial(_marks, service, target_key))
    is_gzip = accepts_gzip(accept_encoding)
    # Equal marks mean the same records of every target, so this makes a strong tag that costs one query.
    followed = " ".join([FORM, target_key, *map(str, marks), "gzip" if is_gzip else "identity"])
    headers = cache_headers(followed.encode()) | {"Vary": "Accept-Encoding"}
    if same := not_modified(if_none_match, headers):
        return same
    lines = _lines(service.store, target_key)
    if is_gzip:
        headers["Content-Encoding"] = "gzip"
        lines = gzip_stream(lines)
    return StreamingResponse(lines, media_type="application/jsonl", headers=headers)


def _marks(service: Service, target_key: str) -> Marks:
    """The marks of the newest changes, read before the records. Raises Problem for an unknown target."""
    marks = service.store.catalog.marks()
    try:
        service.store.target(target_key)
    except NotFound as error:
        raise Problem(ProblemKind.NO_SUCH_TARGET, "nothing was measured there") from error
    return marks


def _lines(store: Store, target_key: str) -> Iterator[bytes]:
    after, versions = "", current()
    while page := store.catalog.best_on(target_key, after, PAGE):
        outdated = [best.task_key for best in page if (best.sketch, best.sketch_version) not in versions]
        newer = store.catalog.fastest(outdated, target_key, versions, limit=1) if outdated else {}
        usable = [best for best in page if best.task_key not in outdated] + [best for [best] in newer.values()]
        yield b"".join(exact_item(best).text + b"\n" for best in usable)
        after = page[-1].task_key
