"""Raw data of weights: read apart from the protobuf, and the same as if it had not been."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.onnx_import.weights import LEAST_BYTES, TOKEN_BYTES, RawData

LARGE = np.arange(LEAST_BYTES // 4, dtype=np.float32)
SMALL = np.ones(1, np.float32)


def model(*weights: np.ndarray) -> ModelProto:
    """The sum of an input and the weights."""
    tensors = [numpy_helper.from_array(array, f"w{n}") for n, array in enumerate(weights)]
    names = ["x", *(tensor.name for tensor in tensors)]
    nodes = [helper.make_node("Sum", names, ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(params=["bytes", "file"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> bytes | Path:
    data: bytes = model(LARGE, SMALL, -LARGE).SerializeToString()
    if request.param == "bytes":
        return data
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    return path


def test_large_weights_are_read_apart(whole: bytes | Path) -> None:
    with closing(RawData(whole)) as raw:
        rest = raw.rest()
        first, small, last = ModelProto.FromString(rest).graph.initializer
        assert len(rest) < LEAST_BYTES
        assert len(first.raw_data) == TOKEN_BYTES and raw.size_bytes(first.raw_data) == LARGE.nbytes
        assert np.array_equal(raw.array(first.raw_data).view(np.float32), LARGE)
        assert np.array_equal(raw.array(last.raw_data).view(np.float32), -LARGE)
        assert np.array_equal(raw.array(small.raw_data).view(np.float32), SMALL)


def test_all_else_stays_as_it_is(whole: bytes | Path) -> None:
    with closing(RawData(whole)) as raw:
        rest = ModelProto.FromString(raw.rest())
        for tensor in rest.graph.initializer:
            tensor.raw_data = raw.array(tensor.raw_data).tobytes()
    assert rest == model(LARGE, SMALL, -LARGE)


def test_a_graph_has_the_values(whole: bytes | Path) -> None:
    arrays = [array for array in load(whole).constants.values() if array.size == LARGE.size]
    assert [float(array.reshape(-1)[-1]) for array in arrays] == [LARGE[-1], -LARGE[-1]]
    assert all(array.dtype == np.float32 and array.flags.aligned for array in arrays)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x3a",  # a tag, and nothing behind it
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  # a length of too many digits
        b"\x3a\x90\x80\x01no graph",  # a length beyond the end
        b"\x3b\x3c",  # a group
        b"\x3f",  # a type that does not exist
        b"x" * 2 * LEAST_BYTES,
    ],
)
def test_odd_bytes_are_left_to_the_parser(data: bytes) -> None:
    assert RawData(data).rest() == data
    with pytest.raises(ModelError):
        load(data)


def test_a_damaged_weight_is_refused() -> None:
    damaged = model(LARGE)
    damaged.graph.initializer[0].dims[0] += 1
    with pytest.raises(ModelError, match="16,384 bytes of data where its shape needs 16,388"):
        load(damaged.SerializeToString())


def test_a_file_that_is_cut_short_meanwhile_is_no_array(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(LARGE).SerializeToString())
    with closing(RawData(path)) as raw:
        (tensor,) = ModelProto.FromString(raw.rest()).graph.initializer
        path.write_bytes(b"")
        with pytest.raises(EOFError):
            raw.array(tensor.raw_data)
