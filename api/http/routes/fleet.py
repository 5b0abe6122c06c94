"""Routes of the fleet: who is at work and for which targets, and what people want of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, Path

from tunewright.db.access import Key, KeyScope
from tunewright.db.errors import NotFound
from tunewright.db.fleet import LONGEST_ID, LONGEST_REASON
from tunewright.tuner.text import printable

from ..access import count_as_change, needs
from ..openapi import problems
from ..paging import Page
from ..problems import Problem, ProblemKind
from ..schemas.fleet import DeviceAsked, RestAsked, RestOrdered, TargetShown, WorkerShown
from ..service import ServiceDep

router = APIRouter(prefix="/v1", tags=["fleet"])

Keeper = Annotated[Key, needs(KeyScope.FLEET_WRITE)]
CHANGES = [Depends(count_as_change)]
REFUSALS = problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_WORKER, ProblemKind.UNWRITABLE)

TunerId = Annotated[
    str, Path(max_length=LONGEST_ID, pattern="^[A-Za-z0-9_-]+$", description="Id of the tuner process.")
]

_log = logging.getLogger("tunewright.api")


@router.get("/targets", summary="List the targets at work", dependencies=[needs(KeyScope.RECORDS_READ)])
def list_targets(service: ServiceDep) -> Page[TargetShown]:
    """What can be tuned for now: the targets of the tuner processes' devices, all on one page."""
    return Page(items=[TargetShown.of(target) for target in service.store.fleet.targets()], next=None)


@router.get("/workers", summary="List the tuner processes", dependencies=[needs(KeyScope.JOBS_READ)])
def list_workers(service: ServiceDep) -> Page[WorkerShown]:
    """The tuner processes that were heard of in the last minute, all on one page."""
    return Page(items=[WorkerShown.show(tuner) for tuner in service.store.fleet.tuners()], next=None)


@router.post("/workers/{tuner_id}:drain", summary="Drain a tuner process", responses=REFUSALS, dependencies=CHANGES)
def drain_worker(service: ServiceDep, key: Keeper, tuner_id: TunerId) -> WorkerShown:
    """Have a tuner process end, as SIGTERM does: it gives back the job in hand, which another one takes up, and takes
    no more. It hears of it with its next report, within half a minute. Twice is harmless.
    """
    with _of_fleet():
        tuner = service.store.fleet.drain(tuner_id)
    _log.info("tuner %s is to drain", tuner.id, extra={"key": key.owner})
    return WorkerShown.show(tuner)


@router.post("/devices:rest", summary="Put a device into quarantine", responses=REFUSALS, dependencies=CHANGES)
def rest_device(service: ServiceDep, key: Keeper, request: RestAsked) -> RestOrdered:
    """Have a device left alone for some minutes. A job that times on it is given back. All tuner processes that have it
    hear of it with their next report, and those that start before it is over with their first.
    """
    by = f" (ordered by key {key.owner})"
    text = " ".join(request.reason.split()) or "no reason was given"
    reason = text[: LONGEST_REASON - len(by)] + by
    with _of_fleet():
        tuners = service.store.fleet.order(request.device, 60 * request.minutes, reason)
    _log.info("device %s is to rest", printable(request.device), extra={"key": key.owner})
    return RestOrdered(device=request.device, tuners=[tuner.id for tuner in tuners])


@router.post("/devices:lift", summary="End the quarantine of a device", responses=REFUSALS, dependencies=CHANGES)
def lift_device(service: ServiceDep, key: Keeper, request: DeviceAsked) -> RestOrdered:
    """Have a device tried again, whoever put it into quarantine: where it fails once more, it rests once more.

    A quarantine that was ordered can be lifted while no process has the device, too.
    """
    with _of_fleet():
        tuners = service.store.fleet.order(request.device, None)
    _log.info("device %s is to be used again", printable(request.device), extra={"key": key.owner})
    return RestOrdered(device=request.device, tuners=[tuner.id for tuner in tuners])


@contextmanager
def _of_fleet() -> Iterator[None]:
    """Raises Problem where no process that was heard of lately is meant."""
    try:
        yield
    except NotFound as error:
        raise Problem(ProblemKind.NO_SUCH_WORKER, "no tuner process at work is or has that") from error
