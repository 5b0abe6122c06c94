"""What it takes to launch the best schedule of a task on a GPU, for programs without this package."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field

from tunewright.codegen.cuda.launchable import MOST_CODE_BYTES, Launchable, Role
from tunewright.codegen.target import Target
from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule

from ..looks import Failure, Looks
from ..problems import Kind, Problem
from ..schemas import Answer, Digest
from ..service import in_thread
from .schedules import target_of, task_of

RETRY_S = 2
"""After which a kernel is mostly built."""

Name = Annotated[str, Field(max_length=300)]
"""Of what programs read: what is longer is refused, as a part of it would be another name."""

Three = Annotated[list[int], Field(min_length=3, max_length=3)]


class LaunchShown(Answer):
    """A launch: a function of the code, with pointers to all arguments, in their order."""

    symbol: Name
    grid: Three = Field(description="Blocks along x, y and z.")
    block: Three = Field(description="Threads of a block.")
    smem_bytes: int = Field(
        description="Dynamic shared memory of a block. Where it is above 48 KB, the function must be set to it first: "
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."
    )


class MapShown(Answer):
    """A matrix that an axis is multiplied by."""

    axis: int
    matrix: list[list[float]] = Field(description="A row for each element that the axis has afterwards.")


class PackingShown(Answer):
    """How a constant is packed: its axes mapped, in another order, padded with zeros, split, and all parts in another
    order.
    """

    maps: list[MapShown] = Field(description="Made first, in this order, in double precision.")
    order: list[int] = Field(description="Axes of the tensor.")
    padded: list[int] = Field(description="Extents of these axes with zeros behind.")
    splits: list[list[int]] = Field(description="What each of them is split into, outermost first.")
    parts: list[int] = Field(description="All parts, in the order in which the memory has them.")
    joined: int = Field(description="So many of the last parts are one dimension.")


class ArgumentShown(Answer):
    """Memory of the device, dense and row-major, on a multiple of 256 bytes."""

    name: Name
    role: Role = Field(description="Scratch is what launches hand on: its content before and after is of no account.")
    dtype: Name
    shape: list[int]
    size_bytes: int
    packing: PackingShown | None = Field(
        default=None, description="Of a constant that is packed first, which then has this shape."
    )


class LaunchableShown(Answer):
    """The best schedule of a task as machine code of a GPU, and how it is launched."""

    task: Digest
    target: Digest
    schedule: Digest = Field(description="Key of the schedule.")
    arch: Name = Field(description="What the machine code is for.", examples=["sm_90a"])
    sha256: Digest = Field(description="Of the machine code.")
    cubin: str = Field(max_length=2 * MOST_CODE_BYTES, description="The machine code, in base64.")
    ptx: str = Field(
        max_length=MOST_CODE_BYTES,
        description="The same for a driver to finish, which must be as new as the compiler: for this architecture "
        "alone where its name ends in a letter, else for later ones too.",
    )
    launches: list[LaunchShown] = Field(description="In the order in which they are made, on one stream.")
    arguments: list[ArgumentShown] = Field(description="Inputs and outputs in the order of the task's, then scratch.")


async def launchable_view(store: SqlStore, looks: Looks, task_key: str, target_key: str) -> LaunchableShown:
    """Raises Problem for what is not known or can't be launched, and where it takes longer; StoreError."""
    task, target, schedule = await in_thread(partial(_read, store, task_key, target_key))
    match await looks.launchable(task, target, schedule):
        case None:
            raise Problem(Kind.BUSY, "the kernel is still being built", retry_after_s=RETRY_S)
        case Failure(why):
            raise Problem(Kind.NOT_LAUNCHABLE, why)
        case Launchable() as found:
            data = found.to_json()
            return LaunchableShown(task=task_key, target=target_key, schedule=schedule.key, **data)


def _read(store: SqlStore, task_key: str, target_key: str) -> tuple[Task, Target, Schedule]:
    task, target = task_of(store, task_key), target_of(store, target_key)
    if target.gpu is None:
        raise Problem(Kind.NOT_LAUNCHABLE, f"{target} is a processor")
    best = store.known.best([task_key], [target_key]).get((task_key, target_key))
    if best is None:
        raise Problem(Kind.NO_SUCH_TASK, "nothing is measured of this task on this target")
    return task, target, best.schedule
