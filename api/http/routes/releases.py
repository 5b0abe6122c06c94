"""Routes of the releases of the log: what a namespace served at a moment, under a name, signed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import StreamingResponse

from tunewright.db.access import Key, KeyScope
from tunewright.db.database import batches
from tunewright.db.errors import NotFound
from tunewright.db.logs.difference import LogChange
from tunewright.db.logs.release import RELEASE, Release, ReleaseConflict

from ..access import count_as_change, needs
from ..openapi import json_lines_answer, problems
from ..paging import Cursor, Limit, Page, cut, number_of
from ..problems import Problem, ProblemKind, invalid
from ..release_key import ReleaseKeyFault
from ..schemas.logs import (
    PromotedShown,
    PromotionAsked,
    PromotionShown,
    ReleaseAsked,
    ReleaseKeyShown,
    ReleaseShown,
    RollBackAsked,
)
from ..service import Service, ServiceDep, in_thread
from .logs import PAGE, Decidable, Readable, find_namespace, no_such_release
from .records import export_slot, streamed

ReleaseInPath = Annotated[
    str, Path(max_length=64, pattern=f"^{RELEASE}$", description="Name of a release of the namespace.")
]

EXPORT = json_lines_answer(
    "The manifest and its signature, and then an entry a line, as `tunewright log verify` checks them: the digest in "
    "the manifest is of these lines."
)

DIFFERENCE = json_lines_answer(
    "A key and environment a line that are not served alike: `change` (added, removed or changed), and what was served "
    "`before` and is `after`. The last line has their number."
)

FOUND = problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_NAMESPACE, ProblemKind.NO_SUCH_RELEASE)

CHANGED = FOUND | problems(ProblemKind.RELEASE_CONFLICT)

router = APIRouter(prefix="/v1", tags=["logs"])

_log = logging.getLogger("tunewright.api")


@router.get(
    "/release-key",
    summary="The key that releases are checked with",
    responses=problems(ProblemKind.UNSIGNED),
    dependencies=[needs(KeyScope.LOGS_READ)],
)
def show_release_key(service: ServiceDep) -> ReleaseKeyShown:
    """The public half of what this service signs with. Take it once, from a service that you trust."""
    with _signing():
        return ReleaseKeyShown(public_key=service.release_key.public_key)


@router.get("/logs/{namespace}:releases", summary="List the releases of a namespace", responses=FOUND)
def list_releases(service: ServiceDep, namespace: Readable) -> list[ReleaseShown]:
    """The newest first."""
    with _naming(service, namespace):
        return [ReleaseShown.of(release) for release in service.store.releases.list(namespace)]


@router.post(
    "/logs/{namespace}:releases",
    summary="Make a release",
    responses=CHANGED | problems(ProblemKind.BUSY, ProblemKind.UNSIGNED),
    dependencies=[Depends(count_as_change), Depends(export_slot)],
)
async def create_release(
    release: ReleaseAsked,
    service: ServiceDep,
    namespace: Decidable,
    key: Annotated[Key, needs(KeyScope.LOGS_DECIDE)],
) -> ReleaseShown:
    """Of what the rule serves now, in all environments or in some. It never changes, and lookups are not answered from
    it before it is promoted. Sending it again does nothing more, as long as nothing else changed.
    """
    return await in_thread(partial(_create, service, namespace, release, key.owner))


@router.get(
    "/logs/{namespace}:releases/{release}:export",
    summary="Export a release",
    response_class=StreamingResponse,
    responses=EXPORT | FOUND | problems(ProblemKind.BUSY),
    dependencies=[Depends(export_slot)],
)
async def export_release(service: ServiceDep, namespace: Readable, release: ReleaseInPath) -> StreamingResponse:
    """Its lines are an import, too: all but the first one."""
    found = await in_thread(partial(_find, service, namespace, release))
    return await streamed(service, service.store.releases.export(found))


@router.get(
    "/logs/{namespace}:releases/{release}:diff",
    summary="Compare releases",
    response_class=StreamingResponse,
    responses=DIFFERENCE | FOUND | problems(ProblemKind.BUSY),
    dependencies=[Depends(export_slot)],
)
async def compare_releases(
    service: ServiceDep,
    namespace: Readable,
    release: ReleaseInPath,
    other: Annotated[
        str,
        Query(alias="with", max_length=64, pattern=f"^({RELEASE})?$", description="Another; empty: what is served."),
    ] = "",
) -> StreamingResponse:
    """What another release, or the rule as things are now, does not serve as this one does."""
    before = await in_thread(partial(_find, service, namespace, release))
    after = await in_thread(partial(_find, service, namespace, other)) if other else None
    return await streamed(service, _change_lines(service.store.releases.changes(before, after)))


@router.get("/logs/{namespace}:releases/{release}", summary="Show a release", responses=FOUND)
def show_release(service: ServiceDep, namespace: Readable, release: ReleaseInPath) -> ReleaseShown:
    """What is signed of it, and whether it is promoted."""
    return ReleaseShown.of(_find(service, namespace, release))


@router.delete(
    "/logs/{namespace}:releases/{release}",
    summary="Delete a release",
    status_code=204,
    responses=CHANGED,
    dependencies=[Depends(count_as_change)],
)
def delete_release(service: ServiceDep, namespace: Decidable, release: ReleaseInPath) -> Response:
    """Its entries stay. The one that is promoted can't be deleted."""
    with _naming(service, namespace, release):
        service.store.releases.delete(namespace, release)
    return Response(status_code=204)


