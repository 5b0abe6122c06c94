"""Routes of the fleet: who is at work, and for which targets."""

from __future__ import annotations

from fastapi import APIRouter

from tunewright.db.access import Scope

from ..access import needs
from ..paging import Page
from ..schemas import TargetShown, WorkerShown
from ..service import Here

router = APIRouter(prefix="/v1", tags=["fleet"])


@router.get("/targets", summary="List the targets at work", dependencies=[needs(Scope.RECORDS_READ)])
def list_targets(here: Here) -> Page[TargetShown]:
    """What can be tuned for now: the targets of the tuner processes' devices, all on one page."""
    return Page(items=[TargetShown.of(target) for target in here.store.fleet.targets()], next=None)


@router.get("/workers", summary="List the tuner processes", dependencies=[needs(Scope.JOBS_READ)])
def list_workers(here: Here) -> Page[WorkerShown]:
    """The tuner processes that were heard of in the last minute, all on one page."""
    return Page(items=[WorkerShown.of(tuner) for tuner in here.store.fleet.tuners()], next=None)
