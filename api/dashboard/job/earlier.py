"""The job before a job: what it is compared with where nothing else is named."""

from __future__ import annotations

from tunewright.db.job import Job, JobState
from tunewright.db.store import Store

from ...http.schemas.jobs import dims_of

EARLIER = 20
"""Jobs before one of the same model that are looked at for one of the same sizes, one by one: mostly one will do."""


def earlier_job(store: Store, job: Job) -> Job | None:
    """The newest job before one that succeeded with the same model, sizes and target; None where there is none."""
    if not job.spec.model_sha256:
        return None
    before = job
    for _ in range(EARLIER):
        found = store.jobs.list(
            [JobState.SUCCEEDED],
            model_sha256=job.spec.model_sha256,
            target_key=job.spec.target_key,
            before_id=before.id,
            limit=1,
        )
        if not found:
            return None
        [before] = found
        if dims_of(before) == dims_of(job):
            return before
    return None
