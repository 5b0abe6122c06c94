"""Admission: checks of imported records, which may hold anything.

The schedule must be a legal point of the space that this version has for its task and target. Its times must be
possible on the target, and agree with each other. Points of other versions of their sketches, or of unknown sketches,
can't be checked: they are stored as history, and `current` keeps them from being used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tunewright.codegen.expr.expr import Expr, Load, Op, Var, walk
from tunewright.codegen.fields import abridge, quote
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Stage, Task
from tunewright.graph.tolerance import tolerance
from tunewright.search_space import sketches
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Illegal
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import saves_multiplications
from tunewright.search_space.space import Space

from .exchange import RecordEntry

MAX_STAGES, MAX_TENSORS, MAX_RANK, MAX_EXTENT = 64, 128, 16, 1 << 40

MAX_DEPTH = 300
"""Levels of an expression: what reads one deeper would meet Python's own limit."""
"""Bounds of an imported task; those of models are far smaller."""

MAX_TIME_S = 1e5
"""Longest time that may be imported: a day and some hours."""

LONGEST_REASON = 300
"""Characters of the reason why a schedule is illegal, which may list many knobs and choices."""

SPACES = 256
"""Cached spaces, and least times: an export goes from task to task."""

CLOCK_HZ = 8e9
"""More than the clock of any processor."""

PIPES = 4
"""Vector operations, and vectors stored, in a cycle: more than any core does, up to `ARITHMETIC_SAVING`."""

MULTIPLY_PIPES, NARROW_BITS = 2, 128
"""Multiply-adds of vectors in a cycle; of vectors that are no wider than that there may be `PIPES`."""

MATRIX_BYTES, MATRIX_OPERAND_BYTES = 1024, 2
"""Bytes of operands that matrix registers multiply in a cycle of a core, and the widest such operand."""

GPU_BOOST = 1.5
"""Highest clock of a GPU, as a multiple of its target's."""

GPU_STORED_BYTES = 256
"""Bytes that a multiprocessor stores in a cycle: more than any does."""

ARITHMETIC_SAVING = 16
"""A kernel may need this many times less arithmetic than its task: Winograd's method saves three quarters, padding is
skipped, and repeated values are reused. Nothing is saved of plain products (`_is_product`) on a processor by a sketch
that multiplies directly: of the trials of bench/training the fastest takes 1.4 times this bound. Too generous a bound
lets a wrong hint in, which does no harm; too strict a bound would refuse real measurements."""

PEAK_RATIO = 2 * ARITHMETIC_SAVING
"""How many times the peak that was measured on a target a task may seem to reach, beside the bound by its vectors and
clock: machines of one target differ in their clocks, and what multiplies narrow values in matrix registers saves
nothing else. Confirmations of bench/training reach 1.6 times the peak."""

MAX_FOLDS = 1 << 512
"""Bound of products of extents, which may exceed a float."""

MIN_RUN_S, MIN_GPU_RUN_S = 5e-10, 1e-7
"""Shortest run: four cycles of a predicted call; and a launch on a GPU."""


def check_size(task: Task) -> None:
    """Raises ValueError for an imported task that is larger than any of a model."""
    tensors = [*task.inputs, *task.outputs, *task.temporaries]
    extents = [extent for tensor in tensors for extent in tensor.shape]
    extents += [axis.extent for stage in task.stages for axis in stage.axes + stage.reduce]
    if len(task.stages) > MAX_STAGES or len(tensors) > MAX_TENSORS or max(extents, default=1) > MAX_EXTENT:
        raise ValueError("it is too large")
    if any(len(tensor.shape) > MAX_RANK for tensor in tensors):
        raise ValueError("a tensor has too many dimensions")
    if any(_is_deep(part) for stage in task.stages for part in (stage.body, *stage.index)):
        raise ValueError(f"it is nested too deeply: {MAX_DEPTH} levels are the most")


def _is_deep(root: Expr) -> bool:
    """Whether an expression has more than MAX_DEPTH levels. It is a tree, as it comes from text."""
    level: list[Expr] = [root]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in node.children]
    return bool(level)