@router.post(
    "/logs/{namespace}:promote",
    summary="Promote a release, or none",
    responses=FOUND,
    dependencies=[Depends(count_as_change)],
)
def promote_release(
    promotion: PromotionAsked,
    service: ServiceDep,
    namespace: Decidable,
    key: Annotated[Key, needs(KeyScope.LOGS_DECIDE)],
) -> PromotedShown:
    """From then on lookups, snapshots and clients of Redis get what is in the release, and nothing else."""
    with _naming(service, namespace, promotion.release):
        service.store.releases.promote(namespace, promotion.release, key.owner)
    return PromotedShown(release=promotion.release)


@router.post(
    "/logs/{namespace}:rollback",
    summary="Go back to the release before",
    responses=CHANGED,
    dependencies=[Depends(count_as_change)],
)
def roll_back(
    step: RollBackAsked, service: ServiceDep, namespace: Decidable, key: Annotated[Key, needs(KeyScope.LOGS_DECIDE)]
) -> PromotedShown:
    """Promote what was promoted before the release that is named, or none where nothing was."""
    with _naming(service, namespace, step.release):
        return PromotedShown(release=service.store.releases.roll_back(namespace, step.release, key.owner))


@router.get(
    "/logs/{namespace}:promotions",
    summary="What was promoted when",
    responses=problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_NAMESPACE),
)
def list_promotions(
    service: ServiceDep, namespace: Readable, cursor: Cursor = None, limit: Limit = 50
) -> Page[PromotionShown]:
    """The last first, also steps to releases that were deleted since then."""
    before = number_of(cursor)
    with _naming(service, namespace):
        rows = service.store.releases.promotions(namespace, before=before, limit=limit + 1)
    page, following = cut(rows, limit, lambda promotion: promotion.id)
    return Page[PromotionShown](items=[PromotionShown.show(promotion) for promotion in page], next=following)


def _create(service: Service, namespace: str, release: ReleaseAsked, owner: str) -> ReleaseShown:
    """Make a release. Raises Problem."""
    with _naming(service, namespace), _signing():
        try:
            return ReleaseShown.of(
                service.store.releases.create(
                    namespace,
                    release.name,
                    service.release_key.sign,
                    notes=release.notes,
                    fingerprints=release.environments,
                    owner=owner,
                )
            )
        except ValueError as error:
            raise invalid("body", ["environments"], str(error)) from error


def _find(service: Service, namespace: str, name: str) -> Release:
    """A release. Raises Problem."""
    with _naming(service, namespace, name):
        return service.store.releases.get(namespace, name)


@contextmanager
def _naming(service: Service, namespace: str, release: str | None = None) -> Iterator[None]:
    """Turn what is not there, and what is in the way, into problems."""
    try:
        yield
    except ReleaseConflict as error:
        raise Problem(ProblemKind.RELEASE_CONFLICT, str(error)) from error
    except NotFound as error:
        find_namespace(service, namespace)
        raise no_such_release(namespace, release) from error


@contextmanager
def _signing() -> Iterator[None]:
    """Turn a key that can't be used into a problem. What is wrong with it is for the log alone."""
    try:
        yield
    except ReleaseKeyFault as error:
        _log.warning("releases can't be signed", extra={"reason": str(error)})
        raise Problem(ProblemKind.UNSIGNED, "its release key can't be read") from error


def _change_lines(changes: Iterator[LogChange]) -> Iterator[bytes]:
    count = 0
    for page in batches(changes, PAGE):
        count += len(page)
        yield b"".join(json.dumps(change.to_json()).encode() + b"\n" for change in page)
    yield json.dumps({"changes": count}).encode() + b"\n"
