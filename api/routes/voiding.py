"""Routes that take records back, and lift that."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from tunewright.db.access import Scope
from tunewright.db.errors import NotFound

from ..access import counted_as_change, needs
from ..openapi import problems
from ..problems import Kind, Problem
from ..schemas import LiftAsked, VoidAsked, VoidShown
from ..service import Here, Service
from .lookups import TaskInPath

router = APIRouter(prefix="/v1/records", tags=["lookups"])

VOIDING = [needs(Scope.RECORDS_VOID), Depends(counted_as_change)]


@router.post(
    "/{task_key}:void",
    summary="Take a schedule back",
    responses=problems(Kind.NO_SUCH_SCHEDULE, Kind.INVALID),
    dependencies=VOIDING,
)
def void_records(here: Here, task_key: TaskInPath, asked: VoidAsked) -> VoidShown:
    """Offer a schedule of a task on a target no more: no lookup, session or job uses it. Its records are kept."""
    schedule = asked.schedule or _best(here, task_key, asked.target)
    try:
        count = here.store.voids.void(task_key, asked.target, schedule, asked.reason)
    except NotFound as error:
        raise Problem(Kind.NO_SUCH_SCHEDULE, "nothing is stored of this schedule for this task and target") from error
    return VoidShown(task=task_key, target=asked.target, schedule=schedule, records=count)


@router.post(
    "/{task_key}:unvoid",
    summary="Let a schedule count again",
    responses=problems(Kind.NO_SUCH_SCHEDULE, Kind.INVALID),
    dependencies=VOIDING,
)
def unvoid_records(here: Here, task_key: TaskInPath, asked: LiftAsked) -> VoidShown:
    """The opposite of `:void`. What another database took back before it was imported stays so."""
    try:
        count = here.store.voids.lift(task_key, asked.target, asked.schedule)
    except NotFound as error:
        raise Problem(Kind.NO_SUCH_SCHEDULE, "this schedule is not taken back here") from error
    return VoidShown(task=task_key, target=asked.target, schedule=asked.schedule, records=count)


def _best(here: Service, task_key: str, target_key: str) -> str:
    """Key of the schedule that is best for a task on a target. Raises Problem."""
    best = here.store.known.best([task_key], [target_key]).get((task_key, target_key))
    if best is None:
        raise Problem(Kind.NO_SUCH_SCHEDULE, "nothing is the best for this task and target; name the schedule")
    return best.schedule.key
