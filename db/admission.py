"""Admission: what an import takes. A record from elsewhere may say anything, and nobody here has seen it happen.

Its schedule must be a legal point of the space that this version has for its task and target, and its times must be
such as machines can reach. Points of other versions of their sketches, or of sketches that are unknown here, can't be
looked at: they are kept as history, and `is_current` keeps them from being used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tunewright.codegen.expr import Load, Var, walk
from tunewright.codegen.target import Target
from tunewright.graph.task import Stage, Task
from tunewright.search_space import sketches
from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Illegal
from tunewright.search_space.sketch import offered
from tunewright.search_space.space import Space

from .exchange import Entry

MOST_STAGES, MOST_TENSORS, LARGEST_RANK, LARGEST_EXTENT = 64, 128, 16, 1 << 40
"""Bounds of a task from elsewhere; those of models are far smaller."""

LONGEST_S = 1e5
"""Of a time that may be imported: a day and some hours."""

LONGEST_SAID = 300
"""Characters of what is said of a schedule: knobs and their choices may be many."""

SPACES = 256
"""Spaces, and least times, that are remembered: an export goes from task to task."""

CLOCK_HZ = 8e9
"""Faster than any processor's."""

PIPES = 4
"""Vector operations, and vectors stored, that no core exceeds in a cycle, to a factor that `SAVED` leaves room for."""

GPU_BOOST = 1.5
"""A GPU's clock is no more than so many times what its target says."""

GPU_STORED_BYTES = 256
"""That no multiprocessor exceeds in a cycle."""

SAVED = 16
"""A kernel may do with so much less arithmetic than its task names: Winograd's method saves three quarters, padding is
passed over, and a value that comes again is kept. A bound that is too generous lets a hint in, which does no harm; one
that is too strict would refuse what was measured."""

MOST_FOLDS = 1 << 512
"""Extents from elsewhere may multiply to more than a float holds."""

LEAST_S, GPU_LEAST_S = 5e-10, 1e-7
"""Of a run that does next to nothing: four cycles of a call that is predicted, and a launch on a GPU."""


def check_size(task: Task) -> None:
    """Raises ValueError for a task from elsewhere that is larger than any of a model."""
    tensors = [*task.inputs, *task.outputs, *task.temporaries]
    extents = [extent for tensor in tensors for extent in tensor.shape]
    extents += [axis.extent for stage in task.stages for axis in stage.axes + stage.reduce]
    if len(task.stages) > MOST_STAGES or len(tensors) > MOST_TENSORS or max(extents, default=1) > LARGEST_EXTENT:
        raise ValueError("it is too large")
    if any(len(tensor.shape) > LARGEST_RANK for tensor in tensors):
        raise ValueError("a tensor has too many dimensions")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one of some entries."""

    place: int  # among them
    said: str


GONE_BY = ("median_s", "warm_s")
"""The times of a measurement that anybody goes by."""


def first_fault(entries: Sequence[Entry]) -> Fault | None:
    """The first of the entries that can't be, if any can't."""
    return min((*_unlikely(entries), *_illegal(entries)), key=lambda fault: fault.place, default=None)


def _unlikely(entries: Sequence[Entry]) -> Iterator[Fault]:
    """The first that names a task too large, or a time that no machine reaches."""
    for place, entry in enumerate(entries):
        try:
            check_time(entry.task, entry.target, entry.record.measurement)
        except ValueError as error:
            yield Fault(place, str(error))
            return


def check_time(task: Task, target: Target, measurement: Measurement) -> None:
    """Raises ValueError for times that the target can't reach, or nobody would have waited for."""
    named = {
        "median_s": measurement.median_s,
        "low_s": measurement.low_s,
        "high_s": measurement.high_s,
        "warm_s": measurement.warm_s,
        "incumbent_s": measurement.incumbent_s,
    }
    times = [(name, value) for name, value in named.items() if value is not None]
    if measurement.samples_s:
        times.append(("samples_s", max(measurement.samples_s)))
    times.append(("build_s", measurement.build_s))
    for name, value in times:
        if value > LONGEST_S:
            raise ValueError(f"{name} is {value:.3g} s; a time is at most {LONGEST_S:g} s")
        # A single sample, and so an end of the interval, may be of a moment at which a busy machine's clock was odd, or
        # be put in proportion to one; nobody goes by it.
        if name in GONE_BY and value < (least_s := fastest_s(task, target)):
            least = f"a run of this task on {target} takes {least_s:.3g} s at least"
            raise ValueError(f"{name} is {value:.3g} s, which can't be: {least}")


