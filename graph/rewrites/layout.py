"""Channels last: convolutions and pools work on `[N, *spatial, C]`; Transposes stay where the model begins and ends.

Transposing is put off. A tensor that some node left in another order of axes is *held*: known as `Transpose(stored,
perm)` and made only for a reader that can't do with `stored`. A Transpose of the model is such a promise too, so those
that undo each other vanish, and an elementwise op between two convolutions never sees one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tunewright.graph.channels import (
    CHANNELS_LAST_OPS,
    CONVOLUTIONS,
    first_from_last,
    inverse,
    is_channels_last,
    weight_last_from_first,
)
from tunewright.graph.inference import TypeFault, infer
from tunewright.graph.ir import Graph, Node, TensorType, Value

from .axes import MOVED_OPS, moved
from .edit import Edit, log
from .elementwise import ELEMENTWISE_OPS, QUANTISING_OPS
from .movement import moves_nothing
from .regroup import Regrouped, regroup

Perm = tuple[int, ...]


def channels_last(graph: Graph) -> Graph:
    """Convolutions, pools and their kind with channels last, and everything between them in that order.

    Before: `a = Conv(x, w); b = Relu(a); y = Conv(b, v)`.
    After: `s = Transpose(x); a = Conv(s, w') channels_last; b = Relu(a); c = Conv(b, v') channels_last;
    y = Transpose(c)`.
    """
    return Layout(graph).graph()


class Layout:
    """One pass over a graph. Nodes arrive with the model's names; every name has at least one stored form."""

    def __init__(self, graph: Graph) -> None:
        self._source = graph
        self._edit = Edit(graph)
        self._forms: dict[str, dict[Perm, str]] = {}  # name -> perm -> stored, with name = Transpose(stored, perm)
        self._scrambled: dict[str, Regrouped] = {}  # flattened rows in another order, for MatMuls with known weights
        self._readers = graph.consumers()

    def graph(self) -> Graph:
        """The graph rewritten."""
        for node in self._source.nodes:
            self._visit(node)
        outputs = [Value(value.label, self._plain(value.tensor)) for value in self._source.outputs]
        return self._edit.finish(self._source.inputs, outputs)

    # Stored forms

    def _known(self, name: str) -> dict[Perm, str]:
        """The stored forms of a tensor; the model's own if there is no other."""
        if name not in self._forms:
            self._forms[name] = {tuple(range(self._edit.rank(name))): name}
        return self._forms[name]

    def _hold(self, name: str, stored: str, perm: Perm) -> None:
        self._forms.setdefault(name, {})[perm] = stored

    def _form(self, name: str, perm: Perm) -> str:
        """`stored` with name = Transpose(stored, perm), made if need be."""
        forms = self._known(name)
        if perm not in forms:
            held, source = next(iter(forms.items()))
            needed = tuple(held[axis] for axis in inverse(perm))
            identity = perm == tuple(range(len(perm)))
            forms[perm] = self._transposed(source, needed, name if identity else "")
        return forms[perm]

    def _transposed(self, source: str, perm: Perm, to: str = "") -> str:
        shape = self._edit.shape(source) or ()
        if perm == tuple(range(len(perm))):
            return source
        if moves_nothing(shape, perm):
            return self._edit.emit("Reshape", source, to=to, shape=tuple(shape[axis] for axis in perm))
        return self._edit.emit("Transpose", source, to=to, perm=perm)

    def _plain(self, name: str) -> str:
        """The tensor in the model's own order."""
        rank = self._edit.rank(name) if name else -1
        return name if rank < 0 else self._form(name, tuple(range(rank)))

    def _held(self, name: str) -> Perm | None:
        """The first perm under which a tensor is stored, if it is not in the model's own order anyway."""
        forms = self._forms.get(name, {})
        own = tuple(range(self._edit.rank(name)))
        return next(iter(forms)) if forms and own not in forms else None

    # Nodes

    def _visit(self, node: Node) -> None:
        static = all(self._edit.shape(name) is not None for name in (*node.inputs, *node.outputs) if name)
        try:
            handled = static and not node.domain and self._moved(node)
        except TypeFault as fault:
            log.warning("%s stays as it is: %s", node, fault)
            handled = False
        if not handled:
            self._add(node, [self._plain(name) for name in node.inputs])

    def _moved(self, node: Node) -> bool:
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
        return node.op in MOVED_OPS and self._along_axes(node)

    def _is_elementwise(self, node: Node) -> bool:
        """Where quantised numbers have a scale for each place of an axis, that does not broadcast as others do."""
        alike = node.op not in QUANTISING_OPS or all(prod(self._edit.shape(n) or ()) == 1 for n in node.inputs[1:] if n)
        return node.op in ELEMENTWISE_OPS and len(node.outputs) == 1 and alike

    def _add(self, node: Node, inputs: Sequence[str]) -> None:
        """The node as it is, on the given tensors."""
        self._edit.add(replace(node, inputs=tuple(inputs)))

    def _add_held(self, node: Node, inputs: Sequence[str], attrs: Mapping[str, Any], perms: Sequence[Perm]) -> None:
        """The node on stored tensors, with outputs held under `perms`."""
        outputs = []
        for name, perm in zip(node.outputs, perms, strict=True):
            shape, dtype = self._edit.shape(name) or (), self._edit.types[name].dtype
            if len(shape) != len(perm):
                raise TypeFault(f"{node} makes {len(shape)} dimensions")
            outputs.append(self._edit.fresh(TensorType(dtype, tuple(shape[axis] for axis in inverse(perm)))))
        fresh = replace(node, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs)
        kinds = infer(fresh, self._edit.types, self._edit.constants)
        if kinds != tuple(map(self._edit.types.get, outputs)):
            raise TypeFault(f"{fresh} makes {', '.join(map(str, kinds))}")
        self._edit.add(fresh)
        for name, stored, perm in zip(node.outputs, outputs, perms, strict=True):
            self._hold(name, stored, perm)

    def _window(self, node: Node) -> bool:
        rank = self._edit.rank(node.inputs[0])
        if rank < 3 or len(node.outputs) > 1 or is_channels_last(node):
            return False
        if node.op in ("DepthToSpace", "SpaceToDepth") and rank != 4:
            return False
        inputs = [self._form(node.inputs[0], first_from_last(rank)), *map(self._plain, node.inputs[1:])]
        if node.op in CONVOLUTIONS:
            inputs[1] = self._transposed(inputs[1], weight_last_from_first(node.op, rank))
        self._add_held(node, inputs, {**node.attrs, "channels_last": True}, [first_from_last(rank)])
        return True

    def _transpose(self, node: Node) -> bool:
        perm = node.attrs["perm"]
        for held, stored in list(self._known(node.inputs[0]).items()):
            self._hold(node.outputs[0], stored, tuple(held[axis] for axis in perm))
        return True

    def _along_axes(self, node: Node) -> bool:
        """Ops with axes among their attributes, which move along."""
        count = len(node.inputs) if node.op == "Concat" else 1
        perm = self._chosen(node.inputs[:count])
        result = moved(node, perm) if perm is not None else None
        if perm is None or result is None:
            return False
        attrs, perms = result
        inputs = [self._form(name, perm) for name in node.inputs[:count]]
        self._add_held(node, [*inputs, *map(self._plain, node.inputs[count:])], attrs, perms)
        return True

    def _elementwise(self, node: Node) -> bool:
        rank = self._edit.rank(node.outputs[0])
        perm = self._chosen([name for name in node.inputs if name and self._edit.rank(name) == rank])
        if perm is None:
            return False
        inputs = [self._operand(name, perm) if name else "" for name in node.inputs]
        self._add_held(node, inputs, node.attrs, [perm])
        return True

    def _operand(self, name: str, perm: Perm) -> str:
        """An operand in the order of the result, whatever its own rank."""
        shape = self._edit.shape(name) or ()
        if prod(shape) == 1 and len(shape) <= len(perm):
            return self._plain(name)
        if len(shape) == len(perm):
            return self._form(name, perm)
        full = self._edit.emit("Reshape", self._plain(name), shape=(1,) * (len(perm) - len(shape)) + shape)
        return self._transposed(full, inverse(perm))

    def _chosen(self, names: Sequence[str]) -> Perm | None:
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
        forms = self._known(name)
        shape = self._edit.shape(name) or ()
        if perm in forms or name in self._edit.constants:
            return 0
        held, source = next(iter(forms.items()))
        needed = tuple(held[axis] for axis in inverse(perm))
        return 0 if moves_nothing(self._edit.shape(source) or (), needed) else prod(shape)

    # Reshape

    def _reshape(self, node: Node) -> bool:
        source, result = node.inputs[0], node.outputs[0]
        perm = self._held(source)
        if perm is None or 0 in (self._edit.shape(source) or ()):
            return False
        plan = regroup(self._edit.shape(source) or (), self._edit.shape(result) or (), perm)
        if plan is None:
            return False
        if plan.order is not None:
            if self._flattened(node, perm):
                return True
            # What must be transposed anyway may as well get the model's own order, unless channels are last otherwise.
            if len(plan.shape) < 4 or plan.perm != first_from_last(len(plan.shape)):
                return False
            stored = self._form(source, plan.order)
        else:
            stored = self._form(source, perm)
        self._hold(result, self._edit.emit("Reshape", stored, shape=plan.shape), plan.perm)
        return True

    def _flattened(self, node: Node, perm: Perm) -> bool:
        """Rows that MatMuls with known weights read may stay in the stored order: the weights' rows move instead."""
        source, result = node.inputs[0], node.outputs[0]
        given, made = self._edit.shape(source) or (), self._edit.shape(result) or ()
        wanted = {value.tensor for value in self._source.outputs}
        readers = self._readers.get(result, [])
        known = [reader for reader in readers if reader.op == "MatMul" and reader.inputs[0] == result]
        if not readers or len(known) < len(readers) or result in wanted or perm[0] != 0:
            return False
        if made != (given[0], prod(given[1:])) or any(self._edit.rank(reader.inputs[1]) != 2 for reader in known):
            return False
        if any(reader.inputs[1] not in self._edit.constants for reader in known):
            return False
        stored = self._edit.emit("Reshape", self._form(source, perm), shape=made)
        order = tuple(axis - 1 for axis in inverse(perm)[1:])
        self._scrambled[result] = Regrouped(given[1:], order, stored)
        return True

    def _product(self, node: Node) -> bool:
        rows = self._scrambled.get(node.inputs[0])
        if rows is None:
            return False
        weight = np.asarray(self._edit.constants[node.inputs[1]])
        parts = weight.reshape(*rows.extents, -1).transpose(*rows.order, len(rows.order))
        moved_weight = self._edit.constant(np.ascontiguousarray(parts).reshape(weight.shape))
        self._add(node, [rows.stored, moved_weight])
        return True
