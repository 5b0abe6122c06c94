"""Axes whose extent only a run tells, through the ops that follow: each rule says which axes of a result have them.

A tensor with such an axis has the shape of its *bound*, and the *size* of the axis is a tensor int64 [1]. What lies
behind the size is anything: no rule lets it into what lies before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from tunewright.graph.ir import Node

from .edit import Edit

Axes = Mapping[int, str]
"""Axis -> its size."""


@dataclass(slots=True)
class SizedTensors:
    """The tensors of a graph that have sized axes."""

    edit: Edit
    axes: dict[str, Axes] = field(default_factory=dict)
    _sizes: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> Axes:
        """The sized axes of a tensor; none for most."""
        return self.axes.get(name, {})

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor at its bound."""
        return self.edit.shape(name) or ()

    def size(self, name: str) -> str:
        """A tensor of one whole number as a size; the same one each time, as sizes are equal by name."""
        if name not in self._sizes:
            number = name if self.edit.types[name].dtype == "int64" else self.edit.cast(name, "int64")
            shaped = number if self.shape(number) == (1,) else self.edit.emit("Reshape", number, shape=(1,))
            self._sizes[name] = shaped
        return self._sizes[name]

    def scale(self, size: str, factor: int, divisor: int = 1) -> str:
        """The size of an axis that is split, or joined with others."""
        if factor == divisor:
            return size
        op, number = ("Mul", factor // divisor) if factor > divisor else ("Div", divisor // factor)
        return self.edit.emit(op, size, self.edit.constant(np.array([number], np.int64)))

    def mask(self, name: str, axes: Sequence[int], value: float) -> str:
        """The tensor with a value behind the sizes of some of its axes."""
        shape, dtype = self.shape(name), self.edit.types[name].dtype
        limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
        filling = min(max(value, limits.min), limits.max) if limits else value
        for axis in axes:
            places = np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - 1 - axis))
            is_there = self.edit.emit("Less", self.edit.constant(places), self.of(name)[axis])
            masked = self.edit.emit("Where", is_there, name, self.edit.constant(np.array(filling, dtype)))
            self.axes[masked], name = self.of(name), masked
        return name


Followed = tuple[Node, Axes] | None
"""A node that computes at the bound, and the sized axes of all its outputs; None where there is no such."""

AxisRule = Callable[[SizedTensors, Node], Followed]


def _broadcast(sized: SizedTensors, node: Node) -> Followed:
    """Elementwise: sizes of the same axis must be the same tensor. What has one element there has it for all."""
    names = [name for name in node.inputs if name]
    rank = max(len(sized.shape(name)) for name in names)
    result: dict[int, str] = {}
    for name in names:
        for axis, size in sized.of(name).items():
            if result.setdefault(axis + rank - len(sized.shape(name)), size) != size:
                return None
    for name in names:
        shape, own = sized.shape(name), sized.of(name)
        for axis in result:
            at = axis - rank + len(shape)
            if at >= 0 and at not in own and shape[at] != 1:
                return None
    return (node, result) if _has_equal_bounds(sized, names, rank, result) else None


def _has_equal_bounds(sized: SizedTensors, names: Sequence[str], rank: int, axes: Axes) -> bool:
    """Whether a size has the same bound in all tensors: another one may be of one element, which would be copied."""
    bounds: dict[int, int] = {}
    for name in names:
        shape = sized.shape(name)
        for axis in sized.of(name):
            at = axis + rank - len(shape)
            if bounds.setdefault(at, shape[axis]) != shape[axis]:
                return False
    return axes.keys() == bounds.keys()


def _transpose(sized: SizedTensors, node: Node) -> Followed:
    own = sized.of(node.inputs[0])
    return node, {to: own[axis] for to, axis in enumerate(node.attrs["perm"]) if axis in own}


def _gather(sized: SizedTensors, node: Node) -> Followed:
    data, indices = node.inputs
    axis, rank = int(node.attrs["axis"]), len(sized.shape(indices))
    own = sized.of(data)
    if axis in own:  # an index from the end would count from the bound
        return None
    result = {a if a < axis else a + rank - 1: size for a, size in own.items()}
    return node, {**result, **{axis + a: size for a, size in sized.of(indices).items()}}


def _gather_nd(sized: SizedTensors, node: Node) -> Followed:
    data, indices = node.inputs
    outer, length = len(sized.shape(indices)) - 1, sized.shape(indices)[-1]
    if node.attrs.get("batch_dims", 0) or outer in sized.of(indices) or any(a < length for a in sized.of(data)):
        return None
    return node, {**sized.of(indices), **{a + outer - length: size for a, size in sized.of(data).items()}}


def _gather_elements(sized: SizedTensors, node: Node) -> Followed:
    data, indices = node.inputs
    return None if sized.of(data) else (node, sized.of(indices))


