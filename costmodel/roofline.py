"""Roofline: lower bounds of the times of tasks, and estimates of the times of points on a simple machine.

The machine has the target's sizes and, for what a `Target` doesn't say, round figures: see `Machine`. They set the
scale of an estimate, which nothing relies on, and the ratio of computing to moving data, which is alike on today's
cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import BYTES, DType
from tunewright.codegen.expr.expr import Expr, Op, narrow_source, walk
from tunewright.codegen.target import Target
from tunewright.graph.block_product import match_block_product
from tunewright.graph.task import Stage, Task, is_arithmetic
from tunewright.search_space.space import Rows, Space

from .loops import Loops, TensorAccess, split_by_vector_axis

Floats = NDArray[np.float64]  # [points]


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of a core, or of a GPU's multiprocessor, that its target does not have."""

    clock_hz: float = 4.5e9
    pipes: float = 2.0  # vector operations a cycle
    loads: float = 2.0  # vectors a cycle
    stores: float = 1.0
    product_pipes: float = 2.0  # vector operations a cycle in products of narrow floats
    byte_pipes: float = 2.0  # vector operations a cycle in products of bytes
    split_pipes: float = 0.0  # vector operations a cycle in products of float32 in parts, by tensor cores
    latency: float = 4.0  # cycles from one operation on a register to the next
    window: float = 400.0  # operations that a core looks ahead
    l2_bytes_cycle: float = 32.0  # into L1
    l3_bytes_cycle: float = 28.0  # into L2
    memory_bytes_s: float = 25e9
    memory_cores: float = 3.0  # as many cores use up all of the memory's bandwidth
    call_cycles: float = 4.0  # around the innermost tile: counters, addresses, branches, as far as nothing hides them
    chunk_cycles: float = 10.0  # to hand out one chunk of the parallel loop
    fork_cycles: float = 4000.0  # to wake the other threads and wait for them

    def vectors_cycle(self, stage: Stage) -> float:
        """Vector operations of a stage a cycle."""
        if self.product_pipes == self.byte_pipes == self.pipes:
            return self.pipes
        dtype = product_dtype(stage)
        if dtype in BYTES:
            return self.byte_pipes
        return self.product_pipes if dtype is not None and dtype.is_narrow else self.pipes

    def most_vectors_cycle(self, stage: Stage) -> float:
        """Vector operations of a stage a cycle, by the fastest units that can do them. Estimates of points take those
        of threads for float32: which of the sketches is faster is not known before something is measured.
        """
        return max(self.vectors_cycle(stage), self.split_pipes if product_dtype(stage) is DType.F32 else 0.0)


PROCESSOR = Machine()
BYTES_PROCESSOR = replace(PROCESSOR, byte_pipes=4 * PROCESSOR.pipes)
"""One that multiplies four bytes where it multiplies one float."""

WORDS_PROCESSOR = replace(PROCESSOR, byte_pipes=2 * PROCESSOR.pipes)
"""One that multiplies two, as words."""

NARROW_FACTOR = 2
"""Pairs of bfloat16 are multiplied where one float is."""


@lru_cache(maxsize=64)
def machine_of(target: Target) -> Machine:
    """The machine of a target. Many warps hide latencies of a multiprocessor, and launches take a few microseconds."""
    gpu = target.gpu
    if gpu is None:
        machine = BYTES_PROCESSOR if target.has_quick_dots else WORDS_PROCESSOR if target.has_dots else PROCESSOR
        return replace(machine, product_pipes=NARROW_FACTOR * machine.pipes) if target.has_bf16 else machine
    lanes = target.lanes(4)
    return Machine(
        clock_hz=float(gpu.clock_hz),
        pipes=gpu.multiply_adds / lanes,
        loads=GPU_LOADS / lanes,
        stores=GPU_LOADS / lanes,
        product_pipes=gpu.narrow_multiply_adds / lanes,
        byte_pipes=gpu.byte_multiply_adds / lanes,
        split_pipes=gpu.split_multiply_adds / lanes,
        latency=0.0,
        l2_bytes_cycle=GPU_BYTES_CYCLE,
        l3_bytes_cycle=GPU_BYTES_CYCLE,
        memory_bytes_s=gpu.memory_bytes_s * GPU_MEMORY_SHARE / gpu.sms,
        memory_cores=gpu.sms / GPU_MEMORY_SHARE,
        call_cycles=0.0,
        chunk_cycles=0.0,
        fork_cycles=GPU_LAUNCH_S * gpu.clock_hz,
    )


GPU_LOADS = 32.0
"""Elements of four bytes that a multiprocessor loads from shared memory a cycle."""