@dataclass(frozen=True, slots=True)
class EntryFault:
    """What is wrong with one of several entries."""

    index: int  # of the entry
    reason: str


ROUNDING = 1e-6
"""Part of a time by which the ends of an interval may miss the median, as times may be rounded."""

SAMPLES_RATIO = 2.0
"""Largest ratio of a median to its samples, or theirs to it: they may be of different speeds of the machine."""

ODD_RATIO = 100.0
"""How many times as fast as any run a single sample may be, and so the end of an interval: samples are divided by the
drift beside them, which may be of an odd moment of a busy machine. They decide nothing."""

ODD_TIMES = ("low_s", "high_s", "samples_s")
"""The times that this goes for."""

PLAIN_OPS, PRODUCT_OPS = {"add", "sub", "mul"}, {"mul", "cast"}
"""Ops of indices in which no value occurs twice for one reason or another, and of products of values as they are."""

SHA256 = re.compile("[0-9a-f]{64}")

TIMED = (Status.OK, Status.WRONG_RESULT)
"""Endings of what may have been timed: a wrong result may show at the end."""

LABEL = re.compile(r"[\w.]+(\+[\w.]+)*", re.ASCII)
"""Label of a task: the ops of its nodes."""

LONGEST_LABEL = 1000
"""Characters of a label; those of models have some dozens."""

KINDS = ("cpu", CUDA)
"""Kinds of targets that this version knows."""


def first_fault(entries: Sequence[RecordEntry], peaks_flops_s: Mapping[str, float]) -> EntryFault | None:
    """The fault of the first entry that has one. Peaks are by the keys of targets on which one was measured."""
    faults = (*_time_faults(entries, peaks_flops_s), *_schedule_faults(entries))
    return min(faults, key=lambda fault: fault.index, default=None)


def _time_faults(entries: Sequence[RecordEntry], peaks_flops_s: Mapping[str, float]) -> Iterator[EntryFault]:
    """The first entry that names what can't be, or has too large a task, or times that can't be or disagree."""
    for index, entry in enumerate(entries):
        try:
            check_names(entry.task, entry.target)
            check_result(entry.task, entry.record.measurement)
            check_time(entry.task, entry.target, entry.record, peaks_flops_s.get(entry.record.target_key))
            check_agreement(entry.record.measurement)
        except ValueError as error:
            yield EntryFault(index, str(error))
            return


def check_names(task: Task, target: Target) -> None:
    """Raises ValueError for a label that no task of a model has, or a kind of target that is not known.

    The label is no part of the key, and it is shown wherever the task is.
    """
    if len(task.op) > LONGEST_LABEL or not LABEL.fullmatch(task.op):
        raise ValueError(f"task: its op is {quote(task.op)}; a label names ops, such as Conv+Relu")
    if target.kind not in KINDS:
        raise ValueError(f"target: its kind is {quote(target.kind)}, not one of {', '.join(KINDS)}")


def check_result(task: Task, measurement: Measurement) -> None:
    """Raises ValueError for a result that did not come to what its status says."""
    status, error = measurement.status, measurement.max_rel_err
    if measurement.object_sha256 and not SHA256.fullmatch(measurement.object_sha256):
        digest = quote(measurement.object_sha256)
        raise ValueError(f"object_sha256 is {digest}, not 64 hexadecimal digits in lower case")
    if status not in TIMED and (measurement.median_s is not None or measurement.samples_s):
        raise ValueError(f"the status is {status}, but there are times: what ended so has none")
    if status is not Status.OK:
        return
    if measurement.error:
        raise ValueError(f"the status is ok, but error is {quote(measurement.error)}")
    limit = max(tolerance(task, tensor.dtype) for tensor in task.outputs)
    if error is not None and error > limit:
        reason = f"the status is ok, but max_rel_err is {error:.3g}"
        raise ValueError(f"{reason}; results of this task are off {limit:.3g} at most")


