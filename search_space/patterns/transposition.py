"""Transpositions: fused stages that read a tensor across, so that neighbours there are no neighbours in the output."""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.codegen.expr.expr import Load
from tunewright.graph.task import Axis

from .fused_stage import FusedStage
from .vector_axis import is_contiguous


@dataclass(frozen=True, slots=True)
class Transposition:
    """A fused stage without a fold, and its load whose neighbours are not neighbours in the output."""

    fused_stage: FusedStage
    load: Load
    read_axis: Axis  # contiguous in the tensor that is read
    write_axis: Axis  # contiguous in the output

    @staticmethod
    def of(fused_stage: FusedStage) -> Transposition | None:
        """The transposition of a fused stage, if it has one."""
        axes = fused_stage.stage.axes
        write_axis = next((axis for axis in axes if is_contiguous(fused_stage.index, axis.name)), None)
        if fused_stage.stage.reduce or write_axis is None:
            return None
        for load in fused_stage.reads:
            read_axis = next((axis for axis in axes if is_contiguous(load.index, axis.name)), None)
            if read_axis is not None and read_axis is not write_axis:
                return Transposition(fused_stage, load, read_axis, write_axis)
        return None

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The axes besides those two."""
        return tuple(axis for axis in self.fused_stage.stage.axes if axis not in (self.read_axis, self.write_axis))