def _concat(sized: SizedTensors, node: Node) -> Followed:
    own = sized.of(node.inputs[0])
    same = all(dict(sized.of(name)) == dict(own) for name in node.inputs)
    return (node, own) if same and int(node.attrs["axis"]) not in own else None


def _other_axes(sized: SizedTensors, node: Node) -> Followed:
    """For ops that work along axes that they name, and leave the others as they are."""
    own = sized.of(node.inputs[0])
    worked = node.attrs.get("axes", (node.attrs.get("axis"),))
    is_known = isinstance(worked, tuple) and all(isinstance(axis, int) for axis in worked)
    return (node, own) if is_known and own.keys().isdisjoint(worked) else None


def _rows(sized: SizedTensors, node: Node) -> Followed:
    """For ops on samples, each by itself, along the first axis of their first operand."""
    own = sized.of(node.inputs[0])
    is_whole = not any(sized.of(name) for name in node.inputs[1:] if name)
    return (node, own) if is_whole and own.keys() <= {0} else None


def _normalised(sized: SizedTensors, node: Node) -> Followed:
    """For norms over the last axes, from `axis` on."""
    own, axis = sized.of(node.inputs[0]), node.attrs["axis"]
    is_whole = not any(sized.of(name) for name in node.inputs[1:] if name)
    return (node, own) if is_whole and all(a < axis for a in own) else None


def _regions(sized: SizedTensors, node: Node) -> Followed:
    """RoiAlign: regions and their images have the size, what they are cut from has none."""
    x, regions, images = node.inputs
    own = sized.of(regions)
    is_same = own.keys() == {0} and dict(sized.of(images)) == dict(own)
    return (node, own) if is_same and not sized.of(x) else None


def _matmul(sized: SizedTensors, node: Node) -> Followed:
    ranks = [len(sized.shape(name)) for name in node.inputs]
    if min(ranks) < 2:
        return None
    left, right = (sized.of(name) for name in node.inputs)
    if ranks[0] - 1 in left or ranks[1] - 2 in right:
        return None
    rank = max(ranks)
    is_batch = any(axis < ranks[0] - 2 for axis in left) and ranks[1] > 2
    if is_batch or any(axis < ranks[1] - 2 for axis in right):
        return None
    return node, {
        axis + rank - r: size for own, r in ((left, ranks[0]), (right, ranks[1])) for axis, size in own.items()
    }


def _gemm(sized: SizedTensors, node: Node) -> Followed:
    row = 1 if node.attrs.get("transA", 0) else 0
    own = sized.of(node.inputs[0])
    others = [name for name in node.inputs[1:] if name]
    bias = sized.shape(others[1]) if len(others) > 1 else ()
    fits = own.keys() <= {row} and not any(map(sized.of, others)) and (len(bias) < 2 or bias[0] == 1)
    return (node, {0: own[row]} if own else {}) if fits else None


_IDENTITIES = {"ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceProd": 1.0}
_ZERO = ("ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare")


def _reduce(sized: SizedTensors, node: Node) -> Followed:
    """A fold over a sized axis has what changes nothing behind the size; a mean is divided by the size."""
    (x, *rest), own = node.inputs, sized.of(node.inputs[0])
    axes, keeps = node.attrs.get("axes"), node.attrs.get("keepdims", 1)
    if rest or not isinstance(axes, tuple):
        return None
    folded = [axis for axis in axes if axis in own]
    result = {(a if keeps else a - sum(axis < a for axis in axes)): s for a, s in own.items() if a not in axes}
    if not folded:
        return node, result
    if (node.op not in _IDENTITIES and node.op not in _ZERO) or sized.edit.types[x].dtype == "bool":
        return None
    masked = sized.mask(x, folded, _IDENTITIES.get(node.op, 0.0))
    if node.op != "ReduceMean":
        return replace(node, inputs=(masked,)), result
    edit, shape = sized.edit, sized.shape(x)
    total = edit.emit("ReduceSum", masked, axes=axes, keepdims=keeps)
    count = own[folded[0]]
    for axis in folded[1:]:
        count = edit.emit("Mul", count, own[axis])
    count = sized.scale(count, prod(shape[axis] for axis in axes if axis not in own))
    divisor = edit.emit("Reshape", edit.cast(count, edit.types[x].dtype), shape=())
    return replace(node, op="Div", inputs=(total, divisor), attrs={}), result


def _softmax(sized: SizedTensors, node: Node) -> Followed:
    x, axis = node.inputs[0], int(node.attrs["axis"])
    own = sized.of(x)
    return (replace(node, inputs=(sized.mask(x, [axis], -np.inf),)) if axis in own else node), own


def _position(sized: SizedTensors, node: Node) -> Followed:
    x, axis, keeps = node.inputs[0], int(node.attrs["axis"]), node.attrs.get("keepdims", 1)
    own = sized.of(x)
    if axis in own:
        if node.attrs.get("select_last_index", 0):
            return None
        node = replace(node, inputs=(sized.mask(x, [axis], -np.inf if node.op == "ArgMax" else np.inf),))
    return node, {(a if keeps or a < axis else a - 1): size for a, size in own.items() if a != axis}


