"""The error of each op by rounding: none, a few units in the last place, or that of another order of sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import TensorProto

from tunewright.graph.ir import Node

EXACT = frozenset({
    "Abs", "Add", "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
    "Cast", "CastLike", "Ceil", "CenterCropPad", "Clip", "Compress", "Concat", "ConcatFromSequence", "Constant",
    "ConstantOfShape", "ConvInteger", "DepthToSpace", "DequantizeLinear", "Div", "Dropout", "Equal", "Expand",
    "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "GlobalMaxPool", "Greater",
    "GreaterOrEqual", "Hardmax", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "MatMulInteger",
    "Max", "MaxPool", "MaxUnpool", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "OneHot", "Optional",
    "OptionalGetElement", "OptionalHasElement", "Or", "PRelu", "Pad", "QuantizeLinear", "Range", "Reciprocal",
    "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round", "Scatter", "ScatterElements",
    "ScatterND", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SequenceLength", "Shape", "Shrink", "Sign", "Size", "Slice", "SpaceToDepth", "Split", "SplitToSequence",
    "Sqrt", "Squeeze", "Sub", "TensorScatter", "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu", "Unique",
    "Unsqueeze", "Where", "Xor",
})  # fmt: skip
"""Ops whose result is defined to the last bit."""

CURVES = frozenset({
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BlackmanWindow", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
    "Gelu", "HammingWindow", "HannWindow", "HardSigmoid", "HardSwish", "Log", "Mish", "Selu", "Sigmoid",
    "Silu", "Sin", "Sinh", "Softplus", "Softsign", "Swish", "Tan", "Tanh",
})  # fmt: skip
"""Elementwise ops whose results are off by a few units in the last place."""

STEPS = frozenset({
    "ArgMax", "ArgMin", "Cast", "Ceil", "Compress", "DynamicQuantizeLinear", "Equal", "Floor", "Greater",
    "GreaterOrEqual", "Hardmax", "If", "IsInf", "IsNaN", "Less", "LessOrEqual", "Loop", "Mod", "NonZero",
    "QLinearConv", "QLinearMatMul", "QuantizeLinear", "Round", "Sign", "TopK", "Unique",
})  # fmt: skip
"""Step functions: the smallest difference may change their result."""

FLOAT_TYPES = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})

CANCELLING = frozenset({
    "BlackmanWindow", "Celu", "Elu", "GRU", "HammingWindow", "HannWindow", "HardSigmoid", "LSTM", "LogSoftmax",
    "NegativeLogLikelihoodLoss", "RNN", "ReduceLogSum", "ReduceLogSumExp", "Selu", "SoftmaxCrossEntropyLoss",
})  # fmt: skip
"""Ops whose formulas add or subtract about 1: their error is that of rounding 1."""

CANCELLING_BY_OPERAND = frozenset({"Gelu", "HardSwish"})
"""Curves that are a product of the operand with such a formula."""

TURNING = frozenset({"DFT", "STFT"})
"""Sums with factors that are sines, whose error is absolute: relative to the sum of all terms."""


LINEAR = frozenset({
    "AveragePool", "Col2Im", "Conv", "ConvTranspose", "CumSum", "DFT", "Einsum", "Gemm", "GlobalAveragePool", "MatMul",
    "Mean", "ReduceL1", "ReduceMean", "ReduceSum", "STFT", "Sum",
})  # fmt: skip
"""Sums whose terms are bounded by the sizes of the operands."""

UNSIGNED = LINEAR | {
    "Clip", "GlobalMaxPool", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu",
}  # fmt: skip
"""Ops that may give 0 or -0 where an operand has the other: a maximum or a sum of the two may be either."""

NORMS = frozenset({
    "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
    "MeanVarianceNormalization",
})  # fmt: skip
"""Ops that subtract a mean and divide by a deviation."""

GATED = frozenset({"GRU", "LSTM", "RNN"})
"""Recurrent ops, whose states are moved on by sigmoids and their kind."""

SQUARING = (
    NORMS | GATED | {"Attention", "GlobalLpPool", "LRN", "LpNormalization", "LpPool", "ReduceL2", "ReduceSumSquare"}
)
"""Ops that add up products of operands and then scale them down."""

COARSE = NORMS | GATED | {
    "Celu", "Elu", "Erf", "Gelu", "Mish", "Resize", "Selu", "Sigmoid", "Softplus", "Swish", "Tanh",
}  # fmt: skip
"""Ops that others compute by approximations with an absolute error, or by formulas that cancel."""

EXPONENTIAL_UNITS = frozenset({"Celu", "Elu", "Selu"})
"""Ops whose formula subtracts an attribute from its product with an exponential."""

REGROUPED = frozenset({"Mul", "Div", "Reciprocal", "LeakyRelu", "PRelu"})
"""Products, which rewrites may combine where no step function reads a result of them."""

MOVING = frozenset({
    "CenterCropPad", "Compress", "Concat", "ConcatFromSequence", "ConstantOfShape", "DepthToSpace", "Expand", "Flatten",
    "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape", "ReverseSequence", "SequenceAt",
    "SequenceConstruct", "SequenceErase", "SequenceInsert", "Slice", "SpaceToDepth", "Split", "SplitToSequence",
    "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze",
})  # fmt: skip
"""Ops that only move elements."""

FORMULAS = frozenset({"Add", "DequantizeLinear", "Div", "LeakyRelu", "Mul", "Reciprocal", "Sqrt", "Sub"})
"""Exact ops that are not exact within a call of another op, which may be computed by another formula."""

UNCALCULATED = frozenset({
    "ai.onnx.ml.ArrayFeatureExtractor", "ai.onnx.ml.Binarizer", "ai.onnx.ml.FeatureVectorizer", "ai.onnx.ml.Imputer",
    "ai.onnx.ml.LabelEncoder", "ai.onnx.ml.OneHotEncoder",
})  # fmt: skip
"""Ops of other domains that only choose among numbers, NaN too."""

INDEXED: Mapping[str, Sequence[int]] = {
    "Gather": (1,),
    "GatherElements": (1,),
    "GatherND": (1,),
    "OneHot": (0,),
    "Where": (0,),
}
"""Positions of the operands that choose among the others."""


def is_exact(node: Node) -> bool:
    """Whether a node has exactly one right result."""
    if node.domain:
        return False
    match node.op:
        case "Resize":
            return bool(node.attrs.get("mode", "nearest") == "nearest")
        case "Sum":
            return len(node.inputs) <= 2
        case "ScatterElements" | "ScatterND":
            return node.attrs.get("reduction", "none") in ("none", "max", "min")
    return node.op in EXACT


def unread_by_steps(nodes: Sequence[Node]) -> frozenset[str]:
    """Tensors that no step function depends on."""
    read: set[str] = set()
    for node in reversed(nodes):
        if _is_step(node) or any(name in read for name in node.outputs):
            read.update(node.inputs)
        for position in INDEXED.get(node.op, ()):
            read.update(node.inputs[position : position + 1])
    return frozenset(name for node in nodes for name in node.outputs if name and name not in read)


def _is_step(node: Node) -> bool:
    """Whether a node is a step function. A cast between floats is one more rounding."""
    return node.op in STEPS and not (node.op == "Cast" and node.attrs["to"] in FLOAT_TYPES)


def is_moving(node: Node) -> bool:
    """Whether a node only moves elements."""
    return node.op in MOVING
