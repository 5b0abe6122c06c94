"""Results whose size only a run tells, computed at their bounds: what follows has a shape, and so kernels.

What is found (`selection`) is written by functions of the runtime (`evaluation.sizes`), and other shapes are computed
(`runtime_shapes`). A bound is the number of elements that are looked at, so it is never exceeded. What no rule of
`sized_axes` follows takes a tensor that is cut to its size. So are outputs of the model, by the session. No bit
changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tunewright.graph.ir import Graph, GraphPort, Node

from ..evaluation.onnx_form import NORMAL_VERSION, TypeFault, infer
from ..evaluation.sizes import CUT
from ..onnx_import.normal import normal
from .edit import Edit
from .runtime_shapes import SHAPED, SHAPED_BY
from .selection import SELECTIONS, Source, is_quick
from .sized_axes import AXIS_RULES, BY_SHAPE, SizedTensors

_SOURCES: Mapping[str, Source] = {**SELECTIONS, **SHAPED}


def sizes(graph: Graph) -> Graph:
    """Compute at bounds what only a run tells the size of.

    Before: `i = NonZero(x); y = Transpose(i)`, x `[5]`.
    After: `p, n = FindTrue(Cast(x)); y = CutToSize(Reshape(p) shape=(5, 1), n) axes=(0,)`.
    """
    if not any(node.op in _SOURCES and not node.domain and _is_open(graph, node) for node in graph.nodes):
        return graph
    return _BoundWalk(SizedTensors(Edit(graph))).run(graph)


def _is_open(graph: Graph, node: Node) -> bool:
    """Whether a run may have to tell a size of what a node makes."""
    return node.op in SELECTIONS or not all(
        name in graph.constants for name in node.inputs[SHAPED_BY[node.op] :] if name
    )


def cut_outputs(graph: Graph) -> Graph:
    """Leave it to the session to cut outputs of the model to their sizes, which become outputs for it alone.

    Before: `y = CutToSize(x, n) axes=(0,); return y`. After: `return x, n`.
    """
    producers = graph.producers()
    ports, hidden = [], list[GraphPort]()
    for port in graph.outputs:
        node = producers.get(port.tensor)
        if node is not None and node.op == CUT:
            x, *names = node.inputs
            first = len(graph.outputs) + len(hidden)
            pairs = tuple((axis, first + k) for k, axis in enumerate(node.attrs["axes"]))
            hidden += [GraphPort("", name, is_size=True) for name in names]
            port = replace(port, tensor=x, sizes=pairs)
        ports.append(port)
    return replace(graph, outputs=(*ports, *hidden)) if hidden else graph


@dataclass(slots=True)
class _BoundWalk:
    """The nodes of a graph in order, each at the bounds of its operands where that can be.

    `bounds` maps a tensor of the graph to the one that stands for it; `cut` are those that exist as they were too.
    """

    sized: SizedTensors
    bounds: dict[str, str] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    def run(self, graph: Graph) -> Graph:
        """The graph at bounds; the cuts of its outputs come last, so that they part no kernels."""
        edit = self.sized.edit
        for node in graph.nodes:
            results = self._follow(node)
            if results is None:
                edit.add(replace(node, inputs=tuple(map(self._whole, node.inputs))))
                continue
            self.bounds.update((old, new) for old, new in zip(node.outputs, results, strict=True) if old)
        outputs = [replace(port, tensor=self._whole(port.tensor)) for port in graph.outputs]
        return edit.finish(graph.inputs, outputs)

    def _whole(self, name: str) -> str:
        """A tensor as the graph had it: cut to its sizes."""
        bounded = self.bounds.get(name, name)
        axes = self.sized.of(bounded)
        if not axes:
            return bounded
        if name not in self.cut:
            self.cut.add(name)
            node = Node(CUT, (bounded, *axes.values()), (name,), {"axes": tuple(axes)}, version=NORMAL_VERSION)
            self.sized.edit.add(node)
        return name

    def _follow(self, node: Node) -> tuple[str, ...] | None:
        """What stands for the outputs of a node; None where it has to take what it took."""
        if node.domain or node.bodies:
            return None
        bounded = replace(node, inputs=tuple(self.bounds.get(name, name) for name in node.inputs))
        if any(name and self.sized.edit.shape(name) is None for name in bounded.inputs):
            return None
        try:
            results = _SOURCES[node.op](self.sized, bounded) if node.op in _SOURCES else None
            if results is not None:
                return results
            return self._at_bounds(bounded) if any(name in self.bounds for name in node.inputs) else None
        except TypeFault:
            return None

    def _at_bounds(self, node: Node) -> tuple[str, ...] | None:
        """The outputs of a node at the bounds of its operands."""
        sized, edit = self.sized, self.sized.edit
        is_sized = any(map(sized.of, filter(None, node.inputs)))
        rule = AXIS_RULES.get(node.op)
        if is_sized and rule is None:
            return None
        kinds = infer(node, edit.types, edit.constants)
        if any(kind.shape is None or 0 in kind.shape for kind in kinds):
            return None
        outputs = tuple(edit.new_tensor(kind) if old else "" for old, kind in zip(node.outputs, kinds, strict=True))
        node = replace(node, outputs=outputs)
        if node.op not in BY_SHAPE:
            node = normal(edit, node)
        followed = rule(sized, node) if is_sized and rule is not None else (node, {})
        if followed is None:
            return None
        node, axes = followed
        node = normal(edit, node)
        if is_sized and not is_quick(edit, node):
            return None
        edit.add(node)
        sized.axes.update((name, axes) for name in outputs if name and axes)
        return outputs
