"""Reading a model that somebody sent never does more harm than a line of text."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunewright.graph.onnx_import import ModelError
from tunewright.graph.onnx_import.structure import strip
from tunewright.tuner.models import reader as model_reader
from tunewright.tuner.models.model import open_model
from tunewright.tuner.models.reader import Description, ModelTasks, Reader

from ..search_space.oracle import DOTS
from .conftest import small_model
from .fake_child import FakeChild


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Reader() as one:
        yield one


@pytest.fixture
def sent(tmp_path: Path) -> Any:
    """Puts a model where it can be read."""

    def put(data: bytes | onnx.ModelProto) -> Path:
        path = tmp_path / "sent.onnx"
        path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
        return path

    return put


def child_pid(reader: Reader) -> int | None:
    return reader._sandbox._child.pid


def test_a_model_is_described(reader: Reader, sent: Any) -> None:
    found = reader.describe(sent(small_model("batch")))
    assert found.to_json() == {
        "inputs": [{"name": "x", "dtype": "float32", "shape": ("batch", 8)}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ("batch", 24)}],
        "open_dims": ["batch"],
        "ops": {"Add": 1, "MatMul": 1, "Relu": 1, "Softmax": 1},
        "with_weights": True,
    }


def test_a_structure_is_told_from_a_full_model(reader: Reader, sent: Any) -> None:
    structure = strip(small_model().SerializeToString())
    assert not reader.describe(sent(structure.data)).with_weights
    learned = helper.make_node(
        "LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=np.arange(9.0).tolist()
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, None])]
    graph = helper.make_graph([learned], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)], ir_version=10)
    found = reader.describe(sent(model))
    assert found.with_weights
    assert found.open_dims == ("x:1",)
    assert not reader.describe(sent(strip(model.SerializeToString()).data)).with_weights


def test_tasks_are_those_of_the_model(reader: Reader, sent: Any) -> None:
    structure = strip(small_model("batch").SerializeToString())
    found = reader.tasks(sent(structure.data), {"batch": 4})
    wanted = open_model(small_model(4).SerializeToString())
    assert [(task.key, count) for task, count in found.tasks] == [(k, n) for k, (_, n) in wanted.tasks.items()]
    assert (found.native_nodes, found.fallback) == (wanted.native_nodes, wanted.fallback_ops)
    assert not found.is_whole
    assert reader.tasks(sent(small_model(4)), {}).is_whole


def test_tasks_are_those_of_the_target(reader: Reader, sent: Any) -> None:
    """Of a quantised product, bytes where the target multiplies them."""
    ones = ", ".join(["1"] * 192)
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> q (uint8[7,12] x) => (float[7,16] y)'
        f" <int8[12,16] w = {{{ones}}}> {{ t = MatMulInteger (x, w) y = Cast <to=1> (t) }}"
    )
    path = sent(onnx.parser.parse_model(text).SerializeToString())
    ops = [[task.op for task, _ in reader.tasks(path, {}, target).tasks] for target in (DOTS, None)]
    assert ops == [["MatMulInteger+Cast"], ["Cast", "MatMul"]]


def test_the_child_is_used_again_and_replaced_at_times(
    reader: Reader, sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sent(small_model())
    reader.describe(path)
    first = child_pid(reader)
    reader.tasks(path, {})
    with pytest.raises(ModelError, match="not an ONNX model"):
        reader.describe(sent(b"\xff" * 100))
    assert child_pid(reader) == first  # a bad model is no fault of the child's
    monkeypatch.setattr(reader._sandbox, "_most_requests", 1)
    reader.describe(sent(small_model()))
    assert child_pid(reader) != first


@pytest.mark.parametrize("data", [b"", b"\0", b"not a model", b"\x08\x07" * 9], ids=["empty", "zero", "text", "fields"])
def test_what_is_no_model(reader: Reader, sent: Any, data: bytes) -> None:
    for read in (lambda: reader.describe(sent(data)), lambda: reader.tasks(sent(data), {})):
        with pytest.raises(ModelError) as found:
            read()
        assert "\n" not in str(found.value)


def test_open_dimensions_must_be_bound(reader: Reader, sent: Any) -> None:
    with pytest.raises(ModelError, match="'batch' of input 'x' is open"):
        reader.tasks(sent(small_model("batch")), {})
    with pytest.raises(ModelError, match="no dimension 'other' is open"):
        reader.tasks(sent(small_model("batch")), {"other": 2})


def test_no_file_beside_it_is_read(reader: Reader, sent: Any, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"\0" * 8 * 24 * 4)
    model = small_model()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="other.onnx")
    with pytest.raises(ModelError, match="other files, which were not sent"):
        reader.describe(sent(model))
    with pytest.raises(ModelError, match="lies in an external file"):
        reader.tasks(sent(model), {})


def test_names_are_cut_and_messages_are_one_line(reader: Reader, sent: Any) -> None:
    label = "<script>\x1b[31m\n" + "a" * 5000
    found = reader.describe(sent(small_model(names=(label, "y"))))
    assert found.inputs[0].name == label[: model_reader.MOST_LETTERS]
    model = small_model()
    model.graph.node[0].op_type = "No\nSuch\x1b[31mOp" * 300
    with pytest.raises(ModelError) as error:
        reader.tasks(sent(model), {})
    assert str(error.value).isprintable()
    assert len(str(error.value)) <= model_reader.MOST_MESSAGE


def test_too_many_inputs(reader: Reader, sent: Any) -> None:
    model = small_model()
    for k in range(model_reader.MOST_PORTS):
        model.graph.input.append(helper.make_tensor_value_info(f"i{k}", TensorProto.FLOAT, [1]))
    with pytest.raises(ModelError, match="1,002 inputs and outputs are more than 1,000"):
        reader.describe(sent(model))


def greedy(rows: int) -> onnx.ModelProto:
    """A few bytes that ask for `rows` x 2**14 numbers to be transposed ahead of time, several times over."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, 2**14], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "tunewright:structure"), ("group", "0"), ("deviation", "0.01")):
        weight.external_data.add(key=key, value=value)
    nodes = [helper.make_node("Transpose", ["w"], ["t0"])]
    nodes += [helper.make_node("Exp" if k % 2 else "Neg", [f"t{k}"], [f"t{k + 1}"]) for k in range(8)]
    nodes += [helper.make_node("MatMul", ["x", "t8"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2**14])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_one_that_takes_too_much_memory(sent: Any) -> None:
    with Reader(memory_bytes=512 << 20) as reader:
        with pytest.raises(ModelError, match="it takes too much memory"):
            reader.tasks(sent(greedy(2**14)), {})
        assert child_pid(reader) is None
        assert reader.tasks(sent(small_model()), {}).tasks  # the next one is read all the same


@pytest.mark.slow
def test_one_that_takes_too_long(sent: Any) -> None:
    with Reader(time_s=1.0) as reader:
        reader.describe(sent(small_model()))  # the child is there
        body = helper.make_graph(
            [helper.make_node("Identity", ["c"], ["again"]), helper.make_node("Add", ["s", "s"], ["sum"])],
            "b",
            [helper.make_tensor_value_info(n, t, []) for n, t in (("i", 7), ("c", 9), ("s", 1))],
            [helper.make_tensor_value_info(n, t, []) for n, t in (("again", 9), ("sum", 1))],
        )
        nodes = [helper.make_node("Loop", ["n", "", "x"], ["t0"], body=body)]
        nodes += [helper.make_node("Add", [f"t{k}", f"t{k}"], [f"t{k + 1}"]) for k in range(60_000)]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [])],
            [helper.make_empty_tensor_value_info("t60000")],
            [numpy_helper.from_array(np.array(3), "n")],
        )
        path = sent(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
        start = time.monotonic()
        with pytest.raises(ModelError, match="it takes more than 1 s"):
            reader.tasks(path, {})
        assert time.monotonic() - start < 10


def answering(answer: Any) -> Reader:
    reader = Reader()
    reader._sandbox._child = FakeChild(answer)  # type: ignore[assignment]
    return reader


DESCRIPTION = model_reader._description(small_model().SerializeToString())
TASKS = model_reader._tasks(small_model().SerializeToString(), {}, None)


def changed(data: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**data, **values}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        "text",
        changed(DESCRIPTION, inputs=None),
        changed(DESCRIPTION, inputs=[None]),
        changed(DESCRIPTION, inputs=[{"name": "x", "dtype": "float32", "shape": [1.5]}]),
        changed(DESCRIPTION, inputs=[{"name": "x", "dtype": "float32", "shape": [True]}]),
        changed(DESCRIPTION, inputs=[{"name": "x" * 999, "dtype": "float32", "shape": [1]}]),
        changed(DESCRIPTION, inputs=[{"name": "x", "dtype": "<b>", "shape": [1]}]),
        changed(DESCRIPTION, inputs=DESCRIPTION["inputs"] * 1000),
        changed(DESCRIPTION, ops={"Add": -1}),
        changed(DESCRIPTION, ops={"Add": "1"}),
        changed(DESCRIPTION, ops={str(k): 1 for k in range(9999)}),
        changed(DESCRIPTION, with_weights=1),
        changed(DESCRIPTION, with_weights=None),
    ],
)
def test_a_description_that_makes_no_sense(answer: Any) -> None:
    reader = answering(answer)
    with pytest.raises(ModelError, match="makes no sense"):
        reader.describe(Path("m"))
    assert reader._sandbox._child.closed  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer",
    [
        changed(TASKS, tasks={}),
        changed(TASKS, tasks=[{}]),
        changed(TASKS, tasks=[{"task": {}, "occurrences": 1}]),
        changed(TASKS, tasks=[changed(TASKS["tasks"][0], occurrences=0)]),
        changed(TASKS, tasks=[changed(TASKS["tasks"][0], occurrences=1.0)]),
        changed(TASKS, tasks=TASKS["tasks"] * 2),
        changed(TASKS, native_nodes=-1),
        changed(TASKS, is_whole=1),
        changed(TASKS, fallback={"Op": None}),
        changed(TASKS, graph=None),
        changed(TASKS, graph={}),
        changed(TASKS, graph=changed(TASKS["graph"], steps=[[99, 0]])),
    ],
)
def test_tasks_that_make_no_sense(answer: Any) -> None:
    with pytest.raises(ModelError, match="makes no sense"):
        answering(answer).tasks(Path("m"), {})


def test_what_makes_sense() -> None:
    assert answering(DESCRIPTION).describe(Path("m")) == Description.from_json(DESCRIPTION)
    assert answering(TASKS).tasks(Path("m"), {}) == ModelTasks.from_json(TASKS)


def test_an_error_in_the_reader_is_told_from_one_in_the_model(caplog: pytest.LogCaptureFixture) -> None:
    from tunewright.workers.sandbox.process import ChildError, ChildStartError

    with pytest.raises(ModelError, match="ends in an error of the reader"):
        answering(ChildError("Traceback\n...KeyError: 'x'")).tasks(Path("m"), {})
    assert "KeyError" in caplog.text
    with pytest.raises(ChildStartError):
        answering(ChildStartError("no memory")).tasks(Path("m"), {})


def test_the_child_is_confined(reader: Reader, sent: Any) -> None:
    reader.describe(sent(small_model()))
    status = Path(f"/proc/{child_pid(reader)}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    limits = Path(f"/proc/{child_pid(reader)}/limits").read_text()
    assert any(line.split()[:4] == ["Max", "file", "size", "0"] for line in limits.splitlines())
    assert os.getpid() != child_pid(reader)
