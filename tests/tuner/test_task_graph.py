"""The graph of a model's tasks: what runs it, what reads what, and what of it is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tunewright.graph.fusion import segments
from tunewright.graph.onnx_import.structure import strip
from tunewright.tuner.models import graph_of_model as builder
from tunewright.tuner.models.graph_of_model import graph_of_model
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.models.reader import Reader
from tunewright.tuner.models.task_graph import MOST_LETTERS, ModelStep, StepKind, TaskGraph

from .conftest import small_model
from .test_assembly_models import made


def of(model: Model, *, with_names: bool = False) -> TaskGraph:
    """The graph of a model, which is as it should be."""
    graph = graph_of_model(model, with_names=with_names)
    data = json.loads(json.dumps(graph.to_json()))
    assert TaskGraph.of_json(data, len(model.tasks)) == graph
    assert all(source < place for place, step in enumerate(graph.steps) for source in step.sources)
    counts = [0] * len(model.tasks)
    for step in graph.steps:
        if step.task >= 0:
            counts[step.task] += 1
    alternatives = {run.task for chain in graph.chains for run in chain.runs}
    occurrences = [count for _, count in model.tasks.values()]
    assert [count for n, count in enumerate(counts) if n not in alternatives] == [
        count for n, count in enumerate(occurrences) if n not in alternatives
    ]
    return graph


def parsed(text: str) -> bytes:
    data: bytes = onnx.parser.parse_model(text).SerializeToString()
    return data


HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'

DIAMOND = (
    HEAD
    + """
