"""Channels last: convolutions and pools work on `[N, *spatial, C]`; Transposes stay where the model begins and ends.

Transposing is put off. A tensor that some node left in another order of axes is *held*: known as `Transpose(stored,
perm)` and made only for a reader that can't do with `stored`. A Transpose of the model is such a promise too, so those
that undo each other vanish, and an elementwise op between two convolutions never sees one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tunewright.graph.ir import Graph, Node, TensorType

from ..evaluation.onnx_form import (
    CHANNELS_LAST_OPS,
    CONVOLUTIONS,
    REDUCTIONS,
    TypeFault,
    first_from_last,
    infer,
    inverse,
    is_channels_last,
    weight_last_from_first,
)
from .edit import Edit, log
from .simplify import BROADCASTING_OPS, moves_nothing

Perm = tuple[int, ...]


def channels_last(graph: Graph) -> Graph:
    """Convolutions, pools and their kind with channels last, and everything between them in that order.

    Before: `a = Conv(x, w); b = Relu(a); y = Conv(b, v)`.
    After: `s = Transpose(x); a = Conv(s, w') channels_last; b = Relu(a); c = Conv(b, v') channels_last;
    y = Transpose(c)`.
    """
    return LayoutRewrite(graph).graph()


class LayoutRewrite:
    """A pass over a graph. Nodes come with the graph's names; every name has at least one stored form."""

    def __init__(self, graph: Graph) -> None:
        self._source = graph
        self._edit = Edit(graph)
        self._forms: dict[str, dict[Perm, str]] = {}  # name -> perm -> stored, with name = Transpose(stored, perm)
        self._flat_rows: dict[str, FlatRows] = {}  # flattened rows in another order, for MatMuls with known weights
        self._readers = graph.consumers()

    def graph(self) -> Graph:
        """The graph rewritten."""
        for node in self._source.nodes:
            self._visit(node)
        outputs = [replace(value, tensor=self._plain_form(value.tensor)) for value in self._source.outputs]
        return self._edit.finish(self._source.inputs, outputs)

    # Stored forms

    def _stored_forms(self, name: str) -> dict[Perm, str]:
        """The stored forms of a tensor; the model's own if there is no other."""
        if name not in self._forms:
            self._forms[name] = {tuple(range(self._edit.rank(name))): name}
        return self._forms[name]

    def _hold(self, name: str, stored: str, perm: Perm) -> None:
        self._forms.setdefault(name, {})[perm] = stored

    def _form(self, name: str, perm: Perm) -> str:
        """The tensor `stored` with name = Transpose(stored, perm), added if need be."""
        forms = self._stored_forms(name)
        if perm not in forms:
            stored_perm, source = next(iter(forms.items()))
            needed = tuple(stored_perm[axis] for axis in inverse(perm))
            identity = perm == tuple(range(len(perm)))
            forms[perm] = self._transpose_stored(source, needed, name if identity else "")
        return forms[perm]

    def _transpose_stored(self, source: str, perm: Perm, to: str = "") -> str:
        shape = self._edit.shape(source) or ()
        if perm == tuple(range(len(perm))):
            return source
        if moves_nothing(shape, perm):
            return self._edit.emit("Reshape", source, to=to, shape=tuple(shape[axis] for axis in perm))
        return self._edit.emit("Transpose", source, to=to, perm=perm)

    def _plain_form(self, name: str) -> str:
        """The tensor in the model's own order."""
        rank = self._edit.rank(name) if name else -1
        return name if rank < 0 else self._form(name, tuple(range(rank)))

    def _stored_perm(self, name: str) -> Perm | None:
        """The first perm under which a tensor is stored, if it is not in the model's own order anyway."""
        forms = self._forms.get(name, {})
        own = tuple(range(self._edit.rank(name)))
        return next(iter(forms)) if forms and own not in forms else None

    # Nodes

    def _visit(self, node: Node) -> None:
        static = all(self._edit.shape(name) is not None for name in (*node.inputs, *node.outputs) if name)
        try:
            is_done = static and not node.domain and self._move(node)
        except TypeFault as fault:
            log.warning("%s stays as it is: %s", node, fault)
            is_done = False
        if not is_done:
            self._add(node, [self._plain_form(name) for name in node.inputs])

    def _move(self, node: Node) -> bool:
        """Add the node on tensors in another order than the model's, if that is better."""
        if node.op in CHANNELS_LAST_OPS:
            return self._window(node)
        if node.op == "Transpose":
            return self._transpose(node)
        if node.op == "Reshape" and len(node.inputs) == 1:
            return self._reshape(node)
        if node.op == "MatMul":
            return self._product(node)
        if self._is_elementwise(node):
            return self._elementwise(node)
        return node.op in AXIS_OPS and self._along_axes(node)

    def _is_elementwise(self, node: Node) -> bool:
        """Whether the node is elementwise. A scale per place of an axis does not broadcast as other operands do."""
        has_one_scale = node.op not in QUANTISING_OPS or all(
            prod(self._edit.shape(n) or ()) == 1 for n in node.inputs[1:] if n
        )
        return node.op in ELEMENTWISE_OPS and len(node.outputs) == 1 and has_one_scale

    def _add(self, node: Node, inputs: Sequence[str]) -> None:
        """Add the node unchanged, on other inputs."""
        self._edit.add(replace(node, inputs=tuple(inputs)))

    def _add_stored(self, node: Node, inputs: Sequence[str], attrs: Mapping[str, Any], perms: Sequence[Perm]) -> None:
        """Add the node on stored tensors, with outputs stored under `perms`."""
        outputs = []
        for name, perm in zip(node.outputs, perms, strict=True):
            shape, dtype = self._edit.shape(name) or (), self._edit.types[name].dtype
            if len(shape) != len(perm):
                raise TypeFault(f"{node} makes {len(shape)} dimensions")
            outputs.append(self._edit.new_tensor(TensorType(dtype, tuple(shape[axis] for axis in inverse(perm)))))
        stored_node = replace(node, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs)
        kinds = infer(stored_node, self._edit.types, self._edit.constants)
        if kinds != tuple(map(self._edit.types.get, outputs)):
            raise TypeFault(f"{stored_node} makes {', '.join(map(str, kinds))}")
        self._edit.add(stored_node)
        for name, stored, perm in zip(node.outputs, outputs, perms, strict=True):
            self._hold(name, stored, perm)

    def _window(self, node: Node) -> bool:
        rank = self._edit.rank(node.inputs[0])
        if rank < 3 or len(node.outputs) > 1 or is_channels_last(node):
            return False
        if node.op in ("DepthToSpace", "SpaceToDepth") and rank != 4:
            return False
        if node.op in ("GridSample", "RoiAlign") and (self._edit.shape(node.inputs[0]) or ())[1] < MIN_SAMPLED:
            return False
        if node.op == "InstanceNormalization" and rank == 3 and self._price(node.inputs[0], first_from_last(rank)):
            return False  # rows that lie whole already, such as the groups of a GroupNormalization
        inputs = [self._form(node.inputs[0], first_from_last(rank)), *map(self._plain_form, node.inputs[1:])]
        if node.op in CONVOLUTIONS:
            inputs[1] = self._transpose_stored(inputs[1], weight_last_from_first(node.op, rank))
        self._add_stored(node, inputs, {**node.attrs, "channels_last": True}, [first_from_last(rank)])
        return True

    def _transpose(self, node: Node) -> bool:
        perm = node.attrs["perm"]
        for stored_perm, stored in list(self._stored_forms(node.inputs[0]).items()):
            self._hold(node.outputs[0], stored, tuple(stored_perm[axis] for axis in perm))
        return True

    def _along_axes(self, node: Node) -> bool:
        """Ops with axes among their attributes, which move along."""
        count = len(node.inputs) if node.op == "Concat" else 1
        perm = self._choose_perm(node.inputs[:count])
        result = move_axes(node, perm) if perm is not None else None
        if perm is None or result is None:
            return False
        attrs, perms = result
        inputs = [self._form(name, perm) for name in node.inputs[:count]]
        self._add_stored(node, [*inputs, *map(self._plain_form, node.inputs[count:])], attrs, perms)
        return True

    def _elementwise(self, node: Node) -> bool:
        rank = self._edit.rank(node.outputs[0])
        perm = self._choose_perm([name for name in node.inputs if name and self._edit.rank(name) == rank])
        if perm is None:
            return False
        inputs = [self._operand(name, perm) if name else "" for name in node.inputs]
        self._add_stored(node, inputs, node.attrs, [perm])
        return True

    def _operand(self, name: str, perm: Perm) -> str:
        """An operand in the order of the result, whatever its own rank."""
        shape = self._edit.shape(name) or ()
        if prod(shape) == 1 and len(shape) <= len(perm):
            return self._plain_form(name)
        if len(shape) == len(perm):
            return self._form(name, perm)
        full = self._edit.emit("Reshape", self._plain_form(name), shape=(1,) * (len(perm) - len(shape)) + shape)
        return self._transpose_stored(full, inverse(perm))

    def _choose_perm(self, names: Sequence[str]) -> Perm | None:
        """The order in which least must be transposed; None for the model's own."""
        if not names:
            return None
        own = tuple(range(self._edit.rank(names[0])))
        candidates = {perm for name in names for perm in self._forms.get(name, ())} | {own}
        usual = first_from_last(len(own)) if len(own) > 2 else own

        def cost(perm: Perm) -> tuple[int, bool, bool, Perm]:
            moved_elements = sum(self._price(name, perm) for name in set(names))
            return moved_elements, perm != usual, perm != own, perm

        best = min(candidates, key=cost)
        return None if best == own else best

    def _price(self, name: str, perm: Perm) -> int:
        """Elements to transpose for that form of a tensor."""
        forms = self._stored_forms(name)
        shape = self._edit.shape(name) or ()
        if perm in forms or name in self._edit.constants:
            return 0
        stored_perm, source = next(iter(forms.items()))
        needed = tuple(stored_perm[axis] for axis in inverse(perm))
        return 0 if moves_nothing(self._edit.shape(source) or (), needed) else prod(shape)

    # Reshape

    def _reshape(self, node: Node) -> bool:
        source, result = node.inputs[0], node.outputs[0]
        perm = self._stored_perm(source)
        if perm is None or 0 in (self._edit.shape(source) or ()):
            return False
        plan = regroup(self._edit.shape(source) or (), self._edit.shape(result) or (), perm)
        if plan is None:
            return False
        if plan.order is not None:
            if self._flatten(node, perm):
                return True
            # What must be transposed anyway may as well get the model's own order, unless channels are last otherwise.
            if len(plan.shape) < 4 or plan.perm != first_from_last(len(plan.shape)):
                return False
            stored = self._form(source, plan.order)
        else:
            stored = self._form(source, perm)
        self._hold(result, self._edit.emit("Reshape", stored, shape=plan.shape), plan.perm)
        return True

    def _flatten(self, node: Node, perm: Perm) -> bool:
        """Rows that MatMuls with known weights read may stay in the stored order: the weights' rows move instead."""
        source, result = node.inputs[0], node.outputs[0]
        source_shape, result_shape = self._edit.shape(source) or (), self._edit.shape(result) or ()
        outputs = {value.tensor for value in self._source.outputs}
        readers = self._readers.get(result, [])
        products = [reader for reader in readers if reader.op == "MatMul" and reader.inputs[0] == result]
        if not readers or len(products) < len(readers) or result in outputs or perm[0] != 0:
            return False
        if result_shape != (source_shape[0], prod(source_shape[1:])) or any(
            self._edit.rank(reader.inputs[1]) != 2 for reader in products
        ):
            return False
        if any(reader.inputs[1] not in self._edit.constants for reader in products):
            return False
        stored = self._edit.emit("Reshape", self._form(source, perm), shape=result_shape)
        order = tuple(axis - 1 for axis in inverse(perm)[1:])
        self._flat_rows[result] = FlatRows(source_shape[1:], order, stored)
        return True

    def _product(self, node: Node) -> bool:
        rows = self._flat_rows.get(node.inputs[0])
        if rows is None:
            return False
        weight = np.asarray(self._edit.constants[node.inputs[1]])
        parts = weight.reshape(*rows.extents, -1).transpose(*rows.order, len(rows.order))
        moved_weight = self._edit.constant(np.ascontiguousarray(parts).reshape(weight.shape))
        self._add(node, [rows.stored, moved_weight])
        return True


