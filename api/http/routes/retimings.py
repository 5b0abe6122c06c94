"""The route that has everything stale timed again, as after an upgrade."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Depends

from tunewright.codegen.target import Target
from tunewright.db.access import Key, KeyScope
from tunewright.db.errors import NotFound
from tunewright.db.job import QuotaExceeded, SearchBudget, Submission
from tunewright.tuner.search.retiming_plan import plan_jobs, stale_counts, unplanned
from tunewright.workers.pool import can_time

from ..access import count_as_change, needs
from ..openapi import problems
from ..problems import Problem, ProblemKind
from ..schemas.jobs import RetimingAsked, RetimingShown
from ..service import Service, ServiceDep
from .jobs import submission_answer

MOST_JOBS = 100
"""Jobs that a request makes at most; the next request makes more."""

router = APIRouter(prefix="/v1/retimings", tags=["jobs"])


@router.post(
    "",
    status_code=202,
    summary="Have what is stale timed again",
    response_description="The jobs, which may be some that were there.",
    responses=problems(ProblemKind.NO_SUCH_TARGET, ProblemKind.INVALID, ProblemKind.QUOTA),
    dependencies=[Depends(count_as_change)],
)
def retime_stale(
    request: RetimingAsked, service: ServiceDep, key: Annotated[Key, needs(KeyScope.JOBS_WRITE)]
) -> RetimingShown:
    """Have the best schedules of all stale tasks timed again: those that other versions than this process's had tuned.

    Each model that was sent, and has such tasks, gets a job as its last one was, which times it as a whole too. What is
    left gets jobs without a model. Tasks of an unfinished job that times them again are left to it, so sending this
    twice is harmless. Where that comes to more jobs than a request makes, or the key may have, `left` says how many
    tasks have none yet.
    """
    submissions: list[Submission] = []
    stale = stale_counts(service.store)
    targets = _targets(service, request, stale)
    asked = targets if request.target is not None else [*stale]
    planned = (job for target in targets for job in plan_jobs(service.store, target, request.retime))
    for job in islice(planned, MOST_JOBS):
        try:
            submission = service.store.jobs.submit(
                job.spec,
                job.label,
                SearchBudget(None),
                priority=request.priority,
                owner=key.owner,
                most_unfinished=service.options.most_unfinished,
            )
        except QuotaExceeded:
            if not submissions:
                raise
            break
        submissions.append(submission)
    return RetimingShown(
        jobs=[submission_answer(service, submission) for submission in submissions],
        stale=sum(stale.get(target, 0) for target in asked),
        left=sum(len(unplanned(service.store, target)) for target in asked),
    )


def _targets(service: Service, request: RetimingAsked, stale: Iterable[Target]) -> Sequence[Target]:
    """The target named, or all with stale tasks that a device at work can time. Raises Problem for an unknown one."""
    if request.target is not None:
        try:
            return [service.store.target(request.target)]
        except NotFound:
            raise Problem(
                ProblemKind.NO_SUCH_TARGET, f"no device was ever at work for {request.target}; leave it out for all"
            ) from None
    devices = service.store.fleet.targets()
    return [target for target in stale if any(can_time(device, target) for device in devices)]
