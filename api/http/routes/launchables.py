"""The routes of kernels that others launch, link, or build after their outline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query

from tunewright.codegen.cuda.launchable import Launchable
from tunewright.codegen.llvm.linkable import Linkable
from tunewright.codegen.target import Target
from tunewright.db.access import KeyScope
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.outline import LoopOutline
from tunewright.search_space.schedule import Schedule

from ..access import needs
from ..descriptions import DescriptionsDep, Failure
from ..openapi import problems
from ..problems import Problem, ProblemKind
from ..schemas.base import Digest
from ..schemas.launchable import LaunchableShown, LinkableShown, OutlineShown
from ..service import ServiceDep, find_target, find_task, in_thread
from .lookups import TaskInPath

RETRY_S = 2
"""After which a kernel is mostly built."""

CODE_PROBLEMS = problems(
    ProblemKind.INVALID,
    ProblemKind.NO_SUCH_TASK,
    ProblemKind.NO_SUCH_TARGET,
    ProblemKind.NOT_LAUNCHABLE,
    ProblemKind.BUSY,
)

Built = TypeVar("Built", Launchable, Linkable, LoopOutline)

View = TypeVar("View", LaunchableShown, LinkableShown, OutlineShown)

router = APIRouter(prefix="/v1", tags=["lookups"])


@router.get(
    "/records/{task_key}/outline",
    summary="The best record of a task as loops",
    responses=CODE_PROBLEMS,
    dependencies=[needs(KeyScope.RECORDS_READ)],
)
async def find_outline(
    service: ServiceDep,
    descriptions: DescriptionsDep,
    task_key: TaskInPath,
    target: Annotated[Digest, Query(description="Key of the target.")],
) -> OutlineShown:
    """Tiles by axis, lanes, pieces and packed constants, in words that need no knowledge of this package's sketches."""
    return await _view(OutlineShown, service.store, descriptions.outline, task_key, target)


@router.get(
    "/records/{task_key}/launchable",
    summary="The best record of a task as code of a GPU",
    responses=CODE_PROBLEMS,
    dependencies=[needs(KeyScope.RECORDS_READ)],
)
async def find_launchable(
    service: ServiceDep,
    descriptions: DescriptionsDep,
    task_key: TaskInPath,
    target: Annotated[Digest, Query(description="Key of the target, a GPU.")],
) -> LaunchableShown:
    """Machine code and PTX, and of each launch grid, block and shared memory, tensor maps, and what it has pointers to.

    So a compiler can launch what was found best without this package; one that rebuilds it takes the schedule from the
    record. The server needs the extra `cuda`, but no GPU.
    """
    return await _view(LaunchableShown, service.store, descriptions.launchable, task_key, target, is_gpu=True)


@router.get(
    "/records/{task_key}/linkable",
    summary="The best record of a task as code of a processor",
    responses=CODE_PROBLEMS,
    dependencies=[needs(KeyScope.RECORDS_READ)],
)
async def find_linkable(
    service: ServiceDep,
    descriptions: DescriptionsDep,
    task_key: TaskInPath,
    target: Annotated[Digest, Query(description="Key of the target, a processor.")],
) -> LinkableShown:
    """Object code and LLVM IR, the functions to call, and what they have pointers to.

    So a compiler can link what was found best without this package. The server may be another kind of machine.
    """
    return await _view(LinkableShown, service.store, descriptions.linkable, task_key, target, is_gpu=False)


async def _view(
    shown: type[View],
    store: Store,
    make: Callable[[Task, Target, Schedule], Awaitable[Built | Failure | None]],
    task_key: str,
    target_key: str,
    is_gpu: bool | None = None,
) -> View:
    """What is made of the best record. `is_gpu`: the kind of target that it is for; None: any.

    Raises Problem for what is not known or can't be made, and where it takes longer; StoreError.
    """
    task, target, schedule = await in_thread(partial(_read, store, task_key, target_key))
    if is_gpu is not None and is_gpu is not (target.gpu is not None):
        kind, other = ("processor", "linkable") if is_gpu else ("GPU", "launchable")
        raise Problem(ProblemKind.NOT_LAUNCHABLE, f"{target} is a {kind}: ask for what is {other}")
    found = await make(task, target, schedule)
    if found is None:
        raise Problem(ProblemKind.BUSY, "the kernel is still being built", retry_after_s=RETRY_S)
    if isinstance(found, Failure):
        raise Problem(ProblemKind.NOT_LAUNCHABLE, found.why)
    return shown(task=task_key, target=target_key, schedule=schedule.key, **found.to_json())


def _read(store: Store, task_key: str, target_key: str) -> tuple[Task, Target, Schedule]:
    task, target = find_task(store, task_key), find_target(store, target_key)
    best = store.catalog.best([task_key], [target_key]).get((task_key, target_key))
    if best is None:
        raise Problem(ProblemKind.NO_SUCH_TASK, "nothing is measured of this task on this target")
    return task, target, best.schedule
