"""LSTM, GRU and RNN in their parts: the same result, every step the same task, and no more work for many steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunewright.graph.evaluation.fallback import evaluate
from tunewright.graph.evaluation.recurrent import GATES
from tunewright.graph.fusion.fusion import Fallback, TaskCall, TensorView, partition
from tunewright.graph.ir import Array, Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.rewrites.recurrent import MAX_STEPS

STEPS, BATCH, FEATURES, HIDDEN = 5, 3, 4, 6


def recurrent(
    op: str,
    *,
    steps: int = STEPS,
    batch: int = BATCH,
    direction: str = "forward",
    constant: bool = True,
    lengths: Sequence[int] = (),
    known_lengths: bool = False,
    initial: bool = True,
    bias: bool = True,
    peepholes: bool = False,
    outputs: str = "yhc",
    **attrs: Any,
) -> tuple[Graph, dict[str, Array]]:
    """A graph of one node, and values for its inputs by tensor."""
    rng = np.random.default_rng(len(outputs) + 7 * steps)
    directions, rows = 1 + (direction == "bidirectional"), GATES[op] * HIDDEN
    batch_first = bool(attrs.get("layout"))

    def random(*shape: int) -> Array:
        return (0.4 * rng.standard_normal(shape)).astype(np.float32)

    state = (batch, directions, HIDDEN) if batch_first else (directions, batch, HIDDEN)
    values = {
        "x": random(batch, steps, FEATURES) if batch_first else random(steps, batch, FEATURES),
        "w": random(directions, rows, FEATURES),
        "r": random(directions, rows, HIDDEN),
        "b": random(directions, 2 * rows) if bias else None,
        "l": np.array(lengths, np.int32) if lengths else None,
        "h0": random(*state) if initial else None,
        "c0": random(*state) if initial and op == "LSTM" else None,
        "p": random(directions, 3 * HIDDEN) if peepholes else None,
    }
    shapes = {"y": (steps, directions, batch, HIDDEN), "h": state, "c": state}
    if batch_first:
        shapes["y"] = (batch, steps, directions, HIDDEN)
    results = [name if name in outputs else "" for name in ("yhc" if op == "LSTM" else "yh")]
    feeds = {name: array for name, array in values.items() if array is not None}
    fixed = {"w", "r", "b", "p"} if constant else set()
    fixed |= {"l"} if known_lengths else set()
    node = helper.make_node(
        op,
        [name if name in feeds else "" for name in values],
        results,
        hidden_size=HIDDEN,
        direction=direction,
        **attrs,
    )
    while not node.input[-1]:
        node.input.pop()
    kinds = {"l": TensorProto.INT32}
    graph = helper.make_graph(
        [node],
        "recurrent",
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), array.shape)
            for name, array in feeds.items()
            if name not in fixed
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in results if name],
        [numpy_helper.from_array(array, name) for name, array in feeds.items() if name in fixed],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    imported = load(model.SerializeToString())
    return imported, {value.tensor: feeds[value.label] for value in imported.inputs}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("LSTM", {}),
    "LSTM in both directions": ("LSTM", {"direction": "bidirectional"}),
    "LSTM backward with peepholes": ("LSTM", {"direction": "reverse", "peepholes": True}),
    "LSTM clipped, gates coupled": ("LSTM", {"peepholes": True, "input_forget": 1, "clip": 0.3}),
    "LSTM of some lengths": ("LSTM", {"lengths": [5, 2, 3]}),
    "LSTM of some lengths in both directions": ("LSTM", {"lengths": [5, 2, 0], "direction": "bidirectional"}),
    "LSTM of lengths that say nothing": ("LSTM", {"lengths": [5, 5, 5], "known_lengths": True}),
    "LSTM of impossible lengths": ("LSTM", {"lengths": [9, -2, 3], "outputs": "yh"}),
    "LSTM of unknown weights": ("LSTM", {"constant": False, "direction": "bidirectional"}),
    "LSTM for its cell alone": ("LSTM", {"outputs": "c"}),
    "LSTM for its last state alone": ("LSTM", {"outputs": "h", "bias": False, "initial": False}),
    "LSTM of one step": ("LSTM", {"steps": 1, "batch": 1}),
    "LSTM with the batch first": ("LSTM", {"layout": 1, "direction": "bidirectional"}),
    "LSTM with other activations": ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Relu"]}),
    "LSTM with activations that take numbers": (
        "LSTM",
        {
            "activations": ["LeakyRelu", "ScaledTanh", "Affine"],
            "activation_alpha": [0.2, 1.5, 2.0],
            "activation_beta": [0.5, 0.1],
        },
    ),
    "GRU": ("GRU", {}),
    "GRU, linear before the reset": ("GRU", {"linear_before_reset": 1}),
    "GRU, linear before the reset, both directions": (
        "GRU",
        {"linear_before_reset": 1, "direction": "bidirectional", "outputs": "y"},
    ),
    "GRU of some lengths in both directions": ("GRU", {"direction": "bidirectional", "lengths": [1, 5, 3]}),
    "GRU for its last state alone": ("GRU", {"outputs": "h", "linear_before_reset": 1, "bias": False}),
    "GRU with the batch first": ("GRU", {"layout": 1}),
    "GRU with other activations": ("GRU", {"activations": ["Softplus", "Elu"], "activation_alpha": [0.7]}),
    "RNN": ("RNN", {}),
    "RNN in both directions": ("RNN", {"direction": "bidirectional", "outputs": "h"}),
    "RNN, clipped": ("RNN", {"activations": ["ThresholdedRelu"], "clip": 0.5, "activation_alpha": [0.1]}),
    "RNN of some lengths with the batch first": ("RNN", {"layout": 1, "lengths": [5, 2, 3], "direction": "reverse"}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_parts_compute_the_same(case: str, runs) -> None:
    op, options = CASES[case]
    graph, feeds = recurrent(op, **options)
    names = {"l": next((name for name in feeds if feeds[name].dtype == np.int32), "")}
    bounded = {name: np.clip(array, 0, STEPS) if name == names["l"] else array for name, array in feeds.items()}
    expected = runs.nodes(graph, bounded)
    changed = rewrite(graph)
    assert not {"LSTM", "GRU", "RNN"} & {node.op for node in changed.nodes}
    renamed = {new.tensor: feeds[old.tensor] for old, new in zip(graph.inputs, changed.inputs, strict=True)}
    for results in (runs.nodes(changed, renamed), runs.steps(changed, renamed)):
        for result, other in zip(results, expected, strict=True):
            runs.close(result, other)
    assert not any(isinstance(step, Fallback) for step in partition(changed))


def calls_of(graph: Graph) -> list[TaskCall]:
    return [step for step in partition(graph) if isinstance(step, TaskCall)]


@pytest.mark.parametrize(("op", "tasks"), [("LSTM", 1), ("GRU", 2), ("RNN", 1)])
def test_all_steps_and_both_directions_are_the_same_tasks(op: str, tasks: int) -> None:
    task_keys = []
    for steps in (2, 40):
        graph = rewrite(recurrent(op, steps=steps, direction="bidirectional")[0])
        calls = [call for call in calls_of(graph) if call.task.op.endswith("Recurrence")]
        assert len(calls) == 2 * steps * tasks
        assert len({call.task.key for call in calls}) == len({id(call.task) for call in calls}) / 2 == tasks
        task_keys.append((len(graph.nodes), {call.task.key for call in calls}))
    assert task_keys[0] == task_keys[1]


def test_a_node_is_counted_once() -> None:
    graph = rewrite(recurrent("GRU", outputs="h")[0])
    counted = [node for call in calls_of(graph) for node in call.nodes]
    assert sum(node.op == "Recurrence" for node in counted) == 1


def test_steps_write_into_their_part_of_the_result() -> None:
    graph = rewrite(recurrent("LSTM", direction="reverse", outputs="yh")[0])
    row_bytes = 4 * BATCH * HIDDEN
    (y,) = {node.outputs[0] for node in graph.nodes if node.op == "Recurrence"}
    offsets = {s.output: s.offset_bytes for s in partition(graph) if isinstance(s, TensorView) and s.input == y}
    written = [offsets[name] for call in calls_of(graph) for name in call.outputs if name in offsets]
    assert written == [row_bytes * step for step in reversed(range(STEPS))]
    (last,) = [name for name, offset in offsets.items() if offset == 0 and "@" not in name and name in graph.types][-1:]
    assert graph.types[last].shape in {(BATCH, HIDDEN), (STEPS, 1, BATCH, HIDDEN)}


KEPT: dict[str, tuple[str, dict[str, Any]]] = {
    "too many steps": ("RNN", {"steps": MAX_STEPS + 1, "batch": 1}),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_is_not_covered_stays(case: str) -> None:
    op, options = KEPT[case]
    graph, _ = recurrent(op, **options)
    assert [node.op for node in rewrite(graph).nodes] == [op]


def test_other_types_stay() -> None:
    x, w, r = (np.ones(shape) for shape in ((2, 1, 3), (1, 4, 3), (1, 4, 4)))
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=4)
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.DOUBLE, a.shape) for n, a in zip("xwr", (x, w, r), strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.DOUBLE, (2, 1, 1, 4))
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]), ir_version=10)
    (rewritten_node,) = rewrite(load(model.SerializeToString())).nodes
    assert rewritten_node.op == "RNN"
    (y,) = evaluate(rewritten_node, [x, w, r])
    assert y.dtype == np.float64
