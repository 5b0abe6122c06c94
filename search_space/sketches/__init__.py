"""The sketches: one file each, an expert's structure whose numbers the search fixes.
Read first: `generic`, which covers every op.
May import: what `search_space` may.
"""

from __future__ import annotations

from tunewright.codegen.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..measurement import Candidate
from ..schedule import Illegal, Schedule
from ..sketch import Sketch, offered
from ..space import Space
from .attention_tiles import AttentionTilesSketch
from .chain import ChainSketch
from .contraction import ContractionSketch
from .elements import ElementsSketch
from .generic import GenericSketch
from .joint import JointSketch
from .plane import PlaneSketch
from .product_tiles import ProductTilesSketch
from .row_blocks import RowBlocksSketch
from .rows import RowsSketch
from .split import SplitSketch
from .thread_windows import ThreadWindowsSketch
from .turned_tiles import TurnedTilesSketch
from .warp_tiles import WarpTilesSketch
from .warpgroup_tiles import WarpgroupTilesSketch
from .window import WindowSketch
from .winograd import WinogradSketch

GROUPS: tuple[tuple[Sketch, ...], ...] = (
    (ChainSketch(), JointSketch(), AttentionTilesSketch()),  # for several products or windows
    (PlaneSketch(),),  # for windows of planes
    (
        WinogradSketch(4),
        ContractionSketch(flipped=True),
        ContractionSketch(),
        WinogradSketch(2),
        WindowSketch(),
        RowsSketch(),
        SplitSketch(),
    ),  # for one product, window or pass over rows
    (
        WarpgroupTilesSketch(),
        WarpTilesSketch(),
        ProductTilesSketch(),
        ThreadWindowsSketch(),
        RowBlocksSketch(),
        TurnedTilesSketch(),
    ),  # for one product, fold over windows, pass over rows or change of order, on GPUs
    (GenericSketch(), ElementsSketch()),  # for any task, on processors and on GPUs
)
"""The sketches, the most special first. Where some of a group apply, none of the groups after it is worth trying."""

SKETCHES: tuple[Sketch, ...] = tuple(one for group in GROUPS for one in group)
"""Every sketch."""


def current() -> frozenset[tuple[str, int]]:
    """Name and version of every sketch: schedules of others are none of this version."""
    return frozenset((one.name, one.version) for one in SKETCHES)


def sketch(name: str) -> Sketch:
    """The sketch of that name. Raises Illegal if there is none."""
    for one in SKETCHES:
        if one.name == name:
            return one
    raise Illegal(f"no sketch is called {name!r}; there are {', '.join(s.name for s in SKETCHES)}")


def spaces(task: Task, target: Target) -> tuple[Space, ...]:
    """The spaces to search for a task, the one whose default an untried task gets first.

    They are of one group and in its order, but for those that are no `first_choice`: these come last.
    """
    for group in GROUPS:
        found = [space for one in group if (space := offered(one, task, target)) is not None]
        if found:
            return tuple(sorted(found, key=lambda space: not space.first_choice))
    raise Illegal(f"no sketch applies to {task.op} on {target}")


def default_schedule(task: Task, target: Target) -> Schedule:
    """What a task gets when nothing is known of it."""
    return spaces(task, target)[0].default


def holds(task: Task, target: Target, schedule: Schedule) -> bool:
    """Whether a schedule is a legal point for the task: one of an older version or another shape is not."""
    try:
        space = offered(sketch(schedule.sketch), task, target)
        if space is not None:
            space.row(schedule)
            return True
    except Illegal:
        pass
    return False


def lower(candidate: Candidate) -> Kernel:
    """The kernel that a candidate stands for. Raises Illegal if its schedule is in no space of its task."""
    one = sketch(candidate.schedule.sketch)
    if offered(one, candidate.task, candidate.target) is None:
        raise Illegal(f"sketch {one.name} does not apply to {candidate.task.op}")
    return one.lower(candidate.task, candidate.schedule, candidate.target)