g (float[4, 8] x) => (float[4, 8] y) {
  [first] a = Softmax <axis = 1> (x)
  [left] b = ReduceMax <axes = [1]> (a)
  [right] c = Softmax <axis = 0> (a)
  [last] y = Sub (c, b)
}
"""
)


def test_who_reads_what() -> None:
    graph = of(open_model(parsed(DIAMOND)))
    kinds = [step.kind for step in graph.steps]
    assert (kinds[0], kinds[-1]) == (StepKind.INPUT, StepKind.OUTPUT)
    assert set(kinds[1:-1]) == {StepKind.TASK}
    assert graph.steps[0].type == "float32[4, 8]" and graph.steps[0].size_bytes == 128
    assert graph.steps[1].sources == (0,)
    assert all(1 in step.sources for step in graph.steps[2:-2])
    assert graph.steps[-1].sources == (len(graph.steps) - 2,)
    assert not any(step.names for step in graph.steps)


def test_names_are_those_of_all_nodes_in_a_task() -> None:
    graph = of(open_model(parsed(DIAMOND)), with_names=True)
    names = {name for step in graph.steps for name in step.names}
    assert {"first", "left", "right", "last"} <= names
    assert "first" in graph.steps[1].names


def test_a_node_without_a_name_has_that_of_its_output() -> None:
    unnamed = small_model(4)
    graph = of(open_model(unnamed.SerializeToString()), with_names=True)
    outputs = {name for node in unnamed.graph.node for name in node.output}
    found = {name for step in graph.steps for name in step.names}
    assert found and found <= outputs


def test_a_node_without_a_kernel_is_there() -> None:
    text = HEAD + "g (float[4, 4] x) => (float[4, 4] y) { a = Relu (x)\n b = Bernoulli (a)\n y = Add (a, b) }"
    graph = of(open_model(parsed(text)))
    (fallback,) = (place for place, step in enumerate(graph.steps) if step.kind is StepKind.FALLBACK)
    assert graph.steps[fallback].op == "Bernoulli"
    assert any(fallback in step.sources for step in graph.steps)


def test_control_flow_is_there_and_what_it_runs() -> None:
    text = (
        HEAD
        + """
    g (float[8] x, bool c) => (float[8] y) {
      y = If (c) <then_branch = t () => (float[8] a) { a = Relu (x) },
                  else_branch = e () => (float[8] b) { b = Softmax (x) }>
    }
    """
    )
    graph = of(open_model(parsed(text)))
    (branch,) = (place for place, step in enumerate(graph.steps) if step.kind is StepKind.RUNTIME)
    assert graph.steps[branch].op == "If" and graph.steps[branch].sources == (1,)
    made = [place for place, step in enumerate(graph.steps) if step.kind is StepKind.TASK]
    assert len(made) == 2 and set(graph.steps[-1].sources) == set(made)


def test_a_loop_is_no_circle() -> None:
    body = "b (int64 i, bool go, float[8] s) => (bool on, float[8] t) { on = Identity (go)\n t = Softmax (s) }"
    text = HEAD + f"g (float[8] x, int64 n) => (float[8] y) {{ y = Loop (n, , x) <body = {body}> }}"
    assert StepKind.RUNTIME in {step.kind for step in of(open_model(parsed(text))).steps}


def test_the_fastest_has_segments_in_the_place_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SMALLEST_BYTES", 0)
    model = open_model(made().SerializeToString())
    graph = of(model, with_names=True)
    assert graph.chains
    alternatives = {run.task for chain in graph.chains for run in chain.runs}
    times = [0.1 if n in alternatives else 1.0 for n in range(len(model.tasks))]
    fast = graph.fastest(times)
    assert fast.fastest(times) == fast
    assert {step.task for step in fast.steps} & alternatives
    as_run = model.fastest(dict(zip(model.tasks, times, strict=True)))
    assert sum(step.task >= 0 for step in fast.steps) == sum(count for _, count in as_run.tasks.values())
    assert all(source < place for place, step in enumerate(fast.steps) for source in step.sources)
    names = [{name for step in one.steps for name in step.names} for one in (graph, fast)]
    assert names[0] == names[1]
    slow = graph.fastest([2.0 if n in alternatives else 0.1 for n in range(len(model.tasks))])
    assert slow.steps == graph.steps


def test_too_large_a_model_has_a_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MOST_NODES", 3)
    model = open_model(parsed(DIAMOND))
    graph = graph_of_model(model)
    assert graph.steps == () and graph.left_out > 3
    assert TaskGraph.of_json(graph.to_json(), len(model.tasks)) == graph


def test_texts_of_strangers_are_short_lines_that_any_database_keeps() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="a\0\u202e<b>\n" + "x" * 10_000)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    graph = of(open_model(model.SerializeToString()), with_names=True)
    (name,) = graph.steps[1].names
    assert name.startswith("a\\x00\\u202e<b>\\nxx") and len(name) == MOST_LETTERS and name.isprintable()


def test_names_end_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MOST_NAMED", 8)
    graph = graph_of_model(open_model(parsed(DIAMOND)), with_names=True)
    assert sum(len(name) for step in graph.steps for name in step.names) <= 8
    assert graph.steps[1].names == ("first",)


def chain_of(count: int) -> bytes:
    """Products one behind the other, each of its own size: nothing of them is fused or alike."""
    sizes = [2 + n % 50 for n in range(count + 1)]
    nodes = [helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"], name=f"n{n}") for n in range(count)]
    weights = [numpy_helper.from_array(np.ones((sizes[n], sizes[n + 1]), np.float32), f"w{n}") for n in range(count)]
    ends = [
        helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [4, sizes[n]]) for n in (0, count)
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    data: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return data


def test_a_large_model_is_small_data() -> None:
    graph = of(open_model(chain_of(800)))
    assert len(graph.steps) == 802
    assert len(json.dumps(graph.to_json(), separators=(",", ":"))) < 20 * 802


# What a reader answers


@pytest.fixture(scope="module")
def reader() -> Any:
    with Reader() as one:
        yield one


def test_names_are_told_of_a_model_that_came_with_them_alone(reader: Reader, tmp_path: Path) -> None:
    sent = tmp_path / "sent.onnx"
    unnamed = small_model(4).SerializeToString()
    for data, is_named in ((parsed(DIAMOND), True), (strip(parsed(DIAMOND)).data, False), (unnamed, False)):
        sent.write_bytes(data)
        graph = reader.tasks(sent, {}).graph
        assert len(graph.steps) > 2
        assert any(step.names for step in graph.steps) == is_named
        assert b"first" not in strip(parsed(DIAMOND)).data


TASK, PORT = ModelStep(StepKind.TASK, task=0), ModelStep(StepKind.INPUT, "input")

GOOD = TaskGraph((PORT, replace(TASK, sources=(0,)), replace(TASK, sources=(0, 1)))).to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"steps": None},
        {"steps": [[0]]},
        {"steps": [[1, 0]]},  # there is one task
        {"steps": [[-3, 0]]},
        {"steps": [[0, 7]]},
        {"steps": [[0, 0, 1]]},  # it reads from what is not there
        {"steps": [[0, 0, 0]]},  # it reads from itself
        {"steps": [[0, 0]] * 5001},
        {"steps": [[0, 0, *[1] * 40_000]]},
        {"steps": [[True, 0]]},
        {"steps": ["ab"]},
        {"others": [["task", "x" * 201]]},
        {"others": [["wish", "x"]]},
        {"others": [["input", "x"], ["task", "x"]]},
        {"others": [["input", "a\0"]]},
        {"others": [["input", "\ud800"]]},
        {"others": [["input", "x"]] * 5001},
        {"types": [["", 0]] * 5001},
        {"types": [["a\nb", 0]]},
        {"names": [["\udfff"], [], []]},
        {"names": [[], [], ["x" * 200] * 501]},
        {"types": [["x", -1]]},
        {"types": [["x", 1.5]]},
        {"names": [["x"]]},
        {"names": [["x" * 201], [], []]},
        {"chains": [[[1, 2], [[0, 2, 5]]]]},
        {"chains": [[[0, 1], [[0, 2, 0]]]]},  # an input
        {"chains": [[[1, 2], [[0, 2, 0]]], [[1, 2], [[0, 2, 0]]]]},
        {"chains": [[[2, 1], [[0, 2, 0]]]]},
        {"chains": [[[1, 9], []]]},
        {"left_out": -1},
    ],
)
def test_what_is_no_graph_is_refused(change: dict[str, Any]) -> None:
    assert TaskGraph.of_json(GOOD, 1).steps[2].sources == (0, 1)
    with pytest.raises((ArithmeticError, AttributeError, LookupError, TypeError, ValueError)):
        TaskGraph.of_json(GOOD | change, 1)


JSON = st.recursive(st.none() | st.integers(-9, 9) | st.text(max_size=3), lambda one: st.lists(one, max_size=4))


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, JSON)))
@settings(deadline=None)
def test_any_other_data_is_refused_or_a_graph(change: dict[str, Any]) -> None:
    try:
        graph = TaskGraph.of_json(GOOD | change, 2)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return
    for one in (graph, graph.fastest([1.0, 0.5])):
        assert all(source < place for place, step in enumerate(one.steps) for source in step.sources)
