"""Sparse tensors become dense ones, and few bytes don't become many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.onnx_import import plain as limits
from tunewright.graph.onnx_import.outline import outline
from tunewright.graph.onnx_import.structure import strip

DENSE = np.array([[0, 2, 0], [5, 0, 3]], np.float32)
VALUES = [5, 2, 3]
LINEAR = [3, 1, 5]
COORDINATES = [[1, 0], [0, 1], [1, 2]]


def sparse(values: Any, indices: Any, dims: Any, dtype: Any = np.float32, of_indices: Any = np.int64) -> Any:
    return SparseTensorProto(
        values=numpy_helper.from_array(np.asarray(values, dtype), "w"),
        indices=numpy_helper.from_array(np.asarray(indices, of_indices)),
        dims=dims,
    )


def initialised(*tensors: SparseTensorProto) -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        sparse_initializer=tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def as_constant(tensor: SparseTensorProto) -> ModelProto:
    model = initialised()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    return model


def in_a_function(tensor: SparseTensorProto) -> ModelProto:
    model = as_constant(tensor)
    opsets = list(model.opset_import)
    model.functions.append(helper.make_function("mine", "f", ["x"], ["y"], model.graph.node, opsets))
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("f", ["x"], ["y"], domain="mine"))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    return model


@pytest.mark.parametrize("build", [initialised, as_constant, in_a_function])
@pytest.mark.parametrize("indices", [LINEAR, COORDINATES])
def test_a_sparse_tensor_is_a_weight_like_any(build: Any, indices: Any):
    model = build(sparse(VALUES, indices, [2, 3])).SerializeToString()
    for source in (model, strip(model).data):
        (array,) = load(source).constants.values()
        assert array.dtype == np.float32 and array.tolist() == DENSE.tolist()


def test_sparse_tensors_without_values():
    for shape in ((0,), (0, 2)):
        (array,) = load(initialised(sparse([], np.zeros(shape), [2, 3])).SerializeToString()).constants.values()
        assert array.tolist() == [[0] * 3] * 2


def test_the_structure_of_a_sparse_weight_is_that_of_a_dense_one():
    values = np.arange(1, 51, dtype=np.float32)
    tensor = sparse(values, np.arange(50) * 2, [1, 100])
    array = np.zeros((1, 100), np.float32)
    array[0, ::2] = values
    dense = initialised()
    dense.graph.initializer.append(numpy_helper.from_array(array, "w"))
    model = initialised(tensor)
    for each in (model, dense):
        each.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 100
    assert strip(model.SerializeToString()).data == strip(dense.SerializeToString()).data
    for each in (model, as_constant(tensor), in_a_function(tensor)):
        described = outline(each.SerializeToString())
        assert [port.name for port in described.inputs] == ["x"] and described.with_weights


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (sparse([1], [6], [2, 3]), ("not within 2 x 3",)),
        (sparse([1], [-1], [2, 3]), ("not within 2 x 3",)),
        (sparse([1], [[0, 3]], [2, 3]), ("not within 2 x 3",)),
        (sparse([1, 2], [1, 1], [2, 3]), ("same index",)),
        (sparse([1, 2], [1], [2, 3]), ("int64[1]", "2 values")),
        (sparse([1, 2], [[1], [2]], [2, 3]), ("int64[2, 1]", "2 values of 2 axes")),
        (sparse([1], [1], [2, 3], of_indices=np.int32), ("int32[1]",)),
        (sparse([[1]], [1], [2, 3]), ("no vector",)),
        (sparse(["a"], [1], [2, 3], dtype=object), ("no vector of numbers",)),
        (sparse([1], [1], [-2, 3]), ("-2 is negative",)),
        (sparse([1], [1], [1] * 9), ("9 dimensions",)),
        (sparse([1], [1], [1 << 20, 1 << 20]), ("1,099,511,627,776", "2,147,483,647")),
        (sparse([1], [1], [1 << 14, 1 << 15]), ("more than 1,073,741,824 bytes", "store them dense")),
    ],
)
@pytest.mark.parametrize("build", [initialised, as_constant, in_a_function])
def test_sparse_tensors_that_are_none(build: Any, tensor: SparseTensorProto, words: tuple[str, ...]):
    for use in (load, strip):
        with pytest.raises(ModelError, match="sparse weight 'w'") as error:
            use(build(tensor).SerializeToString())
        line = str(error.value)
        assert line.isprintable() and all(word in line for word in words)


def test_all_sparse_tensors_share_one_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MAX_DENSE_BYTES", 5 * DENSE.nbytes)
    model = in_a_function(sparse(VALUES, LINEAR, [2, 3]))
    call = model.graph.node[0]
    del model.graph.node[:]
    for k in range(6):
        model.graph.node.append(call)
        model.graph.node[k].input[0], model.graph.node[k].output[0] = (f"y{k}" if k else "x"), f"y{k + 1}"
    model.graph.output[0].name = "y5"
    with pytest.raises(ModelError, match="more than 120 bytes"):
        load(model.SerializeToString())
    del model.graph.node[5]
    load(model.SerializeToString())
