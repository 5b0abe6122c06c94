"""Where the last bit decides: tensors that a step function or an edge reads, however far ahead of it they are made.

Most rewrites give the same bits. Those of the table in `docs/numerics.md` round in another way, which moves a result by
a few units in the last place, but where a step follows: just below 3 or just above, `Floor` answers 2 or 3. And where
an edge does: next to 0 a root is next to 0, or NaN. So what is *decisive* none of them may touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tunewright.codegen.dtype import DType

from . import exact_sums
from .channels import CONVOLUTIONS
from .ir import Graph, Node
from .singularities import FLOATS, floats, read_at_edges

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
"""Ops whose results move little where their float operands do, but for edges. All others count as step functions."""

ADDENDS = {"Add": 0, "Gemm": 2, "Sub": 0}
"""From which operand on an op's operands are added."""

FACTORS = frozenset({"Div", "Mul"})

QUANTISING = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
"""Steps of which each is one of 256; a Cast to bytes cuts off instead, from whole numbers that are exact perhaps."""

_SELECTING = """
Abs Clip Concat DepthToSpace Expand Flatten Gather GatherElements GatherND GlobalMaxPool Identity Max MaxPool Min Neg
Pad ReduceMax ReduceMin Relu Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where
"""
SELECTING = frozenset(_SELECTING.split())
"""Ops whose results are elements of their operands, perhaps without a sign: they round nothing. These may stand between
a cast to a narrow type and the one back."""

LEAST_SHIFT: Mapping[str, float] = {"float32": 2.0**10, "float16": 1.0, "bfloat16": 1.0}
"""Of constants that are added and taken away again to round: after this one float32 has 13 binary places left."""

NARROW_FLOATS = frozenset(dtype.value for dtype in DType if dtype.is_narrow)


def decisive(graph: Graph, *, edges: bool = True) -> frozenset[str]:
    """The tensors of floats on whose last bits a step function depends, before sums of products or after them.

    Example: of `a = Conv(x, w); b = Mul(a, s); c = Relu(b); y = Floor(c)` these are a, b and c. With `edges` also
    those on which an op with an edge depends (`graph.singularities`).

    A float32 that is cast to float16 and back is rounded on purpose: the float16 is decisive, not what it is made of.
    """
    found = {*_read_by_steps(graph), *(read_at_edges(graph) if edges else ())}
    return frozenset(_back(graph, found).union(_rounded_by_casts(graph)))


def decisive_convolutions(graph: Graph) -> frozenset[int]:
    """The convolutions, by number, of windows whose sums must not be Winograd's, which are less exact.

    A step function other than quantising reads them; or an op with an edge does, and their weights are short, so that
    they may be exactly at the edge.
    """
    steps = _back(graph, _read_by_steps(graph, quantising=False))
    edges = _back(graph, read_at_edges(graph))
    windows = [(number, node) for number, node in enumerate(graph.nodes) if node.op in CONVOLUTIONS and _slides(node)]
    return frozenset(
        number
        for number, node in windows
        if not steps.isdisjoint(node.outputs)
        or (not edges.isdisjoint(node.outputs) and exact_sums.has_short_weights(graph, node))
    )


def _back(graph: Graph, names: Iterable[str]) -> set[str]:
    """These tensors and all floats that they are made of, as far as sums of products that are rounded anyhow.

    (Else no layer of a classifier that ends in ArgMax could be touched.)
    """
    found = set(names)
    for node in reversed(graph.nodes):
        if not found.isdisjoint(node.outputs) and not exact_sums.is_rounded(graph, node):
            found.update(floats(graph, node.inputs))
    return found


def _read_by_steps(graph: Graph, *, quantising: bool = True) -> Iterable[str]:
    """The floats that step functions read. Quantising is none to those who can bear one of 256 steps for the next."""
    rounded = set(_rounded_by_additions(graph))
    for node in graph.nodes:
        is_step = _is_step(graph, node) and (quantising or node.op not in QUANTISING)
        if is_step or not rounded.isdisjoint(node.outputs):
            yield from floats(graph, node.inputs)


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
    return node.op not in CONTINUOUS and node.op not in exact_sums.OPS


def _slides(node: Node) -> bool:
    return max(node.attrs.get("kernel_shape", ()), default=1) > 1  # it has none while ranks are not known


def _rounded_by_additions(graph: Graph) -> Iterable[str]:
    """Results of taking away what was added before: so floats are rounded, to whole numbers by 1.5 * 2^23.

    Either is it the same tensor, or both are constants, the first one large. Ops that select may stand in between, and
    factors.
    """
    shifted: set[str] = set()
    added: dict[str, frozenset[str]] = {}  # what is in a sum, perhaps moved
    for node in graph.nodes:
        if node.domain:
            continue
        if _selects(node) or node.op in FACTORS:
            if not shifted.isdisjoint(node.inputs):
                shifted.update(node.outputs)
            terms = frozenset().union(*(added.get(name, ()) for name in node.inputs))
            added.update(dict.fromkeys(node.outputs, terms) if terms else {})
        elif node.op in ADDENDS:
            addends = node.inputs[ADDENDS[node.op] :]
            constants = [graph.constants[name] for name in addends if name in graph.constants]
            again = any(not added.get(name, frozenset()).isdisjoint(addends) for name in addends)
            if again or (constants and not shifted.isdisjoint(addends)):
                yield node.outputs[0]
            least = LEAST_SHIFT.get(graph.types[node.outputs[0]].dtype, np.inf)
            if any(np.abs(array).max(initial=0) >= least for array in constants):
                shifted.add(node.outputs[0])
            added[node.outputs[0]] = frozenset(addends) - graph.constants.keys()


def _selects(node: Node) -> bool:
    """Whether results are elements of operands."""
    return node.op in SELECTING or (node.op == "Resize" and node.attrs.get("mode", "nearest") == "nearest")


def _rounded_by_casts(graph: Graph) -> Iterable[str]:
    """Narrow floats that are made of others and become such again, with no computation in between."""
    rounded: set[str] = set()
    for node in graph.nodes:
        if node.domain:
            continue
        if _selects(node) and not rounded.isdisjoint(node.inputs):
            rounded.update(filter(None, node.outputs))
        elif node.op == "Cast":
            given, made = (graph.types[name].dtype for name in (node.inputs[0], node.outputs[0]))
            if made == given:
                rounded.update(node.outputs if node.inputs[0] in rounded else ())
            elif given in FLOATS and made in FLOATS:
                if node.inputs[0] in rounded:
                    yield node.inputs[0]
                if made in NARROW_FLOATS:
                    rounded.add(node.outputs[0])
