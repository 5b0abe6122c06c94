"""The graph of tasks of a model that was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.control.flat import FlatStep, read_names
from tunewright.graph.control.steps import Branch, EndBranch, LoopEnd, LoopStart, MovingView, Routine, TensorCopy
from tunewright.graph.evaluation.sizes import CUT
from tunewright.graph.fusion.fusion import Fallback, TaskCall
from tunewright.graph.ir import Node, TensorType
from tunewright.graph.ops import TensorView

from ..text import printable
from .assembly import CallRange
from .model import Model
from .task_graph import (
    MOST_BYTES,
    MOST_EDGES,
    MOST_LETTERS,
    MOST_NAMED,
    MOST_NODES,
    MOST_SOURCES,
    ModelStep,
    PlacedChain,
    StepKind,
    TaskGraph,
)

_SIZES = {dtype.value: dtype.size_bytes for dtype in DType}


def graph_of_model(model: Model, *, with_names: bool = False) -> TaskGraph:
    """The graph of a model, before it is chosen which segments it runs; `with_names` of the model's nodes."""
    count = len(model.graph.inputs) + len(model.graph.outputs) + len(model.steps)
    return (
        TaskGraph((), left_out=count)
        if count > MOST_NODES
        else _TaskGraphBuilder(model, with_names, MOST_NAMED).graph()
    )


@dataclass(slots=True)
class _TaskGraphBuilder:
    """The steps so far, and who made what they read."""

    model: Model
    with_names: bool
    names_left: int  # letters
    steps: list[ModelStep] = field(default_factory=list)
    roots: dict[str, str] = field(default_factory=dict)  # view -> the tensor whose memory it is
    makers: dict[str, list[int]] = field(default_factory=dict)  # tensor with memory -> places of those that wrote to it
    around: list[int] = field(default_factory=list)  # places of the control flow that the next step stands in
    last_names: tuple[str, ...] = ()
    edges_left: int = MOST_EDGES

    def graph(self) -> TaskGraph:
        numbers = {key: number for number, key in enumerate(self.model.tasks)}
        for port in self.model.graph.inputs:
            self._add(ModelStep(StepKind.INPUT, "input"), (), (port.tensor,))
        calls: dict[tuple[str, ...], int] = {}  # outputs of a call -> its place
        for step in self.model.steps:
            if isinstance(step, TaskCall):
                calls[step.outputs] = len(self.steps)
            self._add_step(step, numbers)
        for port in self.model.graph.outputs:
            if not port.is_size:
                self._add(ModelStep(StepKind.OUTPUT, "output"), (port.tensor,), (port.tensor,), makes=False)
        chains = tuple(
            PlacedChain(
                tuple(calls[call.outputs] for call in chain.calls),
                tuple(CallRange(one.start, one.stop, numbers[one.call.task.key]) for one in chain.segments),
            )
            for chain in self.model.chains
        )
        return TaskGraph(tuple(self.steps), chains)

    def _add_step(self, step: FlatStep, numbers: Mapping[str, int]) -> None:
        match step:
            case TensorView(input=of, output=output) | MovingView(of=of, output=output):
                self.roots[output] = self._root(of)
            case TensorCopy(source=source, output=output):
                self.makers.setdefault(self._root(output), []).extend(self.makers.get(self._root(source), ()))
            case TaskCall():
                made = ModelStep(StepKind.TASK, task=numbers[step.task.key])
                self._add(made, step.inputs, step.outputs, step.nodes or None)
            case Fallback(node=node) if node.op == CUT:
                self.roots[node.outputs[0]] = self._root(node.inputs[0])
            case Fallback(node=node):
                self._add(ModelStep(StepKind.FALLBACK, node.op), node.inputs, node.outputs, (node,))
            case Routine(node=node):
                self._add(ModelStep(StepKind.RUNTIME, node.op), step.inputs, step.outputs, (node,))
            case Branch() | LoopStart():
                op = "If" if isinstance(step, Branch) else "Loop"
                self._add(ModelStep(StepKind.RUNTIME, op), read_names(step), ())
                self.around.append(len(self.steps) - 1)
            case EndBranch() | LoopEnd():
                self.around.pop()

    def _add(
        self,
        step: ModelStep,
        inputs: Sequence[str],
        outputs: Sequence[str],
        nodes: Sequence[Node] | None = (),
        *,
        makes: bool = True,
    ) -> None:
        """Add a step that reads and writes these tensors; nodes None: those of the step before, in another round."""
        sources = sorted({place for name in inputs for place in self.makers.get(self._root(name), ())})
        names = self._names(nodes)
        kind, size_bytes = self._type(outputs)
        sources = (sources or self.around[-1:])[-MOST_SOURCES if self.edges_left > 0 else -1 :]
        self.edges_left -= len(sources)
        step = replace(step, op=_text(step.op), type=kind, size_bytes=size_bytes, names=names)
        self.steps.append(replace(step, sources=tuple(sources)))
        for name in outputs if makes else ():
            made = self.makers.setdefault(self._root(name), [])
            if name not in self.roots:  # all of it, and not a part of what others write to as well
                made.clear()
            made.append(len(self.steps) - 1)

    def _root(self, tensor: str) -> str:
        return self.roots.get(tensor, tensor)

    def _names(self, nodes: Sequence[Node] | None) -> tuple[str, ...]:
        if not self.with_names:
            return ()
        if nodes is not None:
            self.last_names = tuple(dict.fromkeys(_text(name) for node in nodes for name in node.names))
        self.names_left -= sum(map(len, self.last_names))
        return self.last_names if self.names_left >= 0 else ()

    def _type(self, outputs: Sequence[str]) -> tuple[str, int]:
        types = self.model.graph.types
        kind = next((types[name] for name in (*outputs, *map(self._root, outputs)) if name in types), None)
        if kind is None:
            return "", 0
        return _text(str(kind)), min(_size_bytes(kind), MOST_BYTES)


def _text(text: str) -> str:
    """A text of the model as any database can keep it."""
    return printable(text)[:MOST_LETTERS]


def _size_bytes(kind: TensorType) -> int:
    """Bytes of a tensor; 0 where only running the model tells, and for texts."""
    return 0 if kind.shape is None else prod(kind.shape) * _SIZES.get(kind.dtype, 0)
