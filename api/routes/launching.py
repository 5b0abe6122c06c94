"""The route of kernels that others launch."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tunewright.db.access import Scope

from ..access import needs
from ..looks import Looking
from ..openapi import problems
from ..problems import Kind
from ..schemas import Digest
from ..service import Here
from ..views.launchable import LaunchableShown, launchable_view
from .lookups import TaskInPath

router = APIRouter(prefix="/v1", tags=["lookups"])


@router.get(
    "/records/{task_key}/launchable",
    summary="The best record of a task as code of a GPU",
    responses=problems(Kind.INVALID, Kind.NO_SUCH_TASK, Kind.NO_SUCH_TARGET, Kind.NOT_LAUNCHABLE, Kind.BUSY),
    dependencies=[needs(Scope.RECORDS_READ)],
)
async def find_launchable(
    here: Here,
    looks: Looking,
    task_key: TaskInPath,
    target: Annotated[Digest, Query(description="Key of the target, a GPU.")],
) -> LaunchableShown:
    """Machine code and PTX, grid, block and shared memory of each launch, and what it is given pointers to.

    So a compiler can launch what was found best without this package; one that rebuilds it takes the schedule from the
    record. The server needs the extra `cuda`, but no GPU.
    """
    return await launchable_view(here.store, looks, task_key, target)