def check_time(task: Task, target: Target, record: Record, peak_flops_s: float | None = None) -> None:
    """Raises ValueError for times that are impossible on the target, or too long to be true.

    `peak_flops_s` is the highest that was measured on the target, if any was.
    """
    measurement = record.measurement
    peak_s = 2 * sum(map(_folds, task.stages)) / (PEAK_RATIO * peak_flops_s) if peak_flops_s else 0.0
    least_s = max(fastest_s(task, target, saves_work(record.schedule.sketch)), peak_s)
    odd_s = least_s / ODD_RATIO
    samples_s = measurement.samples_s
    bounds = (
        ("median_s", measurement.median_s, least_s),
        ("low_s", measurement.low_s, odd_s),
        ("high_s", measurement.high_s, odd_s),
        ("samples_s", min(samples_s, default=None), odd_s),
        ("samples_s", max(samples_s, default=None), odd_s),
        ("warm_s", measurement.warm_s, least_s),
        ("incumbent_s", measurement.incumbent_s, fastest_s(task, target)),  # of what may be of any sketch
        ("build_s", measurement.build_s, 0.0),
    )
    for name, value, bound_s in bounds:
        if value is not None and value > MAX_TIME_S:
            raise ValueError(f"{name} is {value:.3g} s; a time is at most {MAX_TIME_S:g} s")
        if value is not None and value < bound_s:
            is_odd = name in ODD_TIMES
            reason = f"a run of this task on {target} takes {least_s if is_odd else bound_s:.3g} s at least"
            if is_odd:
                reason += f", and a single sample, which may be of an odd moment, {bound_s:.3g} s"
            raise ValueError(f"{name} is {value:.3g} s, which can't be: {reason}")


def check_agreement(measurement: Measurement) -> None:
    """Raises ValueError where an interval or samples disagree with the median."""
    median_s, low_s, high_s = measurement.median_s, measurement.low_s, measurement.high_s
    if (low_s is None) != (high_s is None):
        raise ValueError(f"low_s is {_seconds(low_s)}, high_s {_seconds(high_s)}; an interval has both ends")
    if median_s is None:
        if low_s is not None or measurement.samples_s:
            raise ValueError("there are samples_s, or low_s and high_s, but no median_s that they are of")
        return
    if low_s is not None and high_s is not None:
        rounded_s = ROUNDING * median_s
        if not low_s - rounded_s <= median_s <= high_s + rounded_s:
            interval = f"low_s is {low_s:.3g} s, median_s {median_s:.3g} s, high_s {high_s:.3g} s"
            raise ValueError(f"{interval}; the median lies between the ends of its interval")
    if samples_s := measurement.samples_s:
        least_s, most_s = min(samples_s), max(samples_s)
        if not least_s / SAMPLES_RATIO <= median_s <= SAMPLES_RATIO * most_s:
            reason = f"median_s is {median_s:.3g} s, samples_s go from {least_s:.3g} s to {most_s:.3g} s"
            raise ValueError(f"{reason}; it is their median")


def _seconds(value: float | None) -> str:
    return "null" if value is None else f"{value:.3g} s"


def saves_work(sketch: str) -> bool:
    """Whether a sketch may need less arithmetic than its task: Winograd's, and those that this version has not."""
    return saves_multiplications(sketch) or sketch not in {name for name, _ in sketches.current()}