# Attributes that name axes, for operands whose axes are stored in another order

StoredForm = tuple[dict[str, Any], list[Perm]]
"""The attributes on stored tensors, and the perms under which the outputs are held."""


def move_axes(node: Node, perm: Perm) -> StoredForm | None:
    """The attributes of the op on stored operands; None if it can't run on them."""
    return _MOVES[node.op](node, perm)


def _one_axis(node: Node, perm: Perm) -> StoredForm | None:
    if len(node.inputs) > 1 and node.op != "Concat":
        return None
    return {**node.attrs, "axis": perm[node.attrs["axis"]]}, [perm] * len(node.outputs)


def _reduce(node: Node, perm: Perm) -> StoredForm | None:
    if len(node.inputs) > 1 or "axes" not in node.attrs:
        return None
    axes = node.attrs["axes"]
    attrs = {**node.attrs, "axes": tuple(sorted(perm[axis] for axis in axes))}
    if node.attrs["keepdims"]:
        return attrs, [perm]
    places = [perm[axis] for axis in range(len(perm)) if axis not in axes]
    return attrs, [tuple(sorted(places).index(place) for place in places)]


def _arg(node: Node, perm: Perm) -> StoredForm | None:
    single = Node(
        node.op, node.inputs, node.outputs, {"axes": (node.attrs["axis"],), "keepdims": node.attrs["keepdims"]}
    )
    result = _reduce(single, perm)
    return None if result is None else ({**node.attrs, "axis": perm[node.attrs["axis"]]}, result[1])


