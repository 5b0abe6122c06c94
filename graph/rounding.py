"""Rounding: tensors whose last bit decides what is computed, so that rewrites must not change it.

Most rewrites give the same bits. Those of the table in `docs/numerics.md` round in another way, which moves a result by
a few units in the last place, but where a step follows: just below 3 or just above, `Floor` answers 2 or 3. And where
an edge does: next to 0 a root is next to 0, or NaN. So what is *decisive* none of them may touch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import frexp

import numpy as np

from tunewright.codegen.expr.dtype import DType

from .evaluation.onnx_form import CONVOLUTIONS
from .ir import FLOAT_DTYPES, Array, Graph, Node

_CONTINUOUS = """
Abs Acos Acosh Add Asin Asinh Atan Atanh AveragePool BatchNormalization BlockQuantize CausalMask Celu Clip Concat Cos
Cosh CumSum CutToSize DepthToSpace Div Dropout Elu Erf Exp Expand Flatten Gather GatherElements GatherND Gelu
GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization LRN
LayerNormalization LeakyRelu Log LogSoftmax LpNormalization LpPool Max MaxPool Mean MeanVarianceNormalization Min Mish
Mul Neg PRelu Pad Pow RMSNormalization Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize RoundBlocks Selu Shape Sigmoid Silu Sin Sinh Size
Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh Tile Transpose Trilu Unsqueeze
Where WriteRows
"""
CONTINUOUS = frozenset(_CONTINUOUS.split())
"""Ops whose results move little where their float operands do, but for edges. All others count as step functions. The
steps of BlockQuantize are small, and no two runtimes agree on them to the last bit."""

ADDENDS = {"Add": 0, "Gemm": 2, "Sub": 0}
"""Op -> the position of its first addend."""

FACTORS = frozenset({"Div", "Mul"})

QUANTISING = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
"""Steps of which each is one of 256; a Cast to bytes cuts off instead, from whole numbers that are exact perhaps."""

_SELECTING = """
Abs Clip Concat CutToSize DepthToSpace Expand Flatten Gather GatherElements GatherND GlobalMaxPool Identity Max MaxPool
Min Neg Pad ReduceMax ReduceMin Relu Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where
WriteRows
"""
SELECTING = frozenset(_SELECTING.split())
"""Ops whose results are elements of their operands, perhaps without a sign: they round nothing. These may stand between
a cast to a narrow type and the one back."""

LEAST_SHIFT: Mapping[str, float] = {"float32": 2.0**10, "float16": 1.0, "bfloat16": 1.0}
"""Least constant that rounds by being added and subtracted again: float32 has 13 binary places left then."""

NARROW_FLOATS = frozenset(dtype.value for dtype in DType if dtype.is_narrow)


def decisive_tensors(graph: Graph, *, edges: bool = True) -> frozenset[str]:
    """The tensors of floats on whose last bits a step function depends, before sums of products or after them.

    Example: of `a = Conv(x, w); b = Mul(a, s); c = Relu(b); y = Floor(c)` these are a, b and c. With `edges` also
    those on which an op with an edge depends (`edge_operands`). Of what is quantised by its own range no bit decides:
    a rounding before is a small part of a step.

    A float32 that is cast to float16 and back is rounded on purpose: the float16 is decisive, not what it is made of.
    """
    tensors = {*_step_operands(graph), *(edge_operands(graph) if edges else ())}
    return frozenset(_ancestors(graph, tensors).union(_rounding_casts(graph)))


def decisive_convolutions(graph: Graph) -> frozenset[int]:
    """The convolutions, by number, of windows whose sums must not be Winograd's, which are less exact.

    A step function other than quantising reads them; or an op with an edge does, and their weights are short, so that
    they may be exactly at the edge.
    """
    steps = _ancestors(graph, _step_operands(graph, quantising=False))
    edges = _ancestors(graph, edge_operands(graph))
    windows = [
        (number, node)
        for number, node in enumerate(graph.nodes)  # while ranks are not known it has no shape of the kernel
        if node.op in CONVOLUTIONS and max(node.attrs.get("kernel_shape", ()), default=1) > 1
    ]
    return frozenset(
        number
        for number, node in windows
        if not steps.isdisjoint(node.outputs) or (not edges.isdisjoint(node.outputs) and has_short_weights(graph, node))
    )


def _ancestors(graph: Graph, names: Iterable[str]) -> set[str]:
    """The tensors and the floats that they are computed from, up to sums of products that are rounded anyhow.

    (Else no layer of a classifier that ends in ArgMax could be touched.)
    """
    tensors = set(names)
    for node in reversed(graph.nodes):
        if not tensors.isdisjoint(node.outputs) and not is_rounded(graph, node):
            tensors.update(graph.float_tensors(node.inputs))
    return tensors


def _step_operands(graph: Graph, *, quantising: bool = True) -> Iterable[str]:
    """The floats that step functions read, outside too. With `quantising` false, ops of QUANTISING don't count."""
    yield from graph.float_tensors(port.tensor for port in graph.outputs if port.is_decisive)
    rounded, ranges = set(_rounding_sums(graph)), _Ranges.of(graph)
    for node in graph.nodes:
        is_step = _is_step(graph, node) and (quantising or node.op not in QUANTISING)
        if (is_step and not ranges.has(node)) or not rounded.isdisjoint(node.outputs):
            yield from graph.float_tensors(node.inputs)


