"""Classifiers as converters write them: labels that are strings, and probabilities as a dict for each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

from tunewright.graph.onnx_import import ModelError, load
from tunewright.tuner import InferenceSession
from tunewright.tuner.cli.run import run_model
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.session.agreement import worst_error

ML = "ai.onnx.ml"
LABELS = {"classlabels_int64s": [3, 1, 8]}, {"classlabels_strings": ["red", "green", "blue"]}


def classifier(labels: dict[str, Any], keys: int = 3) -> ModelProto:
    """A scaler and a linear model of three classes; what it says, its scores, and these as dicts."""
    rng = np.random.default_rng(0)
    name, values = next(iter(labels.items()))
    is_text = name == "classlabels_strings"
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain=ML, offset=[0.5], scale=[2.0]),
        helper.make_node(
            "LinearClassifier", ["s"], ["label", "scores"], domain=ML, coefficients=rng.standard_normal(12).tolist(),
            intercepts=[0.0, 0.25, 0.5], post_transform="SOFTMAX",
            **{name if is_text else "classlabels_ints": values},
        ),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain=ML, **{name: values[:keys]}),
    ]  # fmt: skip
    key = TensorProto.STRING if is_text else TensorProto.INT64
    map_type = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [
        helper.make_tensor_value_info("label", key, ["n"]),
        helper.make_value_info("maps", helper.make_sequence_type_proto(map_type)),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("rows", [1, 5])
def test_outputs_are_those_of_onnx_runtime(labels: dict[str, Any], rows: int) -> None:
    model = classifier(labels).SerializeToString()
    x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    peer = onnxruntime.InferenceSession(model)
    for _ in range(2):  # the second is read from the disk, where it is kept
        with InferenceSession(model, dims={"n": rows}) as session:
            assert set(session.coverage().fallback) <= {"LabelEncoder"}
            assert [(a.name, a.type) for a in session.get_outputs()] == [(a.name, a.type) for a in peer.get_outputs()]
            label, maps, scores = session.run(None, {"x": x})
            (again,) = session.run(["maps"], {"x": x})
        label_by_peer, maps_by_peer, scores_by_peer = peer.run(None, {"x": x})
        assert label.tolist() == label_by_peer.tolist()
        np.testing.assert_allclose(scores, scores_by_peer, rtol=1e-5)
        assert maps == again
        assert [list(row) for row in maps] == [next(iter(labels.values()))] * rows
        assert maps == [pytest.approx(row, rel=1e-5) for row in maps_by_peer]


def test_the_command_line_gives_rows(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(classifier(LABELS[0]).SerializeToString())
    data = run_model(path, (), tmp_path / "out", ScheduleSource.of_options(None, None, None), {"n": 2}, 1)
    assert [(entry["name"], entry["shape"]) for entry in data["outputs"]] == [
        ("label", [2]), ("maps", [2, 3]), ("scores", [2, 3]),
    ]  # fmt: skip
    files = [np.load(tmp_path / "out" / f"output_{number}.npy") for number in range(3)]
    np.testing.assert_array_equal(files[1], files[2][:, [1, 0, 2]])  # in the order of the keys


def test_dicts_of_another_number_of_keys_are_refused() -> None:
    with pytest.raises(ModelError, match="output 'maps' has dicts of 2 keys for 3 values"):
        load(classifier(LABELS[0], keys=2).SerializeToString(), {"n": 2})


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ([np.array(["a", "b"], object), [{1: 0.5, 2: 0.25}]], (0.0, None)),
        ([np.array(["a", "c"], object), [{1: 0.5, 2: 0.25}]], (None, "output 0 has other strings")),
        ([np.array(["a", "b"], object), [{2: 0.75, 1: 0.5}]], (1.0, None)),
    ],
)
def test_outputs_of_strings_and_dicts_are_compared(ours: list[Any], expected: tuple[float | None, str | None]) -> None:
    theirs = [np.array(["a", "b"], object), [{1: 0.5, 2: 0.25}]]
    assert worst_error(ours, theirs) == expected