def _slice(node: Node, perm: Perm) -> StoredForm | None:
    if len(node.inputs) > 1:
        return None
    names = ("axes", "starts", "ends", "steps")
    columns = [node.attrs[name] for name in names]
    rows = sorted((perm[axis], *rest) for axis, *rest in zip(*columns, strict=True))
    return dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict(node.attrs), [perm]


def _pad(node: Node, perm: Perm) -> StoredForm | None:
    if len(node.inputs) > 1:
        return None
    pads, rank = node.attrs["pads"], len(perm)
    stored = [0] * len(pads)
    for axis, place in enumerate(perm):
        stored[place], stored[rank + place] = pads[axis], pads[rank + axis]
    return {**node.attrs, "pads": tuple(stored)}, [perm]


def _every_axis(*names: str) -> Callable[[Node, Perm], StoredForm | None]:
    """Attributes with one entry an axis."""

    def move(node: Node, perm: Perm) -> StoredForm | None:
        if len(node.inputs) > 1 or "roi" in node.attrs:  # of which each axis has two
            return None
        attrs = dict(node.attrs)
        for name in names:
            if name in attrs:
                attrs[name] = tuple(attrs[name][perm.index(place)] for place in range(len(perm)))
        return attrs, [perm]

    return move


def _rows(node: Node, perm: Perm) -> StoredForm | None:
    """Trailing axes must be the trailing ones in store as well. Moments have one element along each of them."""
    axis = node.attrs["axis"]
    if "" in node.outputs or perm[axis:] != tuple(range(axis, len(perm))):
        return None
    return dict(node.attrs), [perm] * len(node.outputs)


