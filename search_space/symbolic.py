"""Symbolic kernels: a schedule lowered for a family of tasks at once."""

from __future__ import annotations

from typing import NamedTuple

from tunewright.codegen.expr.symbolic import Trace
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.ir.pin import pin
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.task_family import TaskFamily

from .schedule import Schedule
from .sketch import PatternSketch
from .sketches import sketch


class SymbolicKernel(NamedTuple):
    """A kernel with symbolic numbers. It holds where `trace` can be replayed."""

    kernel: Kernel
    trace: Trace


def lower_family(
    family: TaskFamily, values: tuple[int, ...], schedule: Schedule, target: Target
) -> SymbolicKernel | None:
    """The kernel of a schedule for all tasks of a family for which the sketch does the same as at `values`, where it
    is legal. None where the sketch does not see its pattern in numbers that are symbolic.
    """
    entry = sketch(schedule.sketch)
    if not isinstance(entry, PatternSketch):
        return None
    task, trace = family.symbolic(values)
    pattern = entry.recognise(task, target)
    if pattern is None:
        return None
    kernel = pin(entry.write(task, pattern, schedule, target), trace)
    verify(kernel, trace.ranges())
    return SymbolicKernel(kernel, trace)