def _reshape(sized: SizedTensors, node: Node) -> Followed:
    """An axis that is -1, or copied by 0, of the shape that is asked for."""
    x = node.inputs[0]
    wanted = sized.edit.array(node.inputs[1]) if len(node.inputs) > 1 else None
    own, shape = sized.of(x), sized.shape(x)
    if wanted is None or len(own) != 1 or node.attrs.get("allowzero", 0):
        return None
    ((axis, size),) = own.items()
    target = [int(extent) for extent in wanted.reshape(-1)]
    if axis < len(target) and target[axis] == 0:
        return (node, own) if prod(_copied(target[:axis], shape)) == prod(shape[:axis]) else None
    target = _copied(target, shape)
    if target.count(-1) != 1:
        return None
    at = target.index(-1)
    inner, new_inner = prod(shape[axis + 1 :]), prod(target[at + 1 :])
    before, new_before = prod(shape[:axis]), prod(target[:at])
    is_kept = (before, inner) == (new_before, new_inner)
    if not is_kept and (before != 1 or new_before != 1 or (inner % new_inner and new_inner % inner)):
        return None
    return node, {at: sized.scale(size, inner, new_inner)}


def _copied(target: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The shape that is asked for, with what 0 stands for."""
    return [shape[axis] if extent == 0 and axis < len(shape) else extent for axis, extent in enumerate(target)]


def _known_axes(sized: SizedTensors, node: Node) -> list[int] | None:
    """The axes of a Squeeze or Unsqueeze, where they are known."""
    axes = node.attrs.get("axes")
    if axes is None and node.input(1):
        values = sized.edit.array(node.inputs[1])
        axes = None if values is None else values.reshape(-1).tolist()
    return None if axes is None else list(axes)


def _squeeze(sized: SizedTensors, node: Node) -> Followed:
    own, rank, axes = sized.of(node.inputs[0]), len(sized.shape(node.inputs[0])), _known_axes(sized, node)
    gone = {axis % rank for axis in axes or ()}
    if axes is None or not own.keys().isdisjoint(gone):
        return None
    return node, {axis - sum(a < axis for a in gone): size for axis, size in own.items()}


def _unsqueeze(sized: SizedTensors, node: Node) -> Followed:
    own, axes = sized.of(node.inputs[0]), _known_axes(sized, node)
    if axes is None:
        return None
    rank = len(sized.shape(node.inputs[0])) + len(axes)
    new = {axis % rank for axis in axes}
    places = [axis for axis in range(rank) if axis not in new]
    return node, {places[axis]: size for axis, size in own.items()}


def _flatten(sized: SizedTensors, node: Node) -> Followed:
    own = sized.of(node.inputs[0])
    return (node, own) if own.keys() == {0} and node.attrs.get("axis", 1) == 1 else None


def _shape(sized: SizedTensors, node: Node) -> Followed:
    """Extents as numbers of the program."""
    x, edit = node.inputs[0], sized.edit
    extents: list[str] = []
    for axis, extent in enumerate(sized.shape(x)):
        extents.append(sized.of(x).get(axis) or edit.constant(np.array([extent], np.int64)))
    if node.op == "Size":
        total = edit.constant(np.array([1], np.int64))
        for extent_name in extents:
            total = edit.emit("Mul", total, extent_name)
        return replace(node, op="Reshape", inputs=(total,), attrs={"shape": ()}), {}
    wanted = extents[node.attrs.get("start", 0) : node.attrs.get("end")]
    return (replace(node, op="Concat", inputs=tuple(wanted), attrs={"axis": 0}), {}) if wanted else None


_ELEMENTWISE = """
Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu Clip Cos Cosh Div
Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less
LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or Pow Reciprocal Relu Round Selu Sigmoid Sign Silu Sin Sinh Softplus
Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu Where Xor
"""

AXIS_RULES: Mapping[str, AxisRule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _broadcast),
    **dict.fromkeys(("ArgMax", "ArgMin"), _position),
    **dict.fromkeys(
        ("AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"), _rows
    ),
    **dict.fromkeys(("CumSum", "Slice", "Split", "TopK"), _other_axes),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalised),
    **dict.fromkeys((*_IDENTITIES, *_ZERO, "ReduceLogSum", "ReduceLogSumExp"), _reduce),
    **dict.fromkeys(("Shape", "Size"), _shape),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _softmax),
    "Concat": _concat,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "RoiAlign": _regions,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Op -> the rule for it, on nodes in the normal form but for those that `BY_SHAPE` has."""

BY_SHAPE = frozenset({"Flatten", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"})
"""Ops whose normal form does not tell any more which axis was meant; their rules see them as ONNX has them."""