@dataclass(frozen=True, slots=True)
class _Ranges:
    """How DynamicQuantizeLinear makes its scale and its zero point, as `quantised_ops` writes it: see `of`."""

    sources: Mapping[str, str]  # range or scale -> the numbers that it is of
    least: Mapping[str, str]  # the negative of a minimum -> what it is of
    guards: Collection[str]  # comparisons with 0 by which an empty range is told

    @staticmethod
    def of(graph: Graph) -> _Ranges:
        """Those of `low = Min(ReduceMin(x), 0); high = Max(ReduceMax(x), 0); r = Sub(high, low)`, over all axes.

        The scale is `Div(Where(Equal(r, 0), c, r), c)`, and the zero point is made of `Neg(low)`.
        """
        extremes: dict[tuple[str, str], str] = {}  # op and result -> what the extreme is of
        sources, least, guards = dict[str, str](), dict[str, str](), set[str]()
        for node in graph.nodes:
            if node.domain or not node.inputs or len(node.outputs) != 1:
                continue
            (result,), (first, *others) = node.outputs, node.inputs
            is_known = graph.constants.keys() >= set(others)
            match node.op:
                case "ReduceMax" | "ReduceMin" if graph.types[result].shape == ():
                    extremes[node.op, result] = first
                case "Max" | "Min" if is_known and (f"Reduce{node.op}", first) in extremes:
                    extremes[f"Reduce{node.op}", result] = extremes[f"Reduce{node.op}", first]
                case "Neg" if ("ReduceMin", first) in extremes:
                    least[result] = extremes["ReduceMin", first]
                case "Sub":
                    high, low = extremes.get(("ReduceMax", first)), extremes.get(("ReduceMin", others[0]))
                    if high is not None and high == low:
                        sources[result] = high
                case "Equal" if first in sources and is_known and not np.any(graph.constants[others[0]]):
                    guards.add(result)
                case "Where" if first in guards and others[1] in sources and others[0] in graph.constants:
                    sources[result] = sources[others[1]]
                case "Div" if first in sources and is_known:
                    sources[result] = sources[first]
        used = {name for node in graph.nodes if node.op != "Where" for name in node.inputs}
        used.update(port.tensor for port in graph.outputs)
        return _Ranges(sources, least, guards - used)

    def has(self, node: Node) -> bool:
        """Whether a node quantises floats by their own range, or is a part of that."""
        match node.op:
            case "DynamicQuantizeLinear":
                return True
            case "QuantizeLinear":
                source = self.sources.get(node.inputs[1])
                return source is not None and source in (node.inputs[0], self.least.get(node.inputs[0]))
            case "Equal":
                return node.outputs[0] in self.guards
        return False


def _is_step(graph: Graph, node: Node) -> bool:
    """Whether a small change of the operands may change the results much."""
    if node.domain:
        return True
    match node.op:
        case "Cast":
            return not graph.types[node.outputs[0]].is_float
        case "MaxPool":
            return len(node.outputs) > 1  # tells where the largest are
        case "Resize":
            return len(node.inputs) > 1  # by factors that are floats
    return node.op not in CONTINUOUS and node.op not in SUMS_OF_PRODUCTS


def _rounding_sums(graph: Graph) -> Iterable[str]:
    """Results of taking away what was added before: so floats are rounded, to whole numbers by 1.5 * 2^23.

    The tensor added and subtracted is the same, or both are constants, the first one large. Selections and factors may
    stand in between.
    """
    shifted: set[str] = set()
    added: dict[str, frozenset[str]] = {}  # what is in a sum, perhaps moved
    for node in graph.nodes:
        if node.domain:
            continue
        if _is_selection(node) or node.op in FACTORS:
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


