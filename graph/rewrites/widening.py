"""Widening: float16 and bfloat16 as float32, on machines that compute in no other type and have no lack of memory.

Only what a step function depends on is rounded after each node, as the model says (`rounding`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import TensorProto

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.draft import Draft
from tunewright.graph.ir import Graph, Node, TensorType

from ..evaluation.onnx_form import TypeFault, infer
from ..rounding import decisive_tensors

FLOAT32 = DType.F32.value


def narrow_floats(graph: Graph) -> Graph:
    """The graph with narrow floats only in its inputs and outputs, and around nodes that can have no other type.

    Results are as near to the exact ones as before, or nearer: nothing is rounded in between, but where a step
    function follows.

    Before: `y = Relu(x); return y`, both float16. After: `a = Cast(x); b = Relu(a); y = Cast(b); return y`, a and b
    float32.
    """
    if not any(_is_narrow(kind) for kind in graph.types.values()):
        return graph
    widening = _Widening(graph)
    for node in graph.nodes:
        widening.take(node)
    for value in graph.outputs:
        widening.narrow(value.tensor)
    return widening.finish(graph.inputs, graph.outputs)


def _is_narrow(kind: TensorType) -> bool:
    dtype = DType.of(kind.dtype)
    return dtype is not None and dtype.is_narrow


class _Widening(Draft):
    """The graph being widened. Each narrow tensor is defined itself, as its float32 twin, or both."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._decisive = decisive_tensors(graph, edges=False)
        self._defined = {value.tensor for value in graph.inputs} | set(graph.constants)
        self._twins: dict[str, str] = {}

    def take(self, node: Node) -> None:
        """Add a node, in float32 if it can be."""
        kinds = [self.types[name] for name in (*node.inputs, *node.outputs) if name]
        if not any(map(_is_narrow, kinds)):
            self.add(node)
        elif not self._widen(node, kinds):
            for name in filter(None, node.inputs):
                self.narrow(name)
            self.add(node)
            self._defined.update(node.outputs)

    def _widen(self, node: Node, kinds: list[TensorType]) -> bool:
        """Add a node in float32. False if its type is not that of its operands, or they are more than tensors."""
        has_bodies = any(isinstance(value, bytes) for value in node.attrs.values())
        if node.domain or has_bodies or any(kind.dtype == "object" for kind in kinds):
            return False
        attrs = dict(node.attrs)
        if node.op == "Cast" and _is_narrow(self.types[node.outputs[0]]):
            attrs["to"] = int(TensorProto.FLOAT)
        inputs = tuple(map(self._wide, node.inputs))
        outputs = tuple(map(self._fresh_twin, node.outputs))
        wide = replace(node, inputs=inputs, outputs=outputs, attrs=attrs)
        try:
            inferred_types = infer(wide, self.types, self.constants)
        except TypeFault:
            return False
        if any(
            name and kind.dtype != self.types[name].dtype for name, kind in zip(outputs, inferred_types, strict=True)
        ):
            return False
        self.add(wide)
        for old, new in zip(node.outputs, outputs, strict=True):
            if old == new:
                continue
            if old in self._decisive:
                self._defined.add(self.cast(new, self.types[old].dtype, old))
                new = self.cast(old, FLOAT32)
            self._twins[old] = new
        return True

    def _fresh_twin(self, name: str) -> str:
        if not name or not _is_narrow(self.types[name]):
            return name
        return self.new_tensor(TensorType(FLOAT32, self.types[name].shape))

    def _wide(self, name: str) -> str:
        """The float32 twin of a tensor."""
        if not name or not _is_narrow(self.types[name]):
            return name
        if name not in self._twins:
            array = self.array(name)
            if array is not None:
                self._twins[name] = self.constant(array.astype(np.float32))
            else:
                self._twins[name] = self._fresh_twin(name)
                self.cast(name, FLOAT32, self._twins[name])
        return self._twins[name]

    def narrow(self, name: str) -> None:
        """Add a tensor in its own type, if only its float32 twin is defined."""
        if name not in self._defined and name in self._twins:
            self.cast(self._twins[name], self.types[name].dtype, name)
            self._defined.add(name)
