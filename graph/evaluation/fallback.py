"""Evaluation of any node by ONNX's reference evaluator: slow, but right.

The runtime uses it for what has no native kernel, constant folding (`FoldingBudget`) for what is known before the first
run. Not meant for hostile models outside of a limited process (ONNX's own word about its evaluator).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from threading import Lock
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator, ops
from onnx.reference.op_run import OpRun, RuntimeContextError
from onnx.reference.ops import aionnx_preview, aionnx_preview_training, aionnxml

from ..block_product import LARGEST_ROUNDED, LEAST_BLOCK
from ..ir import Array, Node, TensorType
from .causal import CAUSAL, causal_mask
from .control_flow import CONTROL_FLOW
from .corrections import correct_op, override_op
from .coupling import COUPLE, couple_pairs
from .elements import ELEMENTS, SaturatingQuantize
from .folds import FOLDS, BatchNormInference
from .images import IMAGES, RoiAlignBefore16, sample_images
from .onnx_form import (
    CAPTURES,
    IN_ELEMENTS,
    dtype_name,
    element_type,
    input_to_first,
    is_channels_last,
    last_from_first,
    model_of,
)
from .recurrent import RECURRENT, evaluate_recurrence
from .rows import WRITE, write_rows
from .sizes import CUT, cut_to_size
from .windows import WINDOWS

CORRECTIONS: list[type[OpRun]] = [
    *(correct_op(*row) for table in (ELEMENTS, FOLDS, IMAGES, RECURRENT, WINDOWS) for row in table.items()),
    *CONTROL_FLOW,
    override_op("BatchNormalization", BatchNormInference),
    override_op("DequantizeLinear"),  # that of the newest opset: older ones have fewer types and attributes
    override_op("QuantizeLinear", SaturatingQuantize),
    override_op("RoiAlign", RoiAlignBefore16),
]
"""Classes for the evaluator's `new_ops`, so that they hold inside bodies as well."""

MAX_EVALUATORS = 4096
"""Most evaluators kept."""

_evaluators: OrderedDict[Any, ReferenceEvaluator] = OrderedDict()
_lock = Lock()

# What the evaluator, foreign code that was never meant for production, raises on operands that don't fit, and where it
# would need a package that isn't there.
_FAULTS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, NotImplementedError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip


class EvaluationError(RuntimeError):
    """A node that could not be computed: operands that don't fit, or an op that the reference doesn't know."""


