"""Deep and wide models: they compute the same, nothing that follows on fusion gets large, and work grows as they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.fusion.groups import fit
from tunewright.graph.fusion.segments import chains
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.rewrites.simplify import MAX_PARTS

from ..calls import calls

Nodes = list[NodeProto]
Constants = dict[str, Any]


def in_turn(*kinds: tuple[str, tuple[str, ...], dict[str, Any]]) -> Callable[[int], tuple[Nodes, Constants]]:
    """Nodes of these ops in turn: op, what it reads besides the result of the one before, attributes."""

    def build(count: int) -> tuple[Nodes, Constants]:
        nodes = []
        for n in range(count):
            op, operands, attrs = kinds[n % len(kinds)]
            nodes.append(helper.make_node(op, [f"t{n}", *operands], [f"t{n + 1}"], **attrs))
        return nodes, {"turned": np.array([7, 3]), "back": np.array([3, 7])}

    return build


def scalars(count: int) -> tuple[Nodes, Constants]:
    ops = ("Add", "Max", "Mul", "Min")
    nodes = [helper.make_node(ops[n % 4], [f"t{n}", f"c{n}"], [f"t{n + 1}"]) for n in range(count)]
    return nodes, {f"c{n}": 0.8 + n % 11 / 16 for n in range(count)}


def far_apart(count: int) -> tuple[Nodes, Constants]:
    """The second half reads what the first has made, the last first."""
    half = count // 2
    first = [helper.make_node(("Tanh", "Neg")[n % 2], [f"t{n}"], [f"t{n + 1}"]) for n in range(half)]
    second = [helper.make_node("Max", [f"t{n}", f"t{count - n}"], [f"t{n + 1}"]) for n in range(half, count)]
    return first + second, {}


def choices(count: int) -> tuple[Nodes, Constants]:
    nodes = []
    for n in range(count // 3):
        nodes.append(helper.make_node("Less", [f"t{n}", "zero"], [f"is{n}"]))
        nodes.append(helper.make_node("Cos" if n % 2 else "Tanh", [f"t{n}"], [f"other{n}"]))
        nodes.append(helper.make_node("Where", [f"is{n}", f"other{n}", f"t{n}"], [f"t{n + 1}"]))
    return nodes, {"zero": 0.125}


def products(count: int) -> tuple[Nodes, Constants]:
    nodes = []
    for n in range(count // 3):
        nodes.append(helper.make_node("MatMul", [f"t{n}", "w"], [f"product{n}"]))
        nodes.append(helper.make_node("Tanh", [f"product{n}"], [f"bound{n}"]))
        nodes.append(helper.make_node("Add", [f"bound{n}", f"t{n}"], [f"t{n + 1}"]))
    return nodes, {"w": np.random.default_rng(0).standard_normal((7, 7)) / 16}


def parts(count: int) -> tuple[Nodes, Constants]:
    nodes = [helper.make_node("Mul", ["t0", f"c{n}"], [f"part{n}"]) for n in range(count)]
    nodes.append(helper.make_node("Concat", [f"part{n}" for n in range(count)], [f"t{count}"], axis=0))
    return nodes, {f"c{n}": n / 8 for n in range(count)}


def summands(count: int) -> tuple[Nodes, Constants]:
    nodes = [helper.make_node("Max", ["t0", f"c{n}"], [f"part{n}"]) for n in range(count)]
    nodes.append(helper.make_node("Sum", [f"part{n}" for n in range(count)], [f"t{count}"]))
    return nodes, {f"c{n}": n / 256 for n in range(count)}


def known(count: int) -> tuple[Nodes, Constants]:
    nodes = [helper.make_node(("Sin", "Neg")[n % 2], [f"k{n}"], [f"k{n + 1}"]) for n in range(count)]
    return [*nodes, helper.make_node("Add", ["t0", f"k{count}"], [f"t{count}"])], {"k0": np.ones((3, 7))}


KINDS: Mapping[str, Callable[[int], tuple[Nodes, Constants]]] = {
    "one operand": in_turn(("Relu", (), {}), ("Sigmoid", (), {}), ("Neg", (), {}), ("Tanh", (), {}), ("Abs", (), {})),
    "integers between": in_turn(("Cast", (), {"to": TensorProto.INT32}), ("Cast", (), {"to": TensorProto.FLOAT})),
    "no kernel": in_turn(("Asinh", (), {}), ("Atan", (), {})),
    "identities": in_turn(("Identity", (), {})),
    "moved": in_turn(
        ("Transpose", (), {"perm": [1, 0]}), ("Reshape", ("back",), {}), ("Reshape", ("turned",), {}),
        ("Transpose", (), {"perm": [1, 0]}),
    ),
    "scalars": scalars,
    "far apart": far_apart,
    "choices": choices,
    "products": products,
    "parts": parts,
    "summands": summands,
    "known": known,
}  # fmt: skip


def model(kind: str, count: int) -> bytes:
    return serialized(*KINDS[kind](count))


def serialized(nodes: Nodes, known: Constants) -> bytes:
    constants = [
        numpy_helper.from_array(
            np.asarray(value, np.int64 if np.asarray(value).dtype.kind == "i" else np.float32), name
        )
        for name, value in known.items()
    ]
    inputs = [helper.make_tensor_value_info("t0", TensorProto.FLOAT, (3, 7))]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "deep", inputs, outputs, constants)
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    return data


def opened(data: bytes) -> Graph:
    return rewrite(load(data))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one operand", "integers between", "choices", "parts"])
def test_a_deep_model_computes_the_same_in_small_groups(kind: str, runs) -> None:
    graph = opened(model(kind, 500))
    x = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    runs.agree(graph, {graph.inputs[0].tensor: x})
    groups = [step.group for step in partition(graph) if isinstance(step, TaskCall)]
    assert all(group is not None and fit(group.stages) for group in groups)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_work_grows_as_the_model_does(kind: str) -> None:
    def work(count: int) -> int:
        data = model(kind, count)

        def read() -> None:
            graph = opened(data)
            chains(graph, partition(graph))

        return calls(read)

    work(40)  # imports, and what is kept between models
    assert work(300) < 2.3 * work(150)


def test_concats_are_joined_up_to_a_limit(runs) -> None:
    """Each of a chain would else be written anew with all parts before it."""
    chain = [helper.make_node("Concat", [f"t{n}", "t0"], [f"t{n + 1}"], axis=0) for n in range(300)]
    graph = opened(serialized(chain, {}))
    assert {node.op: len(node.inputs) <= MAX_PARTS for node in graph.nodes} == {"Concat": True}
    assert len(graph.nodes) == 2
    runs.agree(graph, {graph.inputs[0].tensor: np.ones((3, 7), np.float32)})
