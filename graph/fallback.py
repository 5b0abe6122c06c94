"""Any node, run by ONNX's reference evaluator: slow, and right.

The runtime uses it for what has no native kernel, constant folding for what is known before the first run. Not meant
for hostile models outside of a limited process (ONNX's own word about its evaluator).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator, ops
from onnx.reference.op_run import RuntimeContextError
from onnx.reference.ops import aionnx_preview, aionnx_preview_training, aionnxml

from . import channels
from .corrections import CORRECTIONS
from .ir import Array, Node, TensorType
from .onnx_form import CAPTURES, dtype_name, element_type, model_of
from .recurrent import evaluate_recurrence

MAX_PREPARED = 4096
"""Most evaluators kept."""

_prepared: OrderedDict[Any, ReferenceEvaluator] = OrderedDict()
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
            if channels.is_channels_last(node):
                return _channels_last(node, arrays)
            return _evaluate(node, arrays)
    except _FAULTS as error:
        operands = ", ".join(map(_described, arrays)) or "nothing"
        raise EvaluationError(f"{node.place or node.op} can't be computed from {operands}: {_said(error)}") from error


def _origin(error: BaseException) -> BaseException:
    """What went wrong at first: the evaluator wraps what a body raises in errors that say nothing."""
    return error if error.__cause__ is None else _origin(error.__cause__)


def _said(error: BaseException) -> str:
    """What went wrong, in one line; with the kind of the error where that is a name or a number alone."""
    origin = _origin(error)
    text = " ".join(str(origin).split())
    return text if " " in text else f"{type(origin).__name__} {text}".rstrip()


def _described(value: Any) -> str:
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
    own = _OWN.get(node.op)
    if own is not None and not node.domain and len(node.outputs) == 1:
        result = own(node, *arrays)
        if result is not None:
            return [result]
    evaluator = _evaluator(node, arrays)
    captures = node.attrs.get(CAPTURES, ())
    names = [f"i{k}" for k in range(len(arrays) - len(captures))] + list(captures)
    feeds = {name: value for name, value, given in zip(names, arrays, node.inputs, strict=True) if given}
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
    wanted = [int(n) for n in (shape[0] if shape else node.attrs["shape"])]
    if not node.attrs.get("allowzero", 0):
        wanted = [x.shape[k] if n == 0 else n for k, n in enumerate(wanted)]
    return np.reshape(x, wanted)


def _constant_of_shape(node: Node, shape: Array) -> Array:
    """A view of one element: models keep whole weights in this form."""
    value = np.asarray(node.attrs.get("value", np.float32(0))).reshape(())
    return np.broadcast_to(value, tuple(map(int, shape)))


_OWN: dict[str, Callable[..., Array | None]] = {
    "ConstantOfShape": _constant_of_shape,
    "Reshape": _reshape,
    "Silu": _silu,
}
"""Ops computed here: those that ONNX does not have, that must be cheap, or whose normal form the evaluator spoils.
None leaves a node to the evaluator after all."""


def _evaluator(node: Node, arrays: Sequence[Any]) -> ReferenceEvaluator:
    key = (
        node.op, node.domain, node.version, tuple(map(bool, node.outputs)), tuple(map(bool, node.inputs)),
        tuple(sorted((name, _frozen(value)) for name, value in node.attrs.items())),
        tuple(dtype_name(array) if array is not None else "" for array in arrays),
    )  # fmt: skip
    with _lock:
        if key in _prepared:
            _prepared.move_to_end(key)
            return _prepared[key]
    evaluator = _made(model_of(node, [_type(array) for array in arrays]))
    with _lock:
        _prepared[key] = evaluator
        if len(_prepared) > MAX_PREPARED:
            _prepared.popitem(last=False)
    return evaluator


def _made(model: ModelProto) -> ReferenceEvaluator:
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


def _frozen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype.str, value.tobytes() if value.dtype.kind != "O" else tuple(value.ravel()))
    return value


def _channels_last(node: Node, arrays: Sequence[Any]) -> list[Any]:
    """ONNX's op between transpositions."""
    attrs = {name: value for name, value in node.attrs.items() if name != "channels_last"}
    plain = replace(node, attrs=attrs)
    moved = []
    for position, array in enumerate(arrays):
        perm = None if array is None else channels.input_to_first(node, position, array.ndim)
        moved.append(array if perm is None else np.transpose(array, perm))
    results = _evaluate(plain, moved)
    return [
        None if value is None else np.ascontiguousarray(np.transpose(value, channels.last_from_first(value.ndim)))
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
