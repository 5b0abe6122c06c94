"""Patch launch: what windows read, laid out as a matrix."""

from __future__ import annotations

from tunewright.codegen.expr.expr import Var
from tunewright.codegen.ir.ir import For, LoopKind, Stmt, Store

from ...axes import axis_indices, unravel
from ...patterns.fused_stage import FusedStage
from ...patterns.unfolding import PATCHES, UNIT_BYTES
from .element_launch import vectorize_at
from .sides import guard_extent, size

THREADS = 128
"""Threads of a block that lays out rows."""


def lay_out_rows(patches: FusedStage) -> Stmt:
    """The launch that fills a matrix of patches, a thread for 16 bytes of a row.

    All threads of a block are at the same place of neighbouring rows: so where in the window that is, is computed once,
    and neighbours read neighbours where channels come first.
    """
    stage = patches.stage
    *rows, place = stage.axes
    unit = UNIT_BYTES // stage.body.dtype.size_bytes
    count = size(rows)
    bands, units = -(-count // THREADS), place.extent // unit
    band, column = unravel(Var("block"), (bands, units))
    number = band * THREADS + Var("thread")
    at = {**axis_indices(rows, number), place.name: column * unit}
    index = tuple(vectorize_at(e, at, place.name, unit) for e in stage.index)
    store = Store(PATCHES, index, vectorize_at(stage.body, at, place.name, unit))
    threads = For("thread", THREADS, guard_extent(number, count, THREADS, store), LoopKind.THREAD)
    return For("block", bands * units, threads, LoopKind.BLOCK)