GPU_BYTES_CYCLE = 64.0
"""Bytes a cycle into a multiprocessor from the second-level cache."""

GPU_MEMORY_SHARE = 4.0
"""Share of the memory's bandwidth that a multiprocessor can use, in equal shares."""

GPU_LAUNCH_S = 2e-6
"""Seconds that starting and ending a launch take on the device."""


def product_dtype(stage: Stage) -> DType | None:
    """The type of the elements whose products a stage sums, as tensor cores do; None where it does not, or of two.

    Bytes with a sign and bytes without one are alike.
    """
    term = match_block_product(stage.body)
    if term is not None and term.x_scale is not None:
        return DType.U8
    match stage.body:
        case Op("mul", (left, right)) if stage.combiner == "sum":
            left_dtype, right_dtype = narrow_source(left).dtype, narrow_source(right).dtype
            return left_dtype if left_dtype is right_dtype or {left_dtype, right_dtype} <= BYTES else None
    return None


SLOW = {
    "div": 5.0, "sqrt": 6.0, "exp": 12.0, "log": 16.0, "erf": 18.0, "tanh": 16.0, "sigmoid": 16.0, "pow": 60.0,
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan"), 24.0),
    **dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh"), 32.0),
}  # fmt: skip
"""Vector operations that one op amounts to; the others are one. Transcendental ops are expanded to polynomials."""


def operations(body: Expr, combiner: str) -> float:
    """Vector operations that one point of a stage takes; a product that is summed is one with the sum."""
    count = 0.0
    for node in walk(body):
        if isinstance(node, Op) and is_arithmetic(node):
            count += SLOW.get(node.name, 1.0)
    fused = combiner == "sum" and isinstance(body, Op) and body.name == "mul"
    return count + bool(combiner) - fused


def _least_operations(stage: Stage) -> float:
    """As `operations`; weights of few bits may be unpacked once for many products."""
    is_block_product = stage.combiner == "sum" and match_block_product(stage.body) is not None
    return 1.0 if is_block_product else operations(stage.body, stage.combiner)


def peak_factor(task: Task, target: Target) -> float:
    """The peak of a task in units of that of float32: more where a processor multiplies smaller numbers."""
    machine = machine_of(target)
    pipes = max(machine.vectors_cycle(stage) for stage in task.stages)
    return pipes / machine.pipes if target.gpu is None else 1.0


def floor_s(task: Task, target: Target) -> float:
    """Seconds that one run of the task can hardly go below: every lane busy, every byte moved once."""
    machine = machine_of(target)
    cycles = sum(
        stage.points
        * _least_operations(stage)
        / max(target.lanes(stage.body.dtype.size_bytes), 1)
        / machine.most_vectors_cycle(stage)
        for stage in task.stages
    )
    compute_s = cycles / machine.clock_hz / target.threads
    data, rates = float(task.traffic_bytes), rates_bytes_s(target)
    if target.gpu is not None:  # its second-level cache is cold
        rate = rates["l3"]
    elif data <= target.l2_bytes * target.threads:
        rate = rates["l1"]
    elif data <= target.l3_bytes:
        rate = rates["l2"]
    else:
        rate = rates["l3"]
    return max(compute_s, data / rate, 1e-8)


def rates_bytes_s(target: Target) -> dict[str, float]:
    """Bytes a second that all threads together can move into l1 (from l2), l2 (from l3) and l3 (from memory)."""
    machine = machine_of(target)
    return {
        "l1": machine.l2_bytes_cycle * machine.clock_hz * target.threads,
        "l2": machine.l3_bytes_cycle * machine.clock_hz * target.threads,
        "l3": machine.memory_bytes_s * min(float(target.threads), machine.memory_cores),
    }


def peak_flops_s(target: Target) -> float:
    """Operations of float32 a second, of all threads together; a multiply-add is two."""
    machine = machine_of(target)
    return 2 * target.lanes(4) * machine.pipes * machine.clock_hz * target.threads


def last_bytes(target: Target) -> int:
    """The size of the cache before memory."""
    return max(target.l3_bytes, target.l2_bytes)


