"""A graph cut into steps: what sessions can take, and what PyTorch runs in between."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .arrays import is_plain, memory_order
from .differences import difference, is_view
from .onnx_writer import is_known
from .sizes import SOURCES, is_free, is_number

aten = torch.ops.aten

LEAST_NODES = 4
"""Fewer nodes that compute something are not worth a session, unless a product is among them."""

PRODUCTS = frozenset({
    aten.convolution.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.mm.default,
    aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.linear.default, aten.matmul.default,
    aten.scaled_dot_product_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
})  # fmt: skip


class Unknown(Exception):
    """A number that does not follow from the sizes of a step's inputs, and the name of the node that reads it."""

    def __init__(self, node: str) -> None:
        super().__init__("it reads a number that is no size of a tensor")
        self.node = node


@dataclass(frozen=True, slots=True)
class GraphStep:
    """Nodes that run at once: by a session, or by PyTorch."""

    nodes: tuple[Any, ...]
    is_ours: bool


@dataclass(frozen=True, slots=True)
class StepModule:
    """A step as a module, from values outside of it to those that are read outside of it, by name."""

    module: Any  # of fx
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    orders: tuple[tuple[int, ...] | None, ...]  # of the axes of each output in memory: the module gives them so


def why_not(node: Any) -> str:
    """Why no session takes a node, in a word or two; "" where nothing is known against it."""
    target = node.target
    if node.op != "call_function":
        return str(node.op)
    if target is operator.getitem:
        return why_not(node.args[0])
    if not is_known(target):
        return "no ONNX op"
    if reason := difference(node):
        return reason
    if isinstance(target, OpOverload):
        if target._schema.is_mutable:  # noqa: SLF001
            return "writes its operand"
        if torch.Tag.nondeterministic_seeded in target.tags and not _draws_nothing(node):
            return "random"
    values = [value for one in (node, *node.all_input_nodes) for value in _values(one)]
    if not all(is_plain(value) or isinstance(value, int | torch.SymInt) for value in values):
        return "a type or device that sessions don't take"
    if any(free_unbacked_symbols(value) for value in values):
        return "a size that only running tells"
    return ""


def _draws_nothing(node: Any) -> bool:
    """Whether a node is attention that drops nothing out."""
    names = (argument.name for argument in node.target._schema.arguments)  # noqa: SLF001
    arguments = dict(zip(names, node.args, strict=False))
    return "attention" in node.target.name() and not (arguments | node.kwargs).get("dropout_p", 0.0)


def _values(node: Any) -> Iterable[Any]:
    """The results of a node in the example."""
    value = node.meta.get("val")
    return [one for one in value if one is not None] if isinstance(value, list | tuple) else [value]


def cut(graph: Any, untaken: Mapping[str, str]) -> list[GraphStep]:
    """The steps of a graph in order; sessions take all nodes that are not `untaken`.

    Each way through the graph passes from one step to later ones alone, so that every step runs in one go. Numbers that
    follow from the graph's inputs belong to no step: each has those that it reads.
    """
    places: dict[Any, int] = {}  # even: ours, odd: PyTorch's
    results = set(graph.output_node().all_input_nodes)
    for node in graph.nodes:
        if node.op in (*SOURCES, "output") or (is_free(node) and node not in results):
            continue
        operands = [operand for operand in node.all_input_nodes if not is_free(operand)]
        if node.target is operator.getitem and operands:  # a part of a result
            places[node] = places[operands[0]]
            continue
        is_ours = node.name not in untaken and not is_number(node)
        before = [places[operand] + (places[operand] % 2 == is_ours) for operand in operands]
        places[node] = max(before, default=0 if is_ours else -1)
    numbers = sorted(set(places.values()))
    return [
        GraphStep(tuple(node for node, place in places.items() if place == number), number % 2 == 0)
        for number in numbers
    ]


def is_small(step: GraphStep) -> bool:
    """Whether a step is not worth a session."""
    count = sum(not is_view(node) and node.target is not operator.getitem for node in step.nodes)
    return count < LEAST_NODES and not any(node.target in PRODUCTS for node in step.nodes)


def step_module(step: GraphStep, owner: Any) -> StepModule:
    """A step as a module with the attributes of `owner`. Raises Unknown where it reads a number it can't know."""
    return _Extraction(step, owner).result()


def _sources(node: Any) -> Iterator[Any]:
    """What a node reads; in the place of numbers that belong to no step, what these read."""
    for operand in node.all_input_nodes:
        if operand.op == "call_function" and is_free(operand):
            yield from _sources(operand)
        else:
            yield operand


class _Extraction:
    """Copies the nodes of a step into a graph of their own."""

    def __init__(self, step: GraphStep, owner: Any) -> None:
        self._step, self._owner = step, owner
        self._graph = fx.Graph()
        self._copies: dict[Any, Any] = {}
        self._inputs: list[Any] = []

    def result(self) -> StepModule:
        own = set(self._step.nodes)
        for operand in dict.fromkeys(source for node in self._step.nodes for source in _sources(node)):
            if operand not in own and not (self._step.is_ours and is_number(operand)):
                self._add_input(operand)
        for node in self._step.nodes:
            self._reader = node.name
            self._copies[node] = self._graph.node_copy(node, self._copy)
        outputs = [node for node in self._step.nodes if any(user not in own for user in node.users)]
        outputs = [node for node in outputs if not isinstance(node.meta.get("val"), list | tuple)]
        results = [self._in_memory_order(node) for node in outputs]
        self._graph.output(tuple(result for result, _ in results))
        self._graph.lint()
        return StepModule(
            fx.GraphModule(self._owner, self._graph),
            tuple(node.name for node in self._inputs),
            tuple(node.name for node in outputs),
            tuple(order for _, order in results),
        )

    def _add_input(self, node: Any) -> Any:
        if node.op == "get_attr" and not self._step.is_ours:
            copy = self._graph.node_copy(node)
        else:
            copy = self._graph.placeholder(node.name)
            copy.meta["val"] = node.meta.get("val")
            self._inputs.append(node)
        self._copies[node] = copy
        return copy

    def _copy(self, node: Any) -> Any:
        """The copy of an operand. A number comes from the sizes of inputs, where there is no copy yet."""
        if node not in self._copies:
            self._copies[node] = self._number(node)
        return self._copies[node]

    def _number(self, node: Any) -> Any:
        """A number that belongs to no step; for a session it comes from the sizes of its inputs."""
        value = node.meta["val"]
        if self._step.is_ours and (size := self._size(value)) is not None:
            return size
        if node.op != "call_function" or not is_free(node):
            raise Unknown(self._reader)
        return self._graph.node_copy(node, self._copy)

    def _size(self, value: Any) -> Any:
        """A size of an input that is this number; None where there is none."""
        if isinstance(value, int):
            return value
        for node in self._inputs:
            for axis, extent in enumerate(node.meta["val"].shape):
                if isinstance(extent, torch.SymInt) and extent.node.expr == value.node.expr:
                    size = self._graph.call_function(aten.sym_size.int, (self._copies[node], axis))
                    size.meta["val"] = value
                    return size
        return None

    def _in_memory_order(self, node: Any) -> tuple[Any, tuple[int, ...] | None]:
        """An output as it lies in memory in PyTorch, which what reads it may rely on."""
        order = memory_order(node.meta["val"]) if self._step.is_ours else None
        if order is None:
            return self._copies[node], None
        moved = self._graph.call_function(aten.permute.default, (self._copies[node], list(order)))
        moved.meta["val"] = node.meta["val"].permute(order)
        return moved, order
