"""The table of all sketches, and the spaces of a task."""

from __future__ import annotations

from functools import lru_cache

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from .cpu.bf16_product import Bf16ProductSketch
from .cpu.block_matmul import BlockMatMulSketch
from .cpu.byte_product import ByteProductSketch
from .cpu.chain import ChainSketch
from .cpu.contraction import ContractionSketch
from .cpu.generic import GenericSketch
from .cpu.joint import JointSketch
from .cpu.matrices import MatricesSketch
from .cpu.pixel_words import PixelWordsSketch
from .cpu.plane import PlaneSketch
from .cpu.rows import RowsSketch
from .cpu.split import SplitSketch
from .cpu.trees import TreesSketch
from .cpu.window import WindowSketch
from .cpu.winograd import WinogradSketch
from .cuda.attention_tiles import FILLED, AttentionTilesSketch, do_blocks_share_keys, query_rows
from .cuda.elements import ElementsSketch
from .cuda.product_tiles import ProductTilesSketch
from .cuda.row_blocks import RowBlocksSketch
from .cuda.shared_folds import SharedFoldsSketch
from .cuda.specialized_attention import SpecializedAttentionSketch
from .cuda.specialized_tiles import SpecializedTilesSketch
from .cuda.specialized_windows import SpecializedWindowsSketch
from .cuda.thread_windows import ThreadWindowsSketch
from .cuda.transpose_tiles import TransposeTilesSketch
from .cuda.unfolded_tiles import UnfoldedTilesSketch
from .cuda.warp_tiles import WarpTilesSketch
from .cuda.warpgroup_tiles import WarpgroupTilesSketch
from .description import SchedulePoint
from .measurement import Candidate
from .schedule import Illegal, Schedule
from .sketch import CACHED_SPACES, Sketch, find_space
from .space import Space

ATTENTION = SpecializedAttentionSketch(), AttentionTilesSketch()
"""For attention as one launch on a GPU."""

GROUPS: tuple[tuple[Sketch, ...], ...] = (
    (
        ChainSketch(),
        JointSketch(),
        *ATTENTION,
    ),  # for several products or windows
    (PlaneSketch(),),  # for windows of planes
    (TreesSketch(),),  # for ensembles of trees
    (PixelWordsSketch(),),  # for pixels of four bytes
    (MatricesSketch(), MatricesSketch(DType.BF16)),  # for products of small numbers, where there are matrix registers
    (
        Bf16ProductSketch(),
        WinogradSketch(4),
        ContractionSketch(flipped=True),
        ContractionSketch(),
        WinogradSketch(2),
        ByteProductSketch(),
        BlockMatMulSketch(),
        WindowSketch(),
        RowsSketch(),
        SplitSketch(),
    ),  # for one product, window or pass over rows
    (
        SharedFoldsSketch(),
        SpecializedTilesSketch(),
        SpecializedWindowsSketch(),
        UnfoldedTilesSketch(),
        WarpgroupTilesSketch(),
        WarpTilesSketch(),
        ProductTilesSketch(),
        ThreadWindowsSketch(),
        RowBlocksSketch(),
        TransposeTilesSketch(),
    ),  # for one product, fold over windows, pass over rows or change of order, on GPUs
    (GenericSketch(), ElementsSketch()),  # for any task, on processors and on GPUs
)
"""The sketches, the most special first. Where some of a group apply, none of the groups after it is worth trying."""

SKETCHES: tuple[Sketch, ...] = tuple(one for group in GROUPS for one in group)
"""Every sketch."""


def current() -> frozenset[tuple[str, int]]:
    """Name and version of every sketch: schedules of others are none of this version."""
    return frozenset((entry.name, entry.version) for entry in SKETCHES)


def sketch(name: str) -> Sketch:
    """The sketch of that name. Raises Illegal if there is none."""
    for entry in SKETCHES:
        if entry.name == name:
            return entry
    raise Illegal(f"no sketch is called {name!r}; there are {', '.join(s.name for s in SKETCHES)}")


def saves_multiplications(name: str) -> bool:
    """Whether a sketch multiplies less often than FLOPs are counted."""
    return any(isinstance(entry, WinogradSketch) and entry.name == name for entry in SKETCHES)


@lru_cache(maxsize=CACHED_SPACES)
def spaces(task: Task, target: Target) -> tuple[Space, ...]:
    """The spaces to search for a task, the one whose default an untried task gets first.

    They are of one group and in its order, but for those that are no `first_choice`: these come last.
    """
    for group in GROUPS:
        legal = [space for entry in group if (space := find_space(entry, task, target)) is not None]
        if legal:
            return tuple(sorted(legal, key=lambda space: not space.first_choice))
    raise Illegal(f"no sketch applies to {task.op} on {target}")


def default_schedule(task: Task, target: Target) -> Schedule:
    """The schedule of a task that nothing is known of."""
    return spaces(task, target)[0].default


def holds(task: Task, target: Target, schedule: Schedule) -> bool:
    """Whether a schedule is a legal point for the task: one of an older version or another shape is not."""
    try:
        space = find_space(sketch(schedule.sketch), task, target)
        if space is not None:
            space.row(schedule)
            return True
    except Illegal:
        pass
    return False


def lower(candidate: Candidate) -> Kernel:
    """The kernel that a candidate stands for. Raises Illegal if its schedule is in no space of its task."""
    entry = sketch(candidate.schedule.sketch)
    if find_space(entry, candidate.task, candidate.target) is None:
        raise Illegal(f"sketch {entry.name} does not apply to {candidate.task.op}")
    return entry.lower(candidate.task, candidate.schedule, candidate.target)


def point_of(candidate: Candidate, kernel: Kernel | None = None) -> SchedulePoint:
    """A candidate with what follows from it; `kernel` is its lowered form, if known. Raises as `lower`."""
    task, target, schedule = candidate.task, candidate.target, candidate.schedule
    kernel = lower(candidate) if kernel is None else kernel
    return SchedulePoint(task, target, schedule, kernel, sketch(schedule.sketch).space(task, target))


def attention_rows(task: Task, target: Target) -> int:
    """The queries that share keys, where a task is attention that a GPU computes in one launch; 0 where it is none."""
    is_one_launch = any(find_space(each, task, target) for each in ATTENTION)
    return query_rows(task) if is_one_launch else 0


def has_enough_blocks(task: Task, target: Target) -> bool:
    """Whether by default attention in one launch has blocks for most multiprocessors, or as many as keys are for."""
    space = spaces(task, target)[0]
    blocks = space.tiling(space.columns(space.row(space.default)[None])).chunks
    return do_blocks_share_keys(task, target) or bool(blocks[0] >= FILLED * target.threads)