_MOVES: Mapping[str, Callable[[Node, Perm], StoredForm | None]] = {
    **dict.fromkeys(("Concat", "CumProd", "CumSum", "Hardmax", "LogSoftmax", "Softmax", "Split"), _one_axis),
    **dict.fromkeys(REDUCTIONS, _reduce),
    "ArgMax": _arg,
    "ArgMin": _arg,
    "LayerNormalization": _rows,
    "RMSNormalization": _rows,
    "Pad": _pad,
    "Resize": _every_axis("scales", "sizes"),
    "Slice": _slice,
    "Tile": _every_axis("repeats"),
}

MIN_SAMPLED = 16
"""Fewest channels that are read side by side wherever a picture is sampled: of fewer, places fill vectors better."""

AXIS_OPS = frozenset(_MOVES)
"""The ops that `move_axes` knows."""


# Reshapes of such tensors


@dataclass(frozen=True, slots=True)
class FlatRows:
    """Rows flattened in stored order: axes of `extents` lie in `order` in `stored`."""

    extents: tuple[int, ...]
    order: Perm
    stored: str


@dataclass(frozen=True, slots=True)
class RegroupPlan:
    """Reshape the stored tensor to `shape`; the result is then held under `perm`.

    `order` is the perm under which the source must be stored first; None if it is as it should be.
    """

    shape: tuple[int, ...]
    perm: Perm
    order: Perm | None


