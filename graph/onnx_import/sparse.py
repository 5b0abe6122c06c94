"""Sparse tensors of a model, written dense before anything else looks at them."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, SparseTensorProto, TensorProto, numpy_helper

from tunewright.graph.inference import TypeFault, check_shape
from tunewright.graph.ir import Array

from .check import bodies
from .errors import ModelError, shown
from .weights import Weights

MAX_DENSE_BYTES = 1 << 30
"""What the sparse tensors of one model may come to: a few bytes of a file can ask for any shape."""


def make_dense(graph: GraphProto, weights: Weights) -> None:
    """Put dense weights and Constants in the place of the sparse ones of a graph, those in its bodies included.

    Raises ModelError for a tensor that is none, and where all come to more than MAX_DENSE_BYTES.
    """
    _Dense(weights).write(graph)


class _Dense:
    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._left_bytes = MAX_DENSE_BYTES

    def write(self, graph: GraphProto) -> None:
        graph.initializer.extend(self._tensor(sparse) for sparse in graph.sparse_initializer)
        graph.ClearField("sparse_initializer")
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.type == AttributeProto.SPARSE_TENSOR:
                    tensor = self._tensor(attribute.sparse_tensor)
                    attribute.CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor))
            for body in bodies(node):
                self.write(body)

    def _tensor(self, sparse: SparseTensorProto) -> TensorProto:
        name = sparse.values.name
        place = f"sparse weight {shown(name)}"
        try:
            check_shape(sparse.dims)
        except TypeFault as fault:
            raise ModelError(f"{place}: {fault}") from fault
        shape = tuple(sparse.dims)
        values = self._weights.array(sparse.values)
        if values.ndim != 1 or values.dtype.kind in "OUST":
            raise ModelError(f"{place}: its values are no vector of numbers, but {list(values.shape)}")
        self._left_bytes -= prod(shape) * values.itemsize
        if self._left_bytes < 0:
            raise ModelError(
                f"{place}: sparse weights of more than {MAX_DENSE_BYTES:,} bytes once they are dense; store them dense"
            )
        places = _places(self._weights.array(sparse.indices), len(values), shape, place)
        dense = np.zeros(prod(shape), values.dtype)
        dense[places] = values
        return numpy_helper.from_array(dense.reshape(shape), name)


def _places(indices: Array, count: int, shape: tuple[int, ...], place: str) -> NDArray[np.int64]:
    """Where the values are among all elements, from one number or one coordinate for each axis."""
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise ModelError(
            f"{place}: its indices are {indices.dtype}{list(indices.shape)} for {count:,} values of {len(shape)} axes; "
            f"int64[{count}] or int64[{count}, {len(shape)}] would fit"
        )
    numbers = np.asarray(indices, np.int64)
    extents = np.asarray(shape if numbers.ndim == 2 else prod(shape), np.int64)
    if ((numbers < 0) | (numbers >= extents)).any():
        raise ModelError(f"{place}: an index is not within {' x '.join(map(str, shape))}")
    strides = np.asarray([prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)
    places = numbers @ strides if numbers.ndim == 2 else numbers
    if len(np.unique(places)) < count:
        raise ModelError(f"{place}: two values have the same index")
    return places
