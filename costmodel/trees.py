"""Boosted trees in machine code: the predictions of many points.

A vector has a lane for each point. The upper levels of a tree are compared whole, for every point: where all lanes look
at one node, its feature is one vector of the block of points, and conditions pick among conditions. Further down each
lane gathers the node that it has come to. XGBoost's own predictor goes down a tree with one point at a time and waits
for memory at every level.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.host import detect
from tunewright.codegen.llvm.build import compile_text
from tunewright.codegen.runtime.library import Library
from tunewright.codegen.runtime.memory import aligned_empty
from tunewright.codegen.target import Target

SELECT_LEVELS = 5
"""Upper levels whose nodes are all compared. On Cascade Lake the base model, with 7 levels, takes 4.4 us a point with
4 of them, 3.8 with 5, and 3.5 with 6, which compile for twice as long as 5 (30 ms).
"""

VECTORS = 4
"""Vectors of points that go down a tree beside each other, so that they don't wait for each other's memory."""

SYMBOL = "trees"

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Complete trees of one depth, in order of levels: the children of node n are 2n + 1 and 2n + 2.

    A point goes left where its feature is below the threshold; NaN goes right. Raises ValueError for shapes that don't
    go together, and for other types.
    """

    features: NDArray[np.int32]  # [trees, 2^depth - 1]
    thresholds: Values  # the same
    leaves: Values  # [trees, 2^depth]
    base: float = 0.0  # what the sum of leaves begins with

    def __post_init__(self) -> None:
        dtypes = [array.dtype.name for array in (self.features, self.thresholds, self.leaves)]
        if dtypes != ["int32", "float32", "float32"]:
            raise ValueError(f"features, thresholds, leaves of {', '.join(dtypes)}, not int32, float32, float32")
        trees, nodes = self.features.shape
        if nodes & (nodes + 1) or self.thresholds.shape != (trees, nodes) or self.leaves.shape != (trees, nodes + 1):
            shapes = ", ".join(str(list(array.shape)) for array in (self.features, self.thresholds, self.leaves))
            raise ValueError(f"no complete trees: features, thresholds, leaves of {shapes}")
        if self.features.size and self.features.min() < 0:
            raise ValueError(f"no feature has the number {self.features.min()}")

    @property
    def depth(self) -> int:
        """The number of decisions from the root to a leaf."""
        return int(self.features.shape[1]).bit_length()

    def sums(self, values: Values) -> Values:
        """The sum of the leaves that points [points, features] come to [points].

        Raises ValueError where the points lack a feature.
        """
        if self.features.size and self.features.max() >= values.shape[1]:
            raise ValueError(f"feature {self.features.max()} of points that have {values.shape[1]}")
        run, lanes, _ = _evaluator(self.depth)
        arrays = [np.ascontiguousarray(array) for array in (self.features, self.thresholds, self.leaves)]
        block = aligned_empty((values.shape[1], lanes), DType.F32)
        out = aligned_empty((-(-len(values) // lanes) * lanes,), DType.F32)
        addresses = [array.ctypes.data for array in arrays]
        for begin in range(0, len(values), lanes):
            part = values[begin : begin + lanes]
            block[:, : len(part)] = part.T
            block[:, len(part) :] = 0
            run(block.ctypes.data, *addresses, out[begin:].ctypes.data, len(self.features), self.base)
        return np.array(out[: len(values)])


class _Evaluator(NamedTuple):
    """The function for trees of one depth."""

    run: Callable[..., None]  # see `text`
    lanes: int  # points that it takes at once
    library: Library  # its code


@cache
def _evaluator(depth: int) -> _Evaluator:
    """For this machine, compiled."""
    target = detect(1)
    lanes = _lanes(target)
    library = Library([([compile_text(text(depth, lanes), target)], [SYMBOL])])
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_int64, ctypes.c_float)
    return _Evaluator(prototype(library.addresses[0][SYMBOL]), lanes, library)


def _lanes(target: Target) -> int:
    return VECTORS * max(target.vector_bits // 32, 1)


def text(depth: int, lanes: int) -> str:
    """The LLVM IR: `trees(block, features, thresholds, leaves, sums, count, base)`, of a block [features, lanes].

    `lanes` is a power of two: a vector of any other number takes more room than its lanes.
    """
    return _TreeWriter(depth, lanes).text()


class _TreeWriter:
    """The body of the loop over trees, a line at a time."""

    def __init__(self, depth: int, lanes: int) -> None:
        self._depth, self._lanes = depth, lanes
        self._lines: list[str] = []

    def text(self) -> str:
        lanes, nodes = self._lanes, 2**self._depth - 1
        floats, integers = f"<{lanes} x float>", f"<{lanes} x i32>"
        leaf = self._gather("float", "%leaves", self._leaf())
        body = "\n".join(self._lines)
        return f"""\
declare {floats} @llvm.masked.gather.v{lanes}f32(<{lanes} x ptr>, i32, <{lanes} x i1>, {floats})
declare {integers} @llvm.masked.gather.v{lanes}i32(<{lanes} x ptr>, i32, <{lanes} x i1>, {integers})

define void @{SYMBOL}(ptr noalias %block, ptr noalias %all_features, ptr noalias %all_thresholds,
                   ptr noalias %all_leaves, ptr noalias %sums, i64 %count, float %base) {{
entry:
  %first = insertelement {floats} poison, float %base, i64 0
  %start = shufflevector {floats} %first, {floats} poison, {integers} zeroinitializer
  br label %next
next:
  %tree = phi i64 [0, %entry], [%following, %body]
  %sum = phi {floats} [%start, %entry], [%total, %body]
  %is_left = icmp ult i64 %tree, %count
  br i1 %is_left, label %body, label %done
body:
  %node_offset = mul i64 %tree, {nodes}
  %leaf_offset = mul i64 %tree, {nodes + 1}
  %features = getelementptr i32, ptr %all_features, i64 %node_offset
  %thresholds = getelementptr float, ptr %all_thresholds, i64 %node_offset
  %leaves = getelementptr float, ptr %all_leaves, i64 %leaf_offset
{body}
  %total = fadd {floats} %sum, {leaf}
  %following = add i64 %tree, 1
  br label %next
done:
  store {floats} %sum, ptr %sums, align 4
  ret void
}}
"""

    def _leaf(self) -> str:
        """The number of the leaf that each lane comes to."""
        goes_left: list[str] = []
        for _ in range(min(SELECT_LEVELS, self._depth)):
            goes_left.append(self._select_condition(goes_left, 0))
        index = self._constant(0)
        for left in goes_left:
            index = self._child(index, left)
        for level in range(len(goes_left), self._depth):
            index = self._child(index, self._gather_condition(level, index))
        return index

    def _select_condition(self, goes_left: list[str], node: int) -> str:
        """The condition at the node that each lane comes to from this one, given its decisions on the way."""
        if not goes_left:
            return self._condition(node)
        left, right = (self._select_condition(goes_left[1:], 2 * node + side) for side in (1, 2))
        kind = f"<{self._lanes} x i1>"
        return self._line(f"select {kind} {goes_left[0]}, {kind} {left}, {kind} {right}")

    def _condition(self, node: int) -> str:
        """Whether the lanes go left at one node."""
        lanes, floats = self._lanes, f"<{self._lanes} x float>"
        feature = self._line(f"load i32, ptr {self._line(f'getelementptr i32, ptr %features, i64 {node}')}")
        row = self._line(f"getelementptr {floats}, ptr %block, i64 {self._line(f'zext i32 {feature} to i64')}")
        value = self._line(f"load {floats}, ptr {row}, align 4")
        threshold = self._line(f"load float, ptr {self._line(f'getelementptr float, ptr %thresholds, i64 {node}')}")
        first = self._line(f"insertelement {floats} poison, float {threshold}, i64 0")
        spread = self._line(f"shufflevector {floats} {first}, {floats} poison, <{lanes} x i32> zeroinitializer")
        return self._line(f"fcmp olt {floats} {value}, {spread}")

    def _gather_condition(self, level: int, index: str) -> str:
        """Whether each lane goes left at the node of a level that it has come to."""
        kind = f"<{self._lanes} x i32>"
        node = self._line(f"add {kind} {index}, {self._constant(2**level - 1)}")
        feature = self._gather("i32", "%features", node)
        threshold = self._gather("float", "%thresholds", node)
        row = self._line(f"mul {kind} {feature}, {self._constant(self._lanes)}")
        own = f"<{', '.join(f'i32 {lane}' for lane in range(self._lanes))}>"
        value = self._gather("float", "%block", self._line(f"add {kind} {row}, {own}"))
        return self._line(f"fcmp olt <{self._lanes} x float> {value}, {threshold}")

    def _child(self, index: str, left: str) -> str:
        """The index within the next level."""
        kind = f"<{self._lanes} x i32>"
        zero, one = self._constant(0), self._constant(1)
        side = self._line(f"select <{self._lanes} x i1> {left}, {kind} {zero}, {kind} {one}")
        return self._line(f"add {kind} {self._line(f'add {kind} {index}, {index}')}, {side}")

    def _gather(self, element: str, array: str, index: str) -> str:
        lanes = self._lanes
        where = self._line(f"getelementptr {element}, ptr {array}, <{lanes} x i32> {index}")
        kind, suffix = f"<{lanes} x {element}>", {"float": "f32"}.get(element, element)
        mask = f"<{lanes} x i1> splat (i1 true)"
        return self._line(
            f"call {kind} @llvm.masked.gather.v{lanes}{suffix}(<{lanes} x ptr> {where}, i32 4, {mask}, {kind} poison)"
        )

    def _constant(self, value: int) -> str:
        return f"<{', '.join([f'i32 {value}'] * self._lanes)}>"

    def _line(self, instruction: str) -> str:
        """Write an instruction; returns the name of its result."""
        name = f"%v{len(self._lines)}"
        self._lines.append(f"  {name} = {instruction}")
        return name
