"""CapturedGraph: a graph that PyTorch gave, and what became of it."""

from __future__ import annotations

import operator
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tunewright.tuner.text import counted, shorten

from .cut import GraphStep, Unknown, cut, is_small, step_module, why_not
from .differences import VIEWS, untaken_by_memory
from .onnx_writer import OnnxWriter, Untranslated
from .options import BackendOptions
from .part import GraphPart
from .sizes import settle

MOST_CUTS = 16
"""Times that a graph is cut again, as a node turned out to have no translation."""

SMALL = "too few nodes in one piece"
"""Why nodes are left to PyTorch where that is as it should be."""

MOST_TOLD = 400
"""Characters of a note on nodes that are left to PyTorch."""

_graphs: list[weakref.ref[CapturedGraph]] = []


def graphs() -> list[CapturedGraph]:
    """The graphs that `torch.compile` gave to the backend in this process and that are still in use, in order."""
    kept = [(reference, graph) for reference in _graphs if (graph := reference()) is not None]
    _graphs[:] = [reference for reference, _ in kept]
    return [graph for _, graph in kept]


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step with what runs it, its values by number, and those that nothing reads behind it."""

    run: Callable[..., Sequence[Any]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    last: tuple[int, ...]


class CapturedGraph:
    """Runs a graph of ATen ops: `parts` by sessions, and by PyTorch the rest, which `by_pytorch` counts."""

    def __init__(self, module: Any, weights: Collection[int], options: BackendOptions) -> None:
        """`weights` are the numbers of the inputs that stay as they are from run to run."""
        self._module = module
        settle(module.graph)
        module.graph.eliminate_dead_code()
        nodes = list(module.graph.nodes)
        inputs = [node.name for node in nodes if node.op == "placeholder"]
        constants = {node.name: _attribute(module, node) for node in nodes if node.op == "get_attr"}
        self._constants = list(constants.values())
        self._numbers = {name: number for number, name in enumerate((*inputs, *constants))}
        self._weights = {inputs[number] for number in weights} | {*constants}
        self._calls = [node for node in nodes if node.op == "call_function"]
        self._untaken = {node.name: why for node in self._calls if (why := why_not(node))}
        self._untaken |= untaken_by_memory(module.graph)
        self.parts: list[GraphPart] = []
        self._steps = self._run_steps(options)
        results = module.graph.output_node().args[0]
        self._results = [(self._numbers.get(getattr(result, "name", "")), result) for result in results]
        _graphs.append(weakref.ref(self))

    def _run_steps(self, options: BackendOptions) -> list[RunStep]:
        steps, written = self._written()
        modules = [step_module(step, self._module) for step in steps]
        read = {node.name for node in self._module.graph.output_node().all_input_nodes}
        run_steps: list[RunStep] = []
        for step, module in zip(reversed(steps), reversed(modules), strict=True):
            last = {*module.inputs, *module.outputs} - read
            read |= {*module.inputs}
            run: Callable[..., Sequence[Any]] = module.module
            if step.is_ours:
                weights = [number for number, name in enumerate(module.inputs) if name in self._weights]
                run = GraphPart(module, written[step], weights, options)
                self.parts.insert(0, run)
            inputs, outputs, over = (self._numbered(names) for names in (module.inputs, module.outputs, last))
            run_steps.insert(0, RunStep(run, inputs, outputs, over))
        return run_steps

    def _numbered(self, names: Iterable[str]) -> tuple[int, ...]:
        """The numbers of values; new ones get theirs."""
        return tuple(self._numbers.setdefault(name, len(self._numbers)) for name in names)

    def _written(self) -> tuple[list[GraphStep], dict[GraphStep, OnnxWriter]]:
        """The steps, and the models of ours. What can't be written is untaken from then on."""
        written: dict[GraphStep, OnnxWriter] = {}
        for _ in range(MOST_CUTS):
            steps = cut(self._module.graph, self._untaken)
            faults: dict[str, str] = {}
            for step in steps:
                if step.is_ours and step not in written:
                    faults |= self._write(step, written)
            if not faults:
                return steps, written
            self._untaken |= faults
        self._untaken |= {node.name: "too many nodes have no translation" for node in self._calls}
        return cut(self._module.graph, self._untaken), {}

    def _write(self, step: GraphStep, written: dict[GraphStep, OnnxWriter]) -> dict[str, str]:
        """Write a step; its nodes that can't be, with the reasons."""
        names = [node.name for node in step.nodes]
        if is_small(step):
            return dict.fromkeys(names, SMALL)
        try:
            written[step] = OnnxWriter(step_module(step, self._module).module)
        except (Unknown, Untranslated) as fault:
            return {fault.node: str(fault)} if fault.node in names else dict.fromkeys(names, str(fault))
        return {}

    def __call__(self, *arguments: Any) -> list[Any]:
        """The results for the inputs, in order."""
        values = [*arguments, *self._constants]
        values += [None] * (len(self._numbers) - len(values))
        for step in self._steps:
            results = step.run(*[values[number] for number in step.inputs])
            for number, result in zip(step.outputs, results, strict=True):
                values[number] = result
            for number in step.last:
                values[number] = None
        return [result if number is None else values[number] for number, result in self._results]

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return len(self._calls)

    @property
    def is_left(self) -> bool:
        """Whether PyTorch runs all of it."""
        return all(part.fault for part in self.parts)

    @property
    def by_pytorch(self) -> dict[str, int]:
        """How many nodes PyTorch runs, by their op."""
        faulty = (op for part in self.parts if part.fault for op in part.ops)
        return dict(Counter(op for op, _ in self._untaken_ops()) + Counter(faulty))

    def _untaken_ops(self) -> list[tuple[str, str]]:
        """The op of each such node, and why it is one."""
        nodes = [node for node in self._calls if node.name in self._untaken and node.target is not operator.getitem]
        return [(str(node.target), self._untaken[node.name]) for node in nodes]

    @property
    def notes(self) -> tuple[str, ...]:
        """What keeps it from being as fast as it can be, a line each."""
        lines = [f"left to PyTorch: {part}, because {part.fault}" for part in self.parts if part.fault]
        ops = [(op, why) for op, why in self._untaken_ops() if why not in (SMALL, VIEWS)]
        if ops:
            told = shorten(
                ", ".join(f"{count} {op} ({why})" for (op, why), count in Counter(ops).most_common()), MOST_TOLD
            )
            lines.insert(0, f"left to PyTorch: {len(ops)} of {counted(self.nodes, 'node')}: {told}")
        sessions = [part.session for part in self.parts if part.session is not None]
        return (*lines, *dict.fromkeys(note for session in sessions for note in session.notes))


def _attribute(module: Any, node: Any) -> Any:
    """What a node takes from the module."""
    value = module
    for name in node.target.split("."):
        value = getattr(value, name)
    return value
