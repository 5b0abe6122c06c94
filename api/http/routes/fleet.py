"""Routes of the fleet: who is at work, and for which targets."""

from __future__ import annotations

from fastapi import APIRouter

from tunewright.db.access import KeyScope

from ..access import needs
from ..paging import Page
from ..schemas.fleet import TargetShown, WorkerShown
from ..service import ServiceDep

router = APIRouter(prefix="/v1", tags=["fleet"])


@router.get("/targets", summary="List the targets at work", dependencies=[needs(KeyScope.RECORDS_READ)])
def list_targets(service: ServiceDep) -> Page[TargetShown]:
    """What can be tuned for now: the targets of the tuner processes' devices, all on one page."""
    return Page(items=[TargetShown.of(target) for target in service.store.fleet.targets()], next=None)


@router.get("/workers", summary="List the tuner processes", dependencies=[needs(KeyScope.JOBS_READ)])
def list_workers(service: ServiceDep) -> Page[WorkerShown]:
    """The tuner processes that were heard of in the last minute, all on one page."""
    return Page(items=[WorkerShown.show(tuner) for tuner in service.store.fleet.tuners()], next=None)
