"""Routes that void records, and restore them."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from tunewright.db.access import KeyScope
from tunewright.db.errors import NotFound

from ..access import count_as_change, needs
from ..openapi import problems
from ..problems import Problem, ProblemKind
from ..schemas.records import LiftAsked, VoidAsked, VoidShown
from ..service import Service, ServiceDep
from .lookups import TaskInPath

router = APIRouter(prefix="/v1/records", tags=["lookups"])

VOIDING = [needs(KeyScope.RECORDS_VOID), Depends(count_as_change)]


@router.post(
    "/{task_key}:void",
    summary="Take a schedule back",
    responses=problems(ProblemKind.NO_SUCH_SCHEDULE, ProblemKind.INVALID),
    dependencies=VOIDING,
)
def void_records(service: ServiceDep, task_key: TaskInPath, request: VoidAsked) -> VoidShown:
    """Offer a schedule of a task on a target no more: no lookup, session or job uses it. Its records are kept.

    Clients use answers that they keep for up to an hour before they ask anew.
    """
    schedule = request.schedule or _best(service, task_key, request.target)
    try:
        count = service.store.voids.void(task_key, request.target, schedule, request.reason)
    except NotFound as error:
        raise Problem(
            ProblemKind.NO_SUCH_SCHEDULE, "nothing is stored of this schedule for this task and target"
        ) from error
    return VoidShown(task=task_key, target=request.target, schedule=schedule, records=count)


@router.post(
    "/{task_key}:unvoid",
    summary="Let a schedule count again",
    responses=problems(ProblemKind.NO_SUCH_SCHEDULE, ProblemKind.INVALID),
    dependencies=VOIDING,
)
def unvoid_records(service: ServiceDep, task_key: TaskInPath, request: LiftAsked) -> VoidShown:
    """The opposite of `:void`. What another database took back before it was imported stays so."""
    try:
        count = service.store.voids.lift(task_key, request.target, request.schedule)
    except NotFound as error:
        raise Problem(ProblemKind.NO_SUCH_SCHEDULE, "this schedule is not taken back here") from error
    return VoidShown(task=task_key, target=request.target, schedule=request.schedule, records=count)


def _best(service: Service, task_key: str, target_key: str) -> str:
    """Key of the schedule that is best for a task on a target. Raises Problem."""
    best = service.store.catalog.best([task_key], [target_key]).get((task_key, target_key))
    if best is None:
        raise Problem(ProblemKind.NO_SUCH_SCHEDULE, "nothing is the best for this task and target; name the schedule")
    return best.schedule.key