def _is_selection(node: Node) -> bool:
    """Whether results are elements of operands."""
    return node.op in SELECTING or (node.op == "Resize" and node.attrs.get("mode", "nearest") == "nearest")


def _rounding_casts(graph: Graph) -> Iterable[str]:
    """Narrow floats that are made of others and become such again, with no computation in between."""
    rounded: set[str] = set()
    for node in graph.nodes:
        if node.domain:
            continue
        if _is_selection(node) and not rounded.isdisjoint(node.inputs):
            rounded.update(filter(None, node.outputs))
        elif node.op == "Cast":
            source_dtype, result_dtype = (graph.types[name].dtype for name in (node.inputs[0], node.outputs[0]))
            if result_dtype == source_dtype:
                rounded.update(node.outputs if node.inputs[0] in rounded else ())
            elif source_dtype in FLOAT_DTYPES and result_dtype in FLOAT_DTYPES:
                if node.inputs[0] in rounded:
                    yield node.inputs[0]
                if result_dtype in NARROW_FLOATS:
                    rounded.add(node.outputs[0])


# Sums of products, and whether they are exact


SUMS_OF_PRODUCTS = frozenset(
    {
        *("BlockMatMul", "Conv", "ConvNarrow", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul", "MatMulNarrow", "RNN"),
        "Recurrence",
    }
)

SHORT_BITS = 12
"""Weights are short that are whole numbers of so many bits, or such times a power of two: their products with other
short numbers, and the sums of these, are exact."""

_SAMPLE = 64
"""Weights that are looked at first: of trained ones hardly any is short."""


def is_rounded(graph: Graph, node: Node) -> bool:
    """Whether the node sums products, of weights that are not short.

    Then the order of the terms, which is free, decides on the last bits, and not those of its operands.
    """
    return node.op in SUMS_OF_PRODUCTS and not node.domain and not has_short_weights(graph, node)


def has_short_weights(graph: Graph, node: Node) -> bool:
    """Whether a sum of products has known weights, and they are whole numbers of SHORT_BITS, times a power of two."""
    known = [graph.constants[name] for name in node.inputs[:2] if name in graph.constants]
    return bool(known) and all(_is_short(array.reshape(-1)[:_SAMPLE]) and _is_short(array) for array in known)


def _is_short(array: Array) -> bool:
    if array.dtype.name not in FLOAT_DTYPES:
        return False
    wide = array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        _, exponent = np.frexp(np.abs(wide).max(initial=0))
        whole = np.ldexp(wide, SHORT_BITS - int(exponent))
        return bool(np.all(whole == np.rint(whole)))


# Edges and poles: where a root, a logarithm or a quotient ends, or has no bound.
#
# A rounding carries a result over the edge: the root of an exact 0 becomes that of -1e-8, which is NaN, and 1 / 0 a
# large number. So what is read there must not be rounded in another way. Most edges are at 0, and most of what is
# divided by is away from it: sums of exponentials in Softmax, of squares and a constant in norms. That is told by the
# signs of tensors.


AT_ONE = frozenset({"Acos", "Acosh", "Asin", "Atanh"})
"""Ops with edges at 1, or at 1 and -1."""

AT_ZERO = frozenset({"Log", "LpNormalization", "Reciprocal", "ReduceLogSum", "Sqrt"})
"""Ops with an edge or a pole at 0. So have Div, where 0 / 0 is one too, and Pow."""

POSITIVE = frozenset({"Exp", "Sigmoid", "Softmax", "Softplus"})
"""Ops whose results are above 0, with an error that is relative to them."""

NOT_NEGATIVE = frozenset({"Abs", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu"})

MERGING = frozenset({"Add", "Clip", "Max", "Sum"})
"""Ops whose results are as far from 0 as one of their operands, or a bound, may be."""

_KEEPING = """
AveragePool Concat Div Expand Flatten Gather GatherElements GatherND GlobalAveragePool GlobalMaxPool Identity MaxPool
Mean Min Mul Pow Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Reshape Slice Split Sqrt Squeeze Tile
Transpose Unsqueeze Where
"""
KEEPING = frozenset(_KEEPING.split())
"""Ops whose results are as far from 0 as the nearest of their operands, about."""

LEAST = 2.0**-20
"""Least value that counts as away from 0: rounding errors of float32 are below it."""


class Sign(IntEnum):
    """What is known of the sign of a tensor's elements: nothing, not negative, or LEAST and more."""

    ANY = 0
    NOT_NEGATIVE = 1
    AWAY = 2


def edge_operands(graph: Graph) -> Iterable[str]:
    """The tensors of floats that ops read at an edge or a pole, or perhaps there.

    Example: of `a = MatMul(x, w); b = Sub(1, a); y = Sqrt(b)` this is b; of `b = Exp(a); y = Sqrt(b)` none.
    """
    signs = _signs(graph)
    for node in graph.nodes:
        if not node.domain:
            yield from graph.float_tensors(_edge_inputs(graph, node, signs))


def _edge_inputs(graph: Graph, node: Node, signs: Mapping[str, Sign]) -> tuple[str, ...]:
    if node.op in AT_ONE:
        return node.inputs[:1]
    if node.op in AT_ZERO and signs[node.inputs[0]] < Sign.AWAY:
        return node.inputs[:1]
    if node.op == "Div" and signs[node.inputs[1]] < Sign.AWAY:
        divisor = graph.constants.get(node.inputs[1])
        return node.inputs if divisor is None or not np.all(divisor) else ()  # the dividend too: 0 / 0 is NaN
    if node.op == "Pow" and signs[node.inputs[0]] < Sign.AWAY:
        exponent = graph.constants.get(node.inputs[1])
        is_whole = exponent is not None and np.all(np.abs(exponent) == np.rint(exponent))
        return () if is_whole else node.inputs
    return ()


def _signs(graph: Graph) -> dict[str, Sign]:
    """The sign of each tensor; of constants, which may be large, where an edge depends on them."""
    signs = dict.fromkeys(graph.types, Sign.ANY)
    read = _tensors_before_edges(graph)
    signs.update((name, _constant_sign(array)) for name, array in graph.constants.items() if name in read)
    for node in graph.nodes:
        if not node.domain:
            operands = [signs[name] for name in graph.float_tensors(node.inputs)]
            signs.update(dict.fromkeys(node.outputs, _sign(graph, node, operands)))
    return signs


def _tensors_before_edges(graph: Graph) -> set[str]:
    """The tensors whose signs `_edge_inputs` asks for, and those that these follow from."""
    names: set[str] = set()
    for node in reversed(graph.nodes):
        if node.domain:
            continue
        if node.op in AT_ZERO or node.op == "Pow":
            names.add(node.inputs[0])
        elif node.op == "Div":
            names.add(node.inputs[1])
        if not names.isdisjoint(node.outputs) and (node.op in MERGING or node.op in NOT_NEGATIVE or node.op in KEEPING):
            names.update(node.inputs)
    return names


def _constant_sign(array: Array) -> Sign:
    if array.dtype.name not in FLOAT_DTYPES or not array.size:
        return Sign.ANY
    with np.errstate(invalid="ignore"):  # that of a bfloat16 NaN warns
        least = float(array.min())
    return Sign.AWAY if least >= LEAST else Sign.NOT_NEGATIVE if least >= 0 else Sign.ANY


def _sign(graph: Graph, node: Node, operands: list[Sign]) -> Sign:
    """The sign of a node's results, from the signs of its float operands."""
    if node.op in POSITIVE:
        return Sign.AWAY
    least, most = min(operands, default=Sign.ANY), max(operands, default=Sign.ANY)
    match node.op:
        case "Add" | "Sum":
            return most if least else Sign.ANY
        case "Max":
            return most
        case "Clip" if "min" in node.attrs:
            return max(most, _constant_sign(np.asarray(node.attrs["min"], np.float64)))
    if node.op in NOT_NEGATIVE or _is_square(graph, node):
        return max(least, Sign.NOT_NEGATIVE)
    return least if node.op in KEEPING else Sign.ANY


def _is_square(graph: Graph, node: Node) -> bool:
    if node.op == "Pow":
        exponent = graph.constants.get(node.inputs[1])
        return exponent is not None and bool(np.all(exponent == np.asarray(2.0, exponent.dtype)))
    return node.op == "Mul" and node.inputs[0] == node.inputs[1]


def has_exact_inverse(value: float, dtype: str) -> bool:
    """Whether 1 / value is a float of that type, and not a subnormal: so it is of powers of two."""
    if abs(frexp(value)[0]) != 0.5:
        return False
    limits = np.finfo(dtype)
    return float(limits.tiny) <= abs(1 / value) <= float(limits.max)