@lru_cache(SPACES)
def fastest_s(task: Task, target: Target) -> float:
    """Seconds that no run of a task on a target goes below, whatever the schedule: far less than any takes.

    Raises ValueError for a task that is too large.
    """
    try:
        check_size(task)
    except ValueError as error:
        raise ValueError(f"task: {error}") from None
    written_bytes = sum(task.written_elements(tensor.name) * tensor.dtype.size_bytes for tensor in task.outputs)
    gpu = target.gpu
    if gpu is None:
        vector_bytes, cycles_s = target.vector_bits // 8, CLOCK_HZ * target.threads
        folded_s = sum(_folded_bytes(stage) for stage in task.stages) / (vector_bytes * PIPES * SAVED * cycles_s)
        return max(LEAST_S, folded_s, written_bytes / (vector_bytes * PIPES * cycles_s))
    cycles_s = gpu.clock_hz * GPU_BOOST * gpu.sms
    folds = max(gpu.byte_multiply_adds, gpu.multiply_adds)
    folded_s = sum(_folds(stage) for stage in task.stages) / (folds * SAVED * cycles_s)
    return max(GPU_LEAST_S, folded_s, written_bytes / (GPU_STORED_BYTES * cycles_s))


def _folds(stage: Stage) -> int:
    """How often a reduction folds in a value that is not one that it folded in elsewhere."""
    if not stage.combiner:
        return 0
    used = {node.name for node in walk(stage.body) if isinstance(node, Var)}
    return min(prod(axis.extent for axis in stage.axes + stage.reduce if axis.name in used), MOST_FOLDS)


def _folded_bytes(stage: Stage) -> int:
    """The same in bytes of the narrowest operand, as vector operations take them."""
    sizes = [node.dtype.size_bytes for node in walk(stage.body) if isinstance(node, Load)]
    return _folds(stage) * min(sizes, default=1)


def _illegal(entries: Sequence[Entry]) -> Iterator[Fault]:
    """Of each task, target and sketch the first whose schedule is no point of the space."""
    groups: dict[tuple[Task, Target, str], list[int]] = {}
    known = sketches.current()
    for place, entry in enumerate(entries):
        schedule = entry.record.schedule
        if (schedule.sketch, schedule.version) in known:
            groups.setdefault((entry.task, entry.target, schedule.sketch), []).append(place)
    for (task, target, name), places in groups.items():
        try:
            space = _space(task, target, name)
        except ValueError as error:
            yield Fault(places[0], str(error))
            continue
        if space is None:
            yield Fault(places[0], f"its schedule can't be: sketch {name} has no legal point for {task.op} on {target}")
            continue
        legal = {places[number] for number in space.rows([entries[place].record.schedule for place in places])[1]}
        wrong = next((place for place in places if place not in legal), None)
        if wrong is not None:
            yield Fault(wrong, _why(space, entries[wrong]))


@lru_cache(SPACES)
def _space(task: Task, target: Target, name: str) -> Space | None:
    """The space of a sketch, None where it has no point. Raises ValueError for a task that is too large."""
    fastest_s(task, target)
    return offered(sketches.sketch(name), task, target)


def _why(space: Space, entry: Entry) -> str:
    try:
        space.row(entry.record.schedule)
    except Illegal as error:
        said = " ".join(str(error).split())
        return f"its schedule is no legal point: {said[:LONGEST_SAID]}"
    raise AssertionError("a legal point was taken for another")
