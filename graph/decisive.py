"""Where the last bit decides: tensors that a step function reads, however far ahead of it they are made.

Most rewrites give the same bits. Those of the table in `docs/numerics.md` round in another way, which moves a result by
a few units in the last place, but where a step follows: just below 3 or just above, `Floor` answers 2 or 3. So what is
*decisive* none of them may touch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tunewright.codegen.dtype import DType

from .channels import CONVOLUTIONS
from .ir import Graph, Node

SUMS = frozenset({"Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul", "RNN", "Recurrence"})
"""Sums of products, where a way back ends: the order of their terms is free, so their operands' last bits are not what
decides. (Else no layer of a classifier that ends in ArgMax could be touched.)"""

_CONTINUOUS = """
Abs Acos Acosh Add Asin Asinh Atan Atanh AveragePool BatchNormalization Celu Clip Concat Cos Cosh CumSum DepthToSpace
Div Dropout Elu Erf Exp Expand Flatten Gather GatherElements GatherND Gelu GlobalAveragePool GlobalLpPool GlobalMaxPool
GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization LRN LayerNormalization LeakyRelu Log LogSoftmax
LpNormalization LpPool Max MaxPool Mean MeanVarianceNormalization Min Mish Mul Neg PRelu Pad Pow RMSNormalization
Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare Relu Reshape Resize Selu Shape Sigmoid Silu Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth
Split Sqrt Squeeze Sub Sum Swish Tan Tanh Tile Transpose Trilu Unsqueeze Where
"""
CONTINUOUS = frozenset(_CONTINUOUS.split())
"""Ops whose results move little where their float operands do. All others count as step functions."""

ADDITIONS = frozenset({"Add", "Sub"})

QUANTISING = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
"""Steps of which each is one of 256; a Cast to bytes cuts off instead, from whole numbers that are exact perhaps."""

BETWEEN_CASTS = frozenset(
    {"Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Ops that may stand between a cast to a narrow type and the one back: they only move elements."""

LEAST_SHIFT = 2.0**10
"""Of constants that are added and taken away again to round: after this one float32 has 13 binary places left."""

FLOATS = frozenset(dtype.value for dtype in DType if dtype.is_float)
NARROW_FLOATS = frozenset(dtype.value for dtype in DType if dtype.is_narrow)


def decisive(graph: Graph, *, quantising_is_a_step: bool = True) -> frozenset[str]:
    """The tensors of floats on whose last bits a step function depends, before sums of products or after them.

    Example: of `a = Conv(x, w); b = Mul(a, s); c = Relu(b); y = Floor(c)` these are a, b and c. Quantising
    is no step function to those who can bear that one of 256 steps is taken for the next.

    A float32 that is cast to float16 and back is rounded on purpose: the float16 is decisive, not what it is made of.
    """
    found: set[str] = set()
    rounded = set(_rounded_by_additions(graph))
    for node in reversed(graph.nodes):
        is_step = _is_step(graph, node) and (quantising_is_a_step or node.op not in QUANTISING)
        is_before_one = not found.isdisjoint(node.outputs) and (node.op not in SUMS or node.domain)
        if is_step or is_before_one or rounded.intersection(node.outputs):
            found.update(_floats(graph, node.inputs))
    return frozenset(found.union(_rounded_by_casts(graph)))


def _is_step(graph: Graph, node: Node) -> bool:
    """Whether the node may answer a little change with a large one."""
    if node.domain:
        return True
    match node.op:
        case "Cast":
            return graph.types[node.outputs[0]].dtype not in FLOATS
        case "MaxPool":
            return len(node.outputs) > 1  # tells where the largest are
        case "Resize":
            return len(node.inputs) > 1  # by factors that are floats
    return node.op not in CONTINUOUS and node.op not in SUMS


def decisive_convolutions(graph: Graph) -> frozenset[int]:
    """The convolutions, by number, of windows whose sums a step function other than quantising reads."""
    found = decisive(graph, quantising_is_a_step=False)
    windows = [(number, node) for number, node in enumerate(graph.nodes) if node.op in CONVOLUTIONS and _slides(node)]
    return frozenset(number for number, node in windows if not found.isdisjoint(node.outputs))


def _slides(node: Node) -> bool:
    return max(node.attrs["kernel_shape"], default=1) > 1


def _rounded_by_additions(graph: Graph) -> Iterable[str]:
    """Results of one constant added after another large one: so floats are rounded, to whole numbers by 1.5 * 2^23."""
    shifted: set[str] = set()
    for node in graph.nodes:
        if node.op not in ADDITIONS or node.domain:
            continue
        added = [graph.constants[name] for name in node.inputs if name in graph.constants]
        if added and not shifted.isdisjoint(node.inputs):
            yield node.outputs[0]
        if any(np.abs(array).max(initial=0) >= LEAST_SHIFT for array in added):
            shifted.add(node.outputs[0])


def _rounded_by_casts(graph: Graph) -> Iterable[str]:
    """Narrow floats that are made of wide ones and become such again, with no computation in between."""
    rounded: set[str] = set()
    for node in graph.nodes:
        if node.domain:
            continue
        if node.op in BETWEEN_CASTS and not rounded.isdisjoint(node.inputs):
            rounded.update(filter(None, node.outputs))
        elif node.op == "Cast":
            given, made = (graph.types[name].dtype for name in (node.inputs[0], node.outputs[0]))
            if given in FLOATS - NARROW_FLOATS and made in NARROW_FLOATS:
                rounded.add(node.outputs[0])
            elif made in FLOATS - NARROW_FLOATS and node.inputs[0] in rounded:
                yield node.inputs[0]


def _floats(graph: Graph, names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name and graph.types[name].dtype in FLOATS)