def step_cycles(loops: Loops) -> tuple[Floats, Floats]:
    """Cycles [points] that one step of the reduction takes in the innermost tile: to compute, and to load operands."""
    stage, tile = loops.stage, loops.innermost
    one_step = {axis: tile[axis] if axis in loops.spatial or axis == loops.vector_axis else np.ones(1) for axis in tile}
    computed = loops.vectors(one_step, list(one_step)) * operations(stage.body, stage.combiner)
    fetched = np.zeros(1)
    for access in loops.accesses[1:]:
        fetched = fetched + instructions(loops, access, access.elements(one_step))
    machine = machine_of(loops.target)
    compute = computed / machine.vectors_cycle(stage)
    if stage.reduce:
        # A fold waits for the one before it, unless the next tile is in sight.
        in_sight = np.maximum(machine.window / ((computed + fetched) * loops.reduction_run), 1.0)
        compute = np.maximum(compute, machine.latency / in_sight)
    spilled = np.maximum(registers(loops) - loops.target.vector_registers, 0.0) if stage.reduce else 0.0
    return compute, (fetched + 2.0 * spilled) / machine.loads


def instructions(loops: Loops, access: TensorAccess, elements: Floats) -> Floats:
    """Loads or stores that this many elements take: whole vectors only where lanes are neighbours in memory."""
    if access.stride(loops.vector_axis) == 1:
        return np.ceil(elements / loops.lanes)
    return elements


def registers(loops: Loops) -> Floats:
    """Vector registers that the innermost tile wants: its results, a row of operands and one operand more."""
    tile = loops.innermost
    across = np.ceil(tile[loops.vector_axis] / loops.lanes) if loops.vector_axis in tile else np.ones(1)
    results = loops.vectors(tile, loops.spatial)
    return np.asarray(results + across + 1.0 if loops.stage.reduce else np.maximum(results, across) + 1.0)


def calls(loops: Loops) -> Floats:
    """The number of passes over the innermost tile in one run, each from its registers' first use to its store."""
    folds = np.ceil(loops.volume(loops.whole, loops.reduced) / loops.reduction_run)
    return np.asarray(loops.passes(loops.innermost, loops.spatial) * folds)


def compute_cycles(loops: Loops) -> Floats:
    """Cycles [points] of all cores together if every operand were in L1."""
    compute, fetch = step_cycles(loops)
    steps = loops.reduction_run
    if loops.vector_axis in loops.reduced:
        steps = steps / np.minimum(loops.innermost[loops.vector_axis], steps)
    output = loops.accesses[0]
    machine = machine_of(loops.target)
    stored = instructions(loops, output, output.elements(loops.innermost)) / machine.stores
    resumed = loops.reduction_run < loops.volume(loops.whole, loops.reduced)
    one_call = steps * np.maximum(compute, fetch) + np.where(resumed, 2.0, 1.0) * stored + machine.call_cycles
    return np.asarray(calls(loops) * one_call)


def shares(loops: Loops) -> Floats:
    """The part [points] of the parallel loop that the busiest thread runs."""
    return np.asarray(np.ceil(loops.chunks / loops.target.threads) / loops.chunks)


def estimate_s(loops: Loops) -> tuple[Floats, dict[str, Floats]]:
    """Seconds [points] that one run would take, and the parts: compute, l1, l2 and l3 (moving data into each)."""
    target, share, machine = loops.target, shares(loops), machine_of(loops.target)
    parts = {
        "compute": compute_cycles(loops) / machine.clock_hz * share,
        "l1": loops.traffic_bytes(target.l1_bytes) / (machine.l2_bytes_cycle * machine.clock_hz) * share,
        "l2": loops.traffic_bytes(target.l2_bytes) / (machine.l3_bytes_cycle * machine.clock_hz) * share,
        "l3": loops.traffic_bytes(last_bytes(target))
        / (machine.memory_bytes_s * np.minimum(1.0 / share, machine.memory_cores)),
    }
    together = parts["compute"] + parts["l1"] + parts["l2"] + parts["l3"]
    longest = np.maximum(np.maximum(parts["compute"], parts["l1"]), np.maximum(parts["l2"], parts["l3"]))
    forked = np.where(loops.chunks > 1, machine.fork_cycles if target.threads > 1 else 0.0, 0.0)
    overhead = (forked + machine.chunk_cycles * loops.chunks * share) / machine.clock_hz
    # Cores overlap moving and computing, though not wholly.
    return longest + 0.25 * (together - longest) + overhead, parts


def estimate_space_s(task: Task, target: Target, space: Space, rows: Rows) -> Floats:
    """Seconds by `estimate_s` of points of a space [points]: a tenth of the work of all their features."""
    return map_loops(task, target, space, rows, lambda loops: estimate_s(loops)[0])


def map_loops(task: Task, target: Target, space: Space, rows: Rows, function: Callable[[Loops], Floats]) -> Floats:
    """Map a function of loops over the points of a space [points]."""
    result = np.empty(len(rows))
    if len(rows):
        tiling = space.tiling(space.columns(rows))
        for axis, members, part in split_by_vector_axis(tiling, len(rows)):
            result[members] = function(Loops(task, target, part, axis))
    return result