def evaluate(node: Node, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of one node in the meaning of its own opset version; None for an absent output.

    `arrays` goes with `node.inputs`, None where one is absent; for control flow the captured tensors come last. A value
    is an array, or a list where ONNX has a sequence. Shapes are what the values say: a caller that relies on the
    graph's types must compare. Evaluators are kept, so a second call is cheap. Raises EvaluationError.
    """
    try:
        with np.errstate(all="ignore"):
            if is_channels_last(node):
                return _channels_last(node, arrays)
            return _evaluate(node, arrays)
    except _FAULTS as error:
        operands = ", ".join(map(_describe, arrays)) or "nothing"
        raise EvaluationError(
            f"{node.place or node.op} can't be computed from {operands}: {_message(error)}"
        ) from error


def _origin(error: BaseException) -> BaseException:
    """The first cause: the evaluator wraps what a body raises in errors that say nothing."""
    return error if error.__cause__ is None else _origin(error.__cause__)


def _message(error: BaseException) -> str:
    """The first cause in one line, with the error's type where its text is a single word."""
    origin = _origin(error)
    text = " ".join(str(origin).split())
    return text if " " in text else f"{type(origin).__name__} {text}".rstrip()


def _describe(value: Any) -> str:
    """An operand for people."""
    match value:
        case None:
            return "none"
        case list():
            return f"a sequence of {len(value)}"
        case _:
            return str(TensorType(dtype_name(value), np.shape(value)))


def _evaluate(node: Node, arrays: Sequence[Any]) -> list[Any]:
    if node.op == "Recurrence" and not node.domain:
        return evaluate_recurrence(node, arrays)
    function = _OWN.get(node.op)
    if function is not None and not node.domain:
        result = function(node, *arrays)
        if result is not None:
            return list(result) if isinstance(result, tuple) else [result]
    evaluator = _evaluator(node, arrays)
    captures = node.attrs.get(CAPTURES, ())
    names = [f"i{k}" for k in range(len(arrays) - len(captures))] + list(captures)
    feeds = {name: value for name, value, input_name in zip(names, arrays, node.inputs, strict=True) if input_name}
    results = iter(evaluator.run(None, feeds))
    return [_array(next(results)) if name else None for name in node.outputs]


def _array(value: Any) -> Any:
    """The value as the graph has it: texts are objects, whatever length numpy's are."""
    if isinstance(value, list) or value is None:
        return value
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "UST" else array


def _silu(node: Node, x: Any) -> Array:
    wide = np.asarray(x, np.result_type(x.dtype, np.float32))
    return np.asarray(wide * (1 / (1 + np.exp(-wide))), x.dtype)


def _reshape(node: Node, x: Array, *shape: Array) -> Array:
    """Ahead of the reference's for speed alone: rewrites fold many of them."""
    extents = [int(n) for n in (shape[0] if shape else node.attrs["shape"])]
    if not node.attrs.get("allowzero", 0):
        extents = [x.shape[k] if n == 0 else n for k, n in enumerate(extents)]
    return np.reshape(x, extents)


def _constant_of_shape(node: Node, shape: Array) -> Array:
    """A view of one element: models keep whole weights in this form."""
    value = np.asarray(node.attrs.get("value", np.float32(0))).reshape(())
    return np.broadcast_to(value, tuple(map(int, shape)))


def _conv_narrow(node: Node, x: Any, w: Any, *bias: Any) -> Array:
    """The product of floats, of operands as they were rounded."""
    wide = replace(node, op="Conv")
    return np.asarray(_evaluate(wide, [x.astype(np.float32), w.astype(np.float32), *bias])[0])


def _matmul_narrow(node: Node, x: Any, w: Any) -> Array:
    return np.asarray(np.matmul(x.astype(np.float32), w.astype(np.float32)))


def _block_matmul(node: Node, x: Any, numbers: Any, scales: Any, zeros: Any = None, x_scales: Any = None) -> Array:
    kind, zero = x.dtype, node.attrs["zero"] if zeros is None else zeros[..., None]
    weights = (numbers.astype(np.float32) - zero) * scales[..., None].astype(np.float32)
    if x_scales is not None:
        x = (x.reshape(*x_scales.shape, -1) * x_scales[..., None]).reshape(x.shape)
    product = np.matmul(x.astype(np.float32), weights.reshape(len(numbers), -1).T)
    return np.asarray(product, np.float32 if x_scales is not None else kind)


def _block_quantize(node: Node, x: Any) -> tuple[Array, Any]:
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, node.attrs["size"])
    largest = np.abs(blocks).max(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = np.where(largest < np.inf, largest / np.float32(LARGEST_ROUNDED), np.float32(np.nan))
        factors = np.where(largest > LEAST_BLOCK, np.float32(1) / scales, np.float32(0))
        numbers = np.nan_to_num(np.rint(blocks * factors[..., None]), posinf=0, neginf=0).astype(np.int8)
    return numbers.reshape(x.shape), scales


def _round_blocks(node: Node, x: Any) -> Array:
    numbers, scales = _block_quantize(node, x)
    rounded = numbers.reshape(*scales.shape, -1).astype(np.float32) * scales[..., None]
    return np.asarray(rounded.reshape(x.shape), x.dtype)


def _trees(node: Node, x: Any, features: Any, thresholds: Any, values: Any, children: Any = None) -> Array:
    groups, trees, leaves, targets = values.shape
    group, tree = np.arange(groups)[:, None], np.arange(trees)
    rows = np.arange(len(x))[:, None, None]
    number = np.zeros((len(x), groups, trees), np.int64)  # of perfect trees in the order of levels
    for _ in range(node.attrs["depth"]):
        is_low = x[rows, features[group, tree, number]] <= thresholds[group, tree, number]
        first = 2 * number + 1 if children is None else children[group, tree, number].astype(np.int64)
        number = first + np.where(is_low, 0, 1)
    fold = {"sum": np.add, "min": np.minimum, "max": np.maximum}[node.attrs["combiner"]]
    ends = number - (leaves - 1) if children is None else number
    return np.asarray(fold.reduce(values[group, tree, ends], axis=2).reshape(len(x), groups * targets), x.dtype)


def _grid_sample(node: Node, x: Any, grid: Any) -> Array | None:
    return sample_images(node.attrs, x, grid) if node.attrs.get(IN_ELEMENTS) else None


_OWN: dict[str, Callable[..., Array | tuple[Array, ...] | None]] = {
    "BlockMatMul": _block_matmul,
    "BlockQuantize": _block_quantize,
    CAUSAL: causal_mask,
    "ConstantOfShape": _constant_of_shape,
    "ConvNarrow": _conv_narrow,
    COUPLE: couple_pairs,
    CUT: cut_to_size,
    "GridSample": _grid_sample,
    "MatMulNarrow": _matmul_narrow,
    "Reshape": _reshape,
    "RoundBlocks": _round_blocks,
    "Silu": _silu,
    "Trees": _trees,
    WRITE: write_rows,
}
"""Ops computed here: those that ONNX does not have, that must be cheap, or whose normal form the evaluator spoils.
None leaves a node to the evaluator after all."""


def _evaluator(node: Node, arrays: Sequence[Any]) -> ReferenceEvaluator:
    key = (
        node.op, node.domain, node.version, tuple(map(bool, node.outputs)), tuple(map(bool, node.inputs)),
        node.attrs_key,
        tuple(dtype_name(array) if array is not None else "" for array in arrays),
    )  # fmt: skip
    with _lock:
        if key in _evaluators:
            _evaluators.move_to_end(key)
            return _evaluators[key]
    evaluator = _build_evaluator(model_of(node, [_type(array) for array in arrays]))
    with _lock:
        _evaluators[key] = evaluator
        if len(_evaluators) > MAX_EVALUATORS:
            _evaluators.popitem(last=False)
    return evaluator


def _build_evaluator(model: ModelProto) -> ReferenceEvaluator:
    """An evaluator that has the corrections inside of the model's functions too."""
    functions = [ReferenceEvaluator(function, new_ops=CORRECTIONS) for function in model.functions]
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    return ReferenceEvaluator(model.graph, opsets=opsets, functions=functions, new_ops=CORRECTIONS)


def _type(value: Any) -> TypeProto | None:
    match value:
        case None:
            return None
        case list():
            return helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        case _:
            return helper.make_tensor_type_proto(element_type(dtype_name(value)), None)


def _channels_last(node: Node, arrays: Sequence[Any]) -> list[Any]:
    """ONNX's op between transpositions."""
    attrs = {name: value for name, value in node.attrs.items() if name != "channels_last"}
    plain = replace(node, attrs=attrs)
    operands = []
    for position, array in enumerate(arrays):
        perm = None if array is None else input_to_first(node, position, array.ndim)
        operands.append(array if perm is None else np.transpose(array, perm))
    results = _evaluate(plain, operands)
    return [
        None if value is None else np.ascontiguousarray(np.transpose(value, last_from_first(value.ndim)))
        for value in results
    ]


_CORRECTED_OPS = frozenset(correction.__name__ for correction in CORRECTIONS)

_LOADERS = {
    "": ops.load_op,
    "ai.onnx.ml": aionnxml.load_op,
    "ai.onnx.preview": aionnx_preview.load_op,
    "ai.onnx.preview.training": aionnx_preview_training.load_op,
}


@cache
def is_computed(op: str, domain: str, version: int) -> bool:
    """Whether anything here has the op at all as of this opset version."""
    if not domain and op in _CORRECTED_OPS:
        return True
    definition = {} if domain else {"evaluator_cls": ReferenceEvaluator}  # what runs an op that consists of others
    try:
        _LOADERS[domain](domain, op, version, **definition)
    except RuntimeContextError:  # consists of others too, but the operands' types decide of which
        return True
    except RuntimeError:  # and NotImplementedError, which is one
        return False
    return True


# Folding: which nodes are computed ahead of time. A few bytes of a model can ask for terabytes (`Expand`) or for days
# (`Loop`), so only ops whose cost follows from the sizes of their operands fold, and only up to limits.

MAX_GROWTH = 8
"""Results may be this many times larger than the operands ..."""

FREE_BYTES = 64 << 20
"""... or this large in any case."""

MAX_BUDGET_BYTES = 2 << 30
"""Most bytes that folding one graph makes in total, beyond MAX_GROWTH times its constants at the start."""

MAX_PRODUCTS = 1 << 33
"""Most multiplications of a folded product."""

_FOLDED = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr
BitwiseXor BlackmanWindow Cast CastLike Ceil Celu Clip Compress Concat ConstantOfShape Cos Cosh CumSum DepthToSpace
DequantizeLinear Div Dropout Elu Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gelu Gemm
Greater GreaterOrEqual HammingWindow HannWindow HardSigmoid HardSwish Identity IsInf IsNaN LayerNormalization
LeakyRelu Less LessOrEqual Log LogSoftmax MatMul MatMulInteger Max Mean MelWeightMatrix Min Mish Mod Mul Neg NonZero
Not OneHot Or PRelu Pad Pow QLinearMatMul QuantizeLinear Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum
ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round ScatterElements
ScatterND Selu Sigmoid Sign Silu Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum
Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where Xor
"""
FOLDED_OPS = frozenset(_FOLDED.split())
"""Ops that may be folded: their time is proportional to their operands and results (products are limited)."""

FOLDED_PRODUCTS = frozenset({"Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"})

BOUNDED_OPS = frozenset({"Compress", "NonZero", "Unique"})
"""Ops whose result is of unknown shape but not much larger than their operands."""


class FoldingBudget:
    """The bytes that folding may still make."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.left_bytes = MAX_BUDGET_BYTES + MAX_GROWTH * sum(map(_size_bytes, constants.values()))

    def fold(self, node: Node, arrays: Sequence[Array | None], types: Sequence[TensorType]) -> list[Array] | None:
        """The values of a node's outputs (`types` go with them), or None if it is better left to run time."""
        size_bytes = _cost_bytes(node, arrays, types)
        if size_bytes is None or size_bytes > self.left_bytes:
            return None
        try:
            results = _transpose_view(node, arrays) or evaluate(node, arrays)
        except EvaluationError as error:
            if isinstance(error.__cause__, MemoryError):  # whether a node folds must not depend on the machine
                raise MemoryError(f"no memory for the constants of {node.op}") from error
            return None  # it will say so when the model runs
        values = [_as_contiguous(node, value, kind) for value, kind in zip(results, types, strict=True)]
        if any(kind.shape not in (None, value.shape) for value, kind in zip(values, types, strict=True)):
            return None
        self.left_bytes -= sum(map(_size_bytes, values))
        return values


def _transpose_view(node: Node, arrays: Sequence[Array | None]) -> list[Array] | None:
    """A result that is a view of the operand: weights are large, and whoever packs them reads them in any order."""
    array, order = arrays[0] if arrays else None, node.attrs.get("perm")
    if node.op != "Transpose" or node.domain or array is None or order is None or array.dtype.kind == "O":
        return None
    return [np.transpose(array, order)] if sorted(order) == list(range(array.ndim)) else None


def _cost_bytes(node: Node, arrays: Sequence[Array | None], types: Sequence[TensorType]) -> int | None:
    if node.op not in FOLDED_OPS or node.domain or (node.op == "Dropout" and len(node.inputs) > 2):
        return None
    operands = [array for array in arrays if array is not None]
    operand_bytes = sum(map(_size_bytes, operands))
    if any(kind.shape is None for kind in types):
        return 8 * operand_bytes if node.op in BOUNDED_OPS else None
    if node.op in FOLDED_PRODUCTS:
        depth = operands[0].shape[0 if node.attrs.get("transA") else -1] if operands[0].ndim else 1
        if prod(types[0].shape or ()) * depth > MAX_PRODUCTS:
            return None
    if node.op == "ConstantOfShape":
        return 0  # a view of one element, whatever the shape
    items_bytes = [64 if kind.dtype in ("string", "object") else np.dtype(kind.dtype).itemsize for kind in types]
    result_bytes = sum(prod(kind.shape or ()) * size for kind, size in zip(types, items_bytes, strict=True))
    return result_bytes if result_bytes <= max(FREE_BYTES, MAX_GROWTH * operand_bytes) else None


def _size_bytes(array: Array) -> int:
    return 0 if 0 in array.strides and array.size else array.nbytes


def _as_contiguous(node: Node, value: Array, kind: TensorType) -> Array:
    if node.op in ("ConstantOfShape", "Transpose"):
        return value
    return np.asarray(value, None if kind.dtype in ("string", "object") else np.dtype(kind.dtype), order="C")
