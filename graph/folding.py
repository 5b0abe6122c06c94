"""When a node is worked out ahead of time, and doing so.

A few bytes of a model can ask for terabytes (`Expand`) or for days (`Loop`), so only ops whose cost follows from the
sizes of their operands fold, and only up to limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from .fallback import EvaluationError, evaluate
from .ir import Array, Node, TensorType

MAX_GROWTH = 8
"""Results may be this many times larger than the operands ..."""

FREE_BYTES = 64 << 20
"""... or this large in any case."""

MAX_BUDGET_BYTES = 2 << 30
"""What folding one graph may make in total, beyond MAX_GROWTH times what the graph holds at the start."""

MAX_PRODUCTS = 1 << 33
"""Most multiplications of a folded MatMul or Gemm."""

_FOLDED = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization BitShift BitwiseAnd BitwiseNot
BitwiseOr BitwiseXor BlackmanWindow Cast CastLike Ceil Celu Clip Compress Concat ConstantOfShape Cos Cosh CumSum
DepthToSpace DequantizeLinear Div Dropout Elu Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements
GatherND Gelu Gemm Greater GreaterOrEqual HammingWindow HannWindow HardSigmoid HardSwish Identity IsInf IsNaN
LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max Mean MelWeightMatrix Min Mish Mod Mul Neg
NonZero Not OneHot Or PRelu Pad Pow QuantizeLinear Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round ScatterElements ScatterND
Selu Sigmoid Sign Silu Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan
Tanh ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where Xor
"""
FOLDED_OPS = frozenset(_FOLDED.split())
"""Ops that may be folded: their time is proportional to their operands and results (MatMul and Gemm are limited)."""

BOUNDED_OPS = frozenset({"Compress", "NonZero", "Unique"})
"""Ops whose result is of unknown shape but not much larger than their operands."""


class Budget:
    """How many bytes folding may still make."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.left_bytes = MAX_BUDGET_BYTES + MAX_GROWTH * sum(map(_size_bytes, constants.values()))

    def fold(self, node: Node, arrays: Sequence[Array | None], types: Sequence[TensorType]) -> list[Array] | None:
        """The values of a node's outputs (`types` go with them), or None if it is better left to run time."""
        size_bytes = _cost_bytes(node, arrays, types)
        if size_bytes is None or size_bytes > self.left_bytes:
            return None
        try:
            results = _seen(node, arrays) or evaluate(node, arrays)
        except EvaluationError as error:
            if isinstance(error.__cause__, MemoryError):  # whether a node folds must not depend on the machine
                raise MemoryError(f"no memory for the constants of {node.op}") from error
            return None  # it will say so when the model runs
        values = [_tidy(node, value, kind) for value, kind in zip(results, types, strict=True)]
        if any(kind.shape not in (None, value.shape) for value, kind in zip(values, types, strict=True)):
            return None
        self.left_bytes -= sum(map(_size_bytes, values))
        return values


def _seen(node: Node, arrays: Sequence[Array | None]) -> list[Array] | None:
    """A result that is a view of the operand: weights are large, and whoever packs them reads them in any order."""
    array, order = arrays[0] if arrays else None, node.attrs.get("perm")
    if node.op != "Transpose" or node.domain or array is None or order is None or array.dtype.kind == "O":
        return None
    return [np.transpose(array, order)] if sorted(order) == list(range(array.ndim)) else None


def _cost_bytes(node: Node, arrays: Sequence[Array | None], types: Sequence[TensorType]) -> int | None:
    if node.op not in FOLDED_OPS or node.domain or (node.op == "Dropout" and len(node.inputs) > 2):
        return None
    given = [array for array in arrays if array is not None]
    read = sum(map(_size_bytes, given))
    if any(kind.shape is None for kind in types):
        return 8 * read if node.op in BOUNDED_OPS else None
    if node.op in ("MatMul", "Gemm"):
        depth = given[0].shape[0 if node.attrs.get("transA") else -1] if given[0].ndim else 1
        if prod(types[0].shape or ()) * depth > MAX_PRODUCTS:
            return None
    if node.op == "ConstantOfShape":
        return 0  # a view of one element, whatever the shape
    made = sum(prod(kind.shape or ()) * _item_bytes(kind.dtype) for kind in types)
    return made if made <= max(FREE_BYTES, MAX_GROWTH * read) else None


def _item_bytes(dtype: str) -> int:
    return 64 if dtype in ("string", "object") else np.dtype(dtype).itemsize


def _size_bytes(array: Array) -> int:
    return 0 if 0 in array.strides and array.size else array.nbytes


def _tidy(node: Node, value: Array, kind: TensorType) -> Array:
    if node.op in ("ConstantOfShape", "Transpose"):
        return value
    return np.asarray(value, None if kind.dtype in ("string", "object") else np.dtype(kind.dtype), order="C")
