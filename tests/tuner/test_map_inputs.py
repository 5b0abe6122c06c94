"""Inputs that are dicts, which DictVectorizer and CastMap make rows of: as in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.onnx_import.outline import outline
from tunewright.graph.onnx_import.structure import strip
from tunewright.tuner import InferenceSession, tune
from tunewright.tuner.cli.run import run_model
from tunewright.tuner.errors import InputError
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.models.reader import Reader
from tunewright.tuner.peers.runtimes import OnnxRuntime
from tunewright.tuner.session.image_store import ImageStore

from .conftest import static_model

ML = "ai.onnx.ml"
STRING, INT64, FLOAT, DOUBLE = TensorProto.STRING, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE
WORDS: dict[str, Any] = {"string_vocabulary": ["b", "a", "c"]}
NUMBERS: dict[str, Any] = {"int64_vocabulary": [5, -2, 9]}


def map_input(key: int = STRING, value: int = FLOAT, name: str = "x") -> Any:
    return helper.make_value_info(name, helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, [])))


def model_of(nodes: list[Any], inputs: list[Any], weights: dict[str, Any] | None = None) -> ModelProto:
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def reader(op: str = "DictVectorizer", output: str = "r", **attrs: Any) -> Any:
    return helper.make_node(op, ["x"], [output], domain=ML, **attrs)


def linear(rows: int | str | None = None) -> ModelProto:
    """A vectorizer and a linear model; with rows another input beside it."""
    weights = {"w": np.arange(6, dtype=np.float32).reshape(3, 2) - 2, "c": np.ones(2, np.float32)}
    product = helper.make_node("MatMul", ["r", "w"], ["m"])
    inputs = [map_input()] + ([] if rows is None else [helper.make_tensor_value_info("z", FLOAT, [rows, 2])])
    last = helper.make_node("Add", ["m", "c" if rows is None else "z"], ["y"])
    return model_of([reader(**WORDS), product, last], inputs, weights)


def agree(model: ModelProto, feeds: dict[str, Any], dims: dict[str, int] | None = None) -> None:
    peer = onnxruntime.InferenceSession(model.SerializeToString())
    [expected] = peer.run(None, feeds)
    with InferenceSession(model.SerializeToString(), threads=1, dims=dims) as session:
        assert [(a.name, a.type) for a in session.get_inputs()] == [(a.name, a.type) for a in peer.get_inputs()]
        assert session.get_inputs()[0].shape == peer.get_inputs()[0].shape
        assert not session.coverage().fallback
        [result] = session.run(None, feeds)
        [again] = session.run(["y"], feeds)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    for array in (result, again):
        if result.dtype == object:
            assert array.tolist() == expected.tolist()
        else:
            np.testing.assert_allclose(array, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "given", [{"a": 1.5, "other": 3.0}, {"c": 1, "b": np.float64(0.1), "a": True}, {"a": np.array(2.0)}, {"q": 1.0}]
)
def test_a_dict_of_texts(given: dict[str, Any]) -> None:
    agree(linear(), {"x": given})


@pytest.mark.parametrize("given", [{5: 1.5, 9: 2, 7: 3.0}, {np.int64(-2): 1.0}])
def test_a_dict_of_numbers(given: dict[Any, Any]) -> None:
    agree(model_of([reader(output="y", **NUMBERS)], [map_input(INT64)]), {"x": given})


def test_two_vocabularies_of_one_dict() -> None:
    nodes = [
        reader(output="r", string_vocabulary=["b", "a", "b"]), reader(output="s", string_vocabulary=["d", "a", "e"]),
        helper.make_node("Sub", ["r", "s"], ["y"]),
    ]  # fmt: skip
    agree(model_of(nodes, [map_input()]), {"x": {"a": 1.5, "b": 2.5, "d": 4.0}})


@pytest.mark.parametrize("cast", ["TO_FLOAT", "TO_INT64", "TO_STRING"])
@pytest.mark.parametrize(
    "form", [{"map_form": "DENSE"}, {"map_form": "SPARSE", "max_map": 4}], ids=lambda f: f["map_form"]
)
def test_casts_of_maps(form: dict[str, Any], cast: str) -> None:
    model = model_of([reader("CastMap", "y", cast_to=cast, **form)], [map_input(INT64)])
    agree(model, {"x": {3: 1.75, 1: -2.5}}, {"x:1": 2} if form["map_form"] == "DENSE" else None)


@pytest.mark.parametrize(
    ("key", "value", "attrs", "given", "expected"),
    [
        (STRING, INT64, WORDS, {"a": 2**62, "z": 1}, np.array([[0, 2**62, 0]])),
        (STRING, DOUBLE, WORDS, {"a": 0.1}, np.array([[0, 0.1, 0]])),
        (INT64, DOUBLE, NUMBERS, {5: 0.1}, np.array([[0.1, 0, 0]])),
        (INT64, STRING, NUMBERS, {9: "text"}, np.array([["", "", "text"]], object)),
    ],
)
def test_values_that_onnx_runtime_does_not_take_from_python(
    key: int, value: int, attrs: dict[str, Any], given: dict[Any, Any], expected: Any
) -> None:
    with InferenceSession(model_of([reader(output="y", **attrs)], [map_input(key, value)]).SerializeToString()) as own:
        [result] = own.run(None, {"x": given})
    assert result.dtype == expected.dtype
    assert result.tolist() == expected.tolist()


def test_texts_become_numbers() -> None:
    node = reader("CastMap", "y", cast_to="TO_INT64", map_form="SPARSE", max_map=3)
    with InferenceSession(model_of([node], [map_input(INT64, STRING)]).SerializeToString()) as session:
        [result] = session.run(None, {"x": {2: "1.75", 0: "-3"}})
        with pytest.raises(InputError, match="has 'one' for 1, which is no number"):
            session.run(None, {"x": {1: "one"}})
    assert result.tolist() == [[-3, 0, 1]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({1: 2.0}, "input 'x' has the key 1; its keys are strings"),
        ({"a": "x"}, "input 'x' has 'x' for 'a'; its values are numbers"),
        ({"a": None}, "input 'x' has None for 'a'"),
        ([{"a": 1.0}], "input 'x' is a dict of strings to float32, not a list"),
        (np.zeros((1, 4), np.float32), r"input 'x' is float32\[1, 4\], the model takes float32\[1, 3\]"),
    ],
)
def test_what_is_no_such_dict_is_refused_in_plain_words(given: Any, words: str) -> None:
    with InferenceSession(linear().SerializeToString()) as session:
        with pytest.raises(InputError, match=words):
            session.run(None, {"x": given})
        with pytest.raises(InputError, match=r"the model takes 'x' \(map\(string,tensor\(float\)\)\)"):
            session.run(None, {"q": given})


def test_a_row_is_taken_as_it_is_and_an_empty_dict_as_zeros() -> None:
    with InferenceSession(linear().SerializeToString()) as session:
        [one] = session.run(None, {"x": {"b": 1.0, "c": 2.0}})
        [other] = session.run(None, {"x": np.array([[1, 0, 2]], np.float32)})
        [empty] = session.run(None, {"x": {}})
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(empty, np.ones((1, 2)))


@pytest.mark.slow
def test_an_open_model_of_a_dict_and_a_batch() -> None:
    data = linear("n").SerializeToString()
    peer = onnxruntime.InferenceSession(data)
    with InferenceSession(data, threads=1) as session:
        assert [(a.name, a.type, a.shape) for a in session.get_inputs()] == [
            ("x", "map(string,tensor(float))", []), ("z", "tensor(float)", ["n", 2]),
        ]  # fmt: skip
        for rows in (2, 2, 5):
            feeds = {"x": {"a": 1.5, "q": 2.0}, "z": np.full((rows, 2), rows, np.float32)}
            np.testing.assert_allclose(session.run(None, feeds)[0], peer.run(None, feeds)[0])
        assert session.wait()
        np.testing.assert_allclose(session.run(None, feeds)[0], peer.run(None, feeds)[0])
        assert not session.coverage().fallback


@pytest.mark.slow
def test_an_open_model_of_all_values() -> None:
    data = model_of([reader("CastMap", "y", cast_to="TO_INT64")], [map_input(INT64)]).SerializeToString()
    peer = onnxruntime.InferenceSession(data)
    with InferenceSession(data, threads=1) as session:
        for given in ({3: 1.75, 1: -2.5}, {0: 4.0}, {3: 1.75, 1: -2.5}):
            assert session.run(None, {"x": given})[0].tolist() == peer.run(None, {"x": given})[0].tolist()
            session.wait()
    with pytest.raises(ModelError, match="dimension 1 of input 'x' is open"):
        load(data)


def test_images_keep_maps(tmp_path: Path) -> None:
    with InferenceSession(linear().SerializeToString()) as session:
        image = static_model(session).image
    store = ImageStore(tmp_path)
    assert store.put("name", image, b"code")
    stored = store.get("name")
    assert stored is not None and stored.image.inputs == image.inputs


@pytest.mark.slow
def test_it_is_tuned_stripped_run_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(linear().SerializeToString())
    assert tune(path, trials=2, db=f"sqlite:///{tmp_path}/tuning.db", threads=1).tasks
    with Reader() as service:
        assert service.describe(path).to_json()["inputs"] == [{"name": "x", "dtype": "float32", "shape": (1, 3)}]
        assert service.tasks(path, {}).tasks
    [port] = outline(path).inputs
    assert (port.dtype, port.shape) == ("float32", (1, 3))
    assert load(strip(path).data).type("v0").shape == (1, 3)
    np.save(tmp_path / "x.npy", np.array([[1, 0, 2]], np.float32))
    data = run_model(path, [f"x={tmp_path / 'x.npy'}"], None, ScheduleSource.of_options(None, None, None), {}, 1)
    assert data["inputs"][0]["shape"] == [1, 3]
    row = {"x": np.array([[1, 0, 2]], np.float32)}
    with InferenceSession(path) as session:
        np.testing.assert_allclose(session.run(None, row)[0], OnnxRuntime(path, row, 1, {}).run()[0])


@pytest.mark.parametrize(
    ("nodes", "kind", "words"),
    [
        ([helper.make_node("Identity", ["x"], ["y"])], (STRING, FLOAT), "reads the map 'x'; only a CastMap or a Dict"),
        ([reader(output="y", **NUMBERS)], (STRING, FLOAT), "has no string_vocabulary for a map of string keys"),
        ([reader("CastMap", "y")], (STRING, FLOAT), "reads a map of string keys; it takes int64"),
        ([reader("CastMap", "y")], (INT64, INT64), "reads a map of int64 keys and int64 values"),
        ([reader("CastMap", "y", map_form="SPARSE", max_map=2**40)], (INT64, FLOAT), "from 1 to 1,048,576"),
        ([reader("CastMap", "y", cast_to="TO_BED")], (INT64, FLOAT), "casts 'TO_BED'"),
        (
            [reader("CastMap", "y"), reader("CastMap", "z", cast_to="TO_INT64")], (INT64, FLOAT),
            "is a map that a CastMap reads, and another node in another way",
        ),
    ],
)  # fmt: skip
def test_maps_that_nothing_reads_as_they_are(nodes: list[Any], kind: tuple[int, int], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load(model_of(nodes, [map_input(*kind)]).SerializeToString())


def test_what_reads_no_map_and_what_is_an_output() -> None:
    tensor = helper.make_tensor_value_info("x", FLOAT, [1, 3])
    with pytest.raises(ModelError, match="its operand is no map that enters the model"):
        load(model_of([reader(output="y", **WORDS)], [tensor]).SerializeToString())
    with pytest.raises(ModelError, match="input 'y' is a map, which can't be an output"):
        load(model_of([], [map_input(name="y")]).SerializeToString())