@lru_cache(SPACES)
def fastest_s(task: Task, target: Target, saves: bool = True) -> float:
    """Lower bound of the seconds of a run of a task on a target, below real times.

    `saves` is whether its kernel may do less than the task's arithmetic. Raises ValueError for a task that is too
    large.
    """
    try:
        check_size(task)
    except ValueError as error:
        raise ValueError(f"task: {error}") from None
    written_bytes = sum(task.written_elements(tensor.name) * tensor.dtype.size_bytes for tensor in task.outputs)
    gpu = target.gpu
    if gpu is None:
        cycles_s = CLOCK_HZ * target.threads
        folded_s = sum(_fold_cycles(task, stage, target, saves) for stage in task.stages) / cycles_s
        return max(MIN_RUN_S, folded_s, written_bytes / (target.vector_bits // 8 * PIPES * cycles_s))
    cycles_s = gpu.clock_hz * GPU_BOOST * gpu.sms
    folds = max(gpu.byte_multiply_adds, gpu.multiply_adds)
    folded_s = sum(map(_folds, task.stages)) / (folds * ARITHMETIC_SAVING * cycles_s)
    return max(MIN_GPU_RUN_S, folded_s, written_bytes / (GPU_STORED_BYTES * cycles_s))


def _is_product(task: Task, stage: Stage) -> bool:
    """Whether a stage sums products of values at plain places, all of which are needed: nothing is padding."""
    nodes = list(walk(stage.body))
    places = [node for load in nodes if isinstance(load, Load) for place in load.index for node in walk(place)]
    is_plain = all(not isinstance(node, Op) or node.name in PLAIN_OPS for node in places)
    names = {node.name for node in nodes if isinstance(node, Op)}
    if not (stage.combiner == "sum" and "mul" in names and names <= PRODUCT_OPS and is_plain):
        return False
    return not any(isinstance(node, Op) and node.name == "select" for part in task.stages for node in walk(part.body))


def _fold_cycles(task: Task, stage: Stage, target: Target, saves: bool) -> float:
    """Cycles of one core that a reduction takes at least, as vector operations take its narrowest operand."""
    sizes = [node.dtype.size_bytes for node in walk(stage.body) if isinstance(node, Load)]
    size_bytes, is_product = min(sizes, default=1), _is_product(task, stage)
    pipes = MULTIPLY_PIPES if is_product and target.vector_bits > NARROW_BITS else PIPES
    bytes_a_cycle = target.vector_bits // 8 * pipes
    if target.has_matrices and size_bytes <= MATRIX_OPERAND_BYTES:
        bytes_a_cycle = max(bytes_a_cycle, MATRIX_BYTES)
    saving = ARITHMETIC_SAVING if saves or not is_product else 1
    return _folds(stage) * size_bytes / (bytes_a_cycle * saving)


def _folds(stage: Stage) -> int:
    """Number of distinct values that a reduction folds."""
    if not stage.combiner:
        return 0
    axes = {node.name for node in walk(stage.body) if isinstance(node, Var)}
    return min(prod(axis.extent for axis in stage.axes + stage.reduce if axis.name in axes), MAX_FOLDS)


def _schedule_faults(entries: Sequence[RecordEntry]) -> Iterator[EntryFault]:
    """The first illegal schedule of each task, target and sketch."""
    groups: dict[tuple[Task, Target, str], list[int]] = {}
    current_sketches = sketches.current()
    for index, entry in enumerate(entries):
        schedule = entry.record.schedule
        if (schedule.sketch, schedule.version) in current_sketches:
            groups.setdefault((entry.task, entry.target, schedule.sketch), []).append(index)
    for (task, target, name), indices in groups.items():
        try:
            space = _space(task, target, name)
        except ValueError as error:
            yield EntryFault(indices[0], str(error))
            continue
        if space is None:
            yield EntryFault(
                indices[0], f"its schedule can't be: sketch {name} has no legal point for {task.op} on {target}"
            )
            continue
        legal_indices = {
            indices[number] for number in space.rows([entries[index].record.schedule for index in indices])[1]
        }
        first_illegal = next((index for index in indices if index not in legal_indices), None)
        if first_illegal is not None:
            yield EntryFault(first_illegal, _illegal_reason(space, entries[first_illegal]))


@lru_cache(SPACES)
def _space(task: Task, target: Target, name: str) -> Space | None:
    """The space of a sketch, None if it is empty. Raises ValueError for a task that is too large."""
    fastest_s(task, target)
    return find_space(sketches.sketch(name), task, target)


def _illegal_reason(space: Space, entry: RecordEntry) -> str:
    try:
        space.row(entry.record.schedule)
    except Illegal as error:
        reason = " ".join(str(error).split())
        return f"its schedule is no legal point: {abridge(reason, LONGEST_REASON)}"
    raise AssertionError("a legal point was taken for another")
