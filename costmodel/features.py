"""Features: the numbers of a point that a cost model takes, from the decisions alone; nothing is lowered.

Every sketch gives the same columns. Sizes and times are logarithms to base 2, so that a tree splits ratios and a model
carries over to other shapes; the target's numbers are columns too, so that it carries over to other machines.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import TRANSCENDENTAL, Load, Op, walk
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Stage, Task
from tunewright.search_space.space import KNOB_MEANINGS, Rows, Space

from .gpu_features import GPU_NAMES, gpu_columns
from .loops import LEVELS, MAX_STAGES, Loops, TensorAccess, product, split_by_vector_axis
from .roofline import calls, estimate_s, floor_s, last_bytes, operations, registers, shares, step_cycles

OPERANDS = ("out", "a", "b")
"""The accesses with columns of their own: what the stage writes, and the first two of what it reads."""

CACHES = ("l1", "l2", "l3")

TASK_NAMES = (
    "task_log_flops", "task_log_bytes", "task_log_intensity", "task_log_floor_s", "task_stages", "task_inputs",
    "task_transcendental", "task_divisions", "task_compared", "task_log_constant_bytes", "stage_log_points",
    "stage_log_spatial", "stage_log_reduction", "stage_spatial_axes", "stage_reduction_axes", "stage_reads",
    "stage_operations", "stage_share", "stage_element_bytes", "stage_sum", "stage_windows", "stage_strided",
    "stage_irregular", "stage_repeated_loads",
)  # fmt: skip
TARGET_NAMES = (
    "target_lanes", "target_registers", "target_threads", "target_log_l1", "target_log_l2", "target_log_l3",
)  # fmt: skip
LEVEL_NAMES = tuple(
    f"level{level}_{name}"
    for level in range(LEVELS)
    for name in (
        "log_volume", "log_reduction", "log_passes", "log_bytes", "log_bytes_l1", "log_bytes_l2", "log_bytes_l3",
        "log_intensity", "waste", *(f"log_bytes_{operand}" for operand in OPERANDS),
        *(f"log_reuse_{operand}" for operand in OPERANDS),
    )
)  # fmt: skip
CACHE_NAMES = tuple(f"{cache}_{name}" for cache in CACHES for name in ("log_traffic", "log_intensity", "log_excess"))
VECTOR_NAMES = (
    "vector_log_extent", "vector_used", "vector_waste", "vector_reduced", "vector_contiguous", "vector_broadcast",
    "vector_scattered", "vector_scattered_constants", "vector_scattered_share", "vector_output_stride",
)  # fmt: skip
BODY_NAMES = (
    "body_results", "body_registers", "body_pressure", "body_spilled", "body_chains", "body_log_instructions",
    "body_compute_cycles", "body_fetch_cycles", "body_fetch_per_compute", "body_log_calls", "body_log_run",
    "body_log_runs",
)  # fmt: skip
PARALLEL_NAMES = ("chunks_log", "chunks_per_thread", "chunks_imbalance", "chunks_log_bytes")
ESTIMATE_NAMES = (
    "estimate_log_s", "estimate_log_compute_s", "estimate_log_l1_s", "estimate_log_l2_s", "estimate_log_l3_s",
    "estimate_log_over_floor",
)  # fmt: skip
SKETCH_NAMES = (
    "sketch_code", "sketch_knobs", "sketch_levels", "sketch_moved", "sketch_distance",
    *(f"knob_{name}" for name in KNOB_MEANINGS),
)  # fmt: skip

NAMES: tuple[str, ...] = (
    *TASK_NAMES, *TARGET_NAMES, *LEVEL_NAMES, *CACHE_NAMES, *VECTOR_NAMES, *BODY_NAMES, *PARALLEL_NAMES,
    *ESTIMATE_NAMES, *SKETCH_NAMES,
)  # fmt: skip
"""The columns of every feature matrix, in order; on GPUs `GPU_NAMES` follow them."""

REVISION = "1"
"""What rises when a column of the same name gets another meaning."""

_POSITION = {name: i for i, name in enumerate((*NAMES, *GPU_NAMES))}


def names_of(target_kind: str) -> tuple[str, ...]:
    """The columns of feature matrices for a kind of target, in order."""
    return (*NAMES, *GPU_NAMES) if target_kind == CUDA else NAMES


@lru_cache(maxsize=8)
def version_of(target_kind: str) -> str:
    """The version of the columns for a kind of target: a model that learned from another can't read these."""
    text = " ".join((REVISION, *names_of(target_kind)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


Floats = NDArray[np.float64]  # [points], or [1] where all points agree
Columns = Mapping[str, Floats | float]


@dataclass(frozen=True, slots=True)
class FeatureMatrix:
    """Features: one row per point, one column per name of `names_of` the target's kind."""

    values: NDArray[np.float32]  # [points, names]

    def column(self, name: str) -> NDArray[np.float32]:
        """The values of one feature [points]. Raises KeyError."""
        return self.values[:, _POSITION[name]]


def features(task: Task, target: Target, space: Space, rows: Rows) -> FeatureMatrix:
    """The features of points of a space. All values are finite; a row doesn't depend on the others."""
    if not len(rows):
        return FeatureMatrix(np.empty((0, len(names_of(target.kind))), np.float32))
    knobs = space.columns(rows)
    tiling = space.tiling(knobs)
    shared = {**_task_columns(task, target, tiling.stage), **_sketch_columns(space, knobs, len(tiling.tiles))}
    values = np.full((len(names_of(target.kind)), len(rows)), np.nan, np.float32)
    for name, column in shared.items():
        values[_POSITION[name]] = column
    parts = split_by_vector_axis(tiling, len(rows))
    for axis, members, part in parts:
        points = members if len(parts) > 1 else slice(None)
        loops = Loops(task, target, part, axis)
        loop_columns = _loop_columns(task, loops)
        if target.kind == CUDA:
            own_knobs = {name: column[points] for name, column in knobs.items()}
            loop_columns = {**loop_columns, **gpu_columns(task, loops, space, own_knobs)}
        for name, column in loop_columns.items():
            values[_POSITION[name], points] = column
    return FeatureMatrix(values.T)


def _loop_columns(task: Task, loops: Loops) -> Columns:
    return {
        **_stage_columns(loops),
        **_target_columns(loops),
        **_level_columns(loops),
        **_cache_columns(loops),
        **_vector_columns(loops),
        **_body_columns(loops),
        **_parallel_columns(loops),
        **_estimate_columns(task, loops),
    }


def _log(x: Floats | float) -> Floats:
    return np.log2(np.maximum(x, 1e-12))


def _mix(task: Task, stage: Stage) -> Mapping[str, float]:
    """Counts of kinds of operations, by stage points, so that a cheap stage beside a large one weighs little."""
    counts = {"transcendental": 0.0, "divisions": 0.0, "compared": 0.0}
    for each in task.stages:
        share = each.points / max(stage.points, 1)
        for node in walk(each.body):
            if isinstance(node, Op):
                counts["transcendental"] += share * (node.name in TRANSCENDENTAL)
                counts["divisions"] += share * (node.dtype.is_float and node.name in ("div", "sqrt"))
                counts["compared"] += share * (node.dtype.is_float and node.name in ("select", "min", "max"))
    return counts


@lru_cache(maxsize=MAX_STAGES)
def _task_columns(task: Task, target: Target, stage: Stage) -> Columns:
    mix = _mix(task, stage)
    return {
        "task_log_flops": _log(task.flops + 1.0),
        "task_log_bytes": _log(float(task.traffic_bytes)),
        "task_log_intensity": _log((task.flops + 1.0) / max(task.traffic_bytes, 1)),
        "task_log_floor_s": _log(floor_s(task, target)),
        "task_stages": len(task.stages),
        "task_inputs": len(task.inputs),
        "task_transcendental": mix["transcendental"],
        "task_divisions": mix["divisions"],
        "task_compared": mix["compared"],
        "task_log_constant_bytes": _log(task.constant_bytes + 1.0),
        "stage_share": stage.flops / max(task.flops, stage.flops, 1),
        "stage_element_bytes": stage.body.dtype.size_bytes,
        "stage_sum": stage.combiner == "sum",
        "stage_operations": operations(stage.body, stage.combiner),
        "stage_repeated_loads": sum(isinstance(node, Load) for node in walk(stage.body)),
    }


def _stage_columns(loops: Loops) -> Columns:
    spatial, reduced = loops.volume(loops.whole, loops.spatial), loops.volume(loops.whole, loops.reduced)
    dimensions = [dimension for access in loops.accesses for dimension in access.dimensions]
    return {
        "stage_log_points": _log(spatial * reduced),
        "stage_log_spatial": _log(spatial),
        "stage_log_reduction": _log(reduced),
        "stage_spatial_axes": len(loops.spatial),
        "stage_reduction_axes": len(loops.reduced),
        "stage_reads": len(loops.accesses) - 1,
        "stage_windows": sum(len(dimension.terms) > 1 for dimension in dimensions),
        "stage_strided": sum(any(abs(step) > 1 for step in dimension.terms.values()) for dimension in dimensions),
        "stage_irregular": sum(not dimension.is_regular for dimension in dimensions),
    }


def _target_columns(loops: Loops) -> Columns:
    target = loops.target
    return {
        "target_lanes": loops.lanes,
        "target_registers": target.vector_registers,
        "target_threads": target.threads,
        "target_log_l1": _log(target.l1_bytes + 1.0),
        "target_log_l2": _log(target.l2_bytes + 1.0),
        "target_log_l3": _log(target.l3_bytes + 1.0),
    }


def _level_columns(loops: Loops) -> Columns:
    target, axes = loops.target, loops.spatial + loops.reduced
    volume, footprint = loops.volume(loops.levels, axes), loops.footprints_bytes
    log_bytes = _log(footprint)
    columns: dict[str, Floats | float] = {
        "log_volume": _log(volume),
        "log_reduction": _log(loops.volume(loops.levels, loops.reduced)),
        "log_passes": _log(loops.passes_at),
        "log_bytes": log_bytes,
        "log_bytes_l1": log_bytes - _log(target.l1_bytes + 1.0),
        "log_bytes_l2": log_bytes - _log(target.l2_bytes + 1.0),
        "log_bytes_l3": log_bytes - _log(last_bytes(target) + 1.0),
        "log_intensity": _log(volume / footprint),
        "waste": volume * loops.passes_at / loops.volume(loops.whole, axes) - 1.0,
    }
    for position, name in enumerate(OPERANDS):
        is_there = position < len(loops.accesses)
        columns[f"log_bytes_{name}"] = _log(loops.parts_bytes[position]) if is_there else -1.0
        columns[f"log_reuse_{name}"] = _log(volume / product(loops.boxes[position])) if is_there else -1.0
    return {
        f"level{level}_{name}": column[level] if isinstance(column, np.ndarray) and column.ndim > 1 else column
        for name, column in columns.items()
        for level in range(LEVELS)
    }


def _cache_columns(loops: Loops) -> Columns:
    target = loops.target
    points = loops.volume(loops.whole, loops.spatial + loops.reduced)
    columns: dict[str, Floats | float] = {}
    sizes_bytes = (target.l1_bytes, target.l2_bytes, last_bytes(target))
    for cache, size_bytes in zip(CACHES, sizes_bytes, strict=True):
        traffic = loops.traffic_bytes(size_bytes) + 1.0
        columns[f"{cache}_log_traffic"] = _log(traffic)
        columns[f"{cache}_log_intensity"] = _log(points / traffic)
        columns[f"{cache}_log_excess"] = _log(traffic / loops.whole_bytes)
    return columns


def _vector_columns(loops: Loops) -> Columns:
    axis = loops.vector_axis if loops.vector_axis in loops.whole else None
    extent = loops.innermost[axis] if axis else np.ones(1)
    whole = loops.whole[axis] if axis else np.ones(1)
    filled = np.ceil(extent / loops.lanes) * loops.lanes
    strides = [access.stride(loops.vector_axis) for access in loops.accesses]
    reads = list(zip(loops.accesses[1:], strides[1:], strict=True))
    scattered = [access for access, stride in reads if stride not in (0, 1)]
    return {
        "vector_log_extent": _log(extent),
        "vector_used": extent / filled,
        "vector_waste": np.ceil(whole / extent) * filled / whole - 1.0,
        "vector_reduced": loops.vector_axis in loops.reduced,
        "vector_contiguous": sum(stride == 1 for _, stride in reads),
        "vector_broadcast": sum(stride == 0 for _, stride in reads),
        "vector_scattered": len(scattered),
        "vector_scattered_constants": sum(access.constant for access in scattered),  # a sketch may pack these
        "vector_scattered_share": _whole_bytes(loops, scattered) / float(loops.whole_bytes[0]),
        "vector_output_stride": -1.0 if strides[0] is None else np.log2(1.0 + strides[0]),
    }


def _whole_bytes(loops: Loops, accesses: Sequence[TensorAccess]) -> float:
    return sum(float(access.footprint_bytes(loops.whole)[0]) for access in accesses)


def _body_columns(loops: Loops) -> Columns:
    tile, target = loops.innermost, loops.target
    results, register_count = loops.vectors(tile, loops.spatial), registers(loops)
    compute, fetch = step_cycles(loops)
    call_count = calls(loops)
    return {
        "body_results": results,
        "body_registers": register_count,
        "body_pressure": register_count / target.vector_registers,
        "body_spilled": np.maximum(register_count - target.vector_registers, 0.0),
        "body_chains": np.minimum(results, 8.0),  # what keeps two pipes of latency four busy
        "body_log_instructions": _log(loops.vectors(tile, loops.spatial + loops.reduced) * len(loops.accesses)),
        "body_compute_cycles": compute,
        "body_fetch_cycles": fetch,
        "body_fetch_per_compute": fetch / np.maximum(compute, 0.5),
        "body_log_calls": _log(call_count),
        "body_log_run": _log(loops.reduction_run),
        "body_log_runs": _log(loops.volume(loops.whole, loops.reduced) / loops.reduction_run),
    }


def _parallel_columns(loops: Loops) -> Columns:
    threads = loops.target.threads
    return {
        "chunks_log": _log(loops.chunks),
        "chunks_per_thread": np.minimum(loops.chunks / threads, 64.0),
        "chunks_imbalance": shares(loops) * threads,
        "chunks_log_bytes": _log(loops.whole_bytes / loops.chunks),
    }


def _estimate_columns(task: Task, loops: Loops) -> Columns:
    total_s, parts = estimate_s(loops)
    return {
        "estimate_log_s": _log(total_s),
        "estimate_log_compute_s": _log(parts["compute"]),
        **{f"estimate_log_{cache}_s": _log(parts[cache] + 1e-9) for cache in CACHES},
        "estimate_log_over_floor": _log(total_s / floor_s(task, loops.target)),
    }


def _sketch_columns(space: Space, knobs: Mapping[str, NDArray[np.int64]], levels: int) -> Columns:
    default, sizes = dict(space.default.values), {name: _size(values) for name, values in knobs.items()}
    moved_knobs, distance = np.zeros(1), np.zeros(1)
    for knob in space.knobs:
        steps = np.abs(sizes[knob.name] - _size(default[knob.name]))
        moved_knobs, distance = moved_knobs + (steps > 0), distance + steps
    knob_columns = {f"knob_{role}": sizes[name] for name, role in roles(space).items()}
    return {
        "sketch_code": sketch_code(space.sketch),
        "sketch_knobs": len(space.knobs),
        "sketch_levels": levels,
        "sketch_moved": moved_knobs,  # from the default, which an expert's rule has found
        "sketch_distance": distance,
        **dict.fromkeys((f"knob_{name}" for name in KNOB_MEANINGS), -1.0),
        **knob_columns,
    }


def sketch_code(name: str) -> float:
    """A number by which trees tell sketches apart, whatever their version."""
    return float(hashlib.sha256(name.encode()).digest()[0])


def _size(values: NDArray[np.int64] | int) -> Floats:
    return np.asarray(np.sign(values) * np.log2(1.0 + np.abs(values)))


def roles(space: Space) -> Mapping[str, str]:
    """Knob name -> its column out of `KNOB_MEANINGS`, if it has one.

    A knob that is named for an axis or a piece of its task has the column of its number: `tile_h` and
    `tile_w` of one task are `tile_0` and `tile_1`, and so are `tile_a` and `tile_b` of another.
    """
    result: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    for knob in space.knobs:
        role = knob.name
        if role not in KNOB_MEANINGS:
            stem = knob.name.rpartition("_")[0]
            role = f"{stem}_{numbers[stem]}"
            numbers[stem] += 1
        if role in KNOB_MEANINGS:
            result[knob.name] = role
    return result