def regroup(source: Sequence[int], result: Sequence[int], perm: Perm) -> RegroupPlan | None:
    """How to reshape `source` to `result` when source = Transpose(stored, perm).

    A Reshape splits and joins axes in groups: `[N, C, H, W] -> [N, g, C / g, H * W]` has the groups N, C and (H, W).
    A group whose axes are stored side by side and in order can be reshaped where it is.
    None if there are extents of 0.

    >>> regroup((1, 8, 4, 4), (1, 8, 16), (0, 3, 1, 2))
    RegroupPlan(shape=(1, 16, 8), perm=(0, 2, 1), order=None)
    """
    if 0 in source or 0 in result:
        return None
    groups = _groups(source, result)
    position = {axis: perm[axis] for axis in range(len(source)) if source[axis] != 1}
    ranks = {axis: rank for rank, axis in enumerate(sorted(position, key=position.__getitem__))}
    in_place = all(
        [ranks[axis] for axis in inner] == list(range(ranks[inner[0]], ranks[inner[0]] + len(inner)))
        for inner, _ in groups
    )
    ordered = sorted(groups, key=lambda group: min(ranks[axis] for axis in group[0]))
    shape, result_perm = _stored_shape(result, ordered)
    if in_place:
        return RegroupPlan(shape, result_perm, None)
    # Stored again with each group together: extents of 1 in front, then the groups.
    units = [axis for axis in range(len(source)) if source[axis] == 1]
    stored = [*units, *(axis for inner, _ in ordered for axis in inner)]
    order = tuple(stored.index(axis) for axis in range(len(source)))
    return RegroupPlan(shape, result_perm, order)


def _groups(source: Sequence[int], result: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The smallest runs of axes, before and after, with equal products; without extents of 1."""
    before = [axis for axis, extent in enumerate(source) if extent != 1]
    after = [axis for axis, extent in enumerate(result) if extent != 1]
    groups = []
    while before:
        inner, outer = [before.pop(0)], [after.pop(0)]
        while (left := prod(source[k] for k in inner)) != (right := prod(result[k] for k in outer)):
            (inner if left < right else outer).append((before if left < right else after).pop(0))
        groups.append((tuple(inner), tuple(outer)))
    return groups


def _stored_shape(
    result: Sequence[int], groups: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> tuple[tuple[int, ...], Perm]:
    """The stored shape after the Reshape and the perm: an extent of 1 stays behind the axis that it follows."""
    stored = [axis for _, outer in groups for axis in outer]
    for axis, extent in enumerate(result):
        if extent == 1:
            stored.insert(stored.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(result[axis] for axis in stored), tuple(stored.index(axis) for axis in range(len(result)))


# Ops that compute each element of the result from elements at the same place

_ELEMENTWISE = """
Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid
HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not PRelu Reciprocal Relu Round Selu Shrink Sigmoid Sign Silu Sin
Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu
"""

QUANTISING_OPS = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Ops between floats and bytes. A scale of several elements lies along one axis."""

ELEMENTWISE_OPS = BROADCASTING_OPS | QUANTISING_OPS | frozenset(_ELEMENTWISE.split())
"""All elementwise ops. Further operands (Clip's limits, PRelu's slope) broadcast to the first."""
