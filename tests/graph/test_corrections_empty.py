"""Nothing at all, such as no samples in a batch: shapes are as ONNX says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.rewrites import rewrite

from .correcting import computed, empty, imported, ints, normal

ROW = {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}


CELL = {"hidden_size": 4}


EMPTY: list[tuple[str, list[Any], dict[str, Any], list[tuple[int, ...]]]] = [
    ("ArgMax", [empty(0, 3)], {"axis": 1, "keepdims": 0}, [(0,)]),
    ("AveragePool", [empty(0, 3, 5, 4)], ROW, [(0, 3, 4, 3)]),
    ("BatchNormalization", [empty(0, 3, 5), *[normal(3)] * 4], {}, [(0, 3, 5)]),
    ("Cast", [empty(0, 3)], {"to": 7}, [(0, 3)]),
    ("Clip", [empty(0, 3)], {"min": 0.0}, [(0, 3)]),
    ("Col2Im", [empty(0, 4, 9), ints(4, 4), ints(2, 2)], {}, [(0, 1, 4, 4)]),
    ("Compress", [normal(4, 3), np.zeros(4, np.bool_)], {"axis": 0}, [(0, 3)]),
    ("Concat", [empty(0, 3), normal(2, 3)], {"axis": 0}, [(2, 3)]),
    ("Conv", [empty(0, 3, 5, 5), normal(4, 3, 2, 2), normal(4)], {**ROW, "group": 1}, [(0, 4, 4, 4)]),
    ("Conv", [normal(2, 3, 2, 5), normal(4, 3, 3, 3)], {}, [(2, 4, 0, 3)]),
    ("ConvInteger", [empty(0, 3, 5, 5, dtype=np.uint8), np.ones((4, 3, 2, 2), np.uint8)], {}, [(0, 4, 4, 4)]),
    ("ConvTranspose", [empty(0, 4, 5, 5), normal(4, 2, 3, 3), normal(4)], {"group": 2}, [(0, 4, 7, 7)]),
    ("ConvTranspose", [empty(2, 0, 5, 5), empty(0, 4, 3, 3)], {}, [(2, 4, 7, 7)]),
    ("ConvTranspose", [empty(2, 3, 0, 5), normal(3, 4, 3, 3)], {}, [(2, 4, 2, 7)]),
    ("CumSum", [empty(0, 3), np.array(0)], {}, [(0, 3)]),
    ("DepthToSpace", [empty(0, 4, 2, 2)], {"blocksize": 2}, [(0, 1, 4, 4)]),
    ("DequantizeLinear", [empty(0, 3, dtype=np.uint8), np.float32(0.1), np.uint8(3)], {}, [(0, 3)]),
    ("Einsum", [empty(0, 3), normal(3, 4)], {"equation": "ij,jk->ik"}, [(0, 4)]),
    ("Expand", [normal(1, 3), ints(0, 1)], {}, [(0, 3)]),
    ("EyeLike", [empty(0, 3)], {}, [(0, 3)]),
    ("Flatten", [empty(2, 0, 3)], {"axis": 2}, [(0, 3)]),
    ("GRU", [empty(5, 0, 3), normal(1, 12, 3), normal(1, 12, 4)], CELL, [(5, 1, 0, 4), (1, 0, 4)]),
    ("Gather", [normal(4, 3), empty(0, 2, dtype=np.int64)], {"axis": 1}, [(4, 0, 2)]),
    ("Gather", [empty(4, 0), ints(1, 2)], {"axis": 0}, [(2, 0)]),
    ("GatherElements", [normal(4, 3), empty(0, 3, dtype=np.int64)], {"axis": 0}, [(0, 3)]),
    ("GatherND", [empty(0, 4, 3), empty(0, 2, 1, dtype=np.int64)], {"batch_dims": 1}, [(0, 2, 3)]),
    ("Gemm", [empty(2, 0), empty(0, 4), normal(4)], {}, [(2, 4)]),
    ("Gemm", [empty(0, 3), normal(3, 4)], {}, [(0, 4)]),
    ("GlobalAveragePool", [empty(0, 3, 5, 4)], {}, [(0, 3, 1, 1)]),
    ("GlobalLpPool", [empty(0, 3, 5, 4)], {}, [(0, 3, 1, 1)]),
    ("GlobalMaxPool", [empty(0, 3, 5, 4)], {}, [(0, 3, 1, 1)]),
    ("GridSample", [empty(0, 2, 4, 4), empty(0, 3, 5, 2)], {}, [(0, 2, 3, 5)]),
    ("GridSample", [normal(2, 2, 4, 4), empty(2, 0, 5, 2)], {}, [(2, 2, 0, 5)]),
    ("GridSample", [empty(2, 0, 4, 4), normal(2, 3, 5, 2)], {}, [(2, 0, 3, 5)]),
    ("Hardmax", [empty(2, 0)], {"axis": -1}, [(2, 0)]),
    ("InstanceNormalization", [empty(0, 3, 5), normal(3), normal(3)], {}, [(0, 3, 5)]),
    ("LRN", [empty(0, 3, 5, 4)], {"size": 3}, [(0, 3, 5, 4)]),
    ("LSTM", [empty(5, 0, 3), normal(1, 16, 3), normal(1, 16, 4)], CELL, [(5, 1, 0, 4), (1, 0, 4), (1, 0, 4)]),
    ("LSTM", [empty(0, 2, 3), normal(1, 16, 3), normal(1, 16, 4)], CELL, [(0, 1, 2, 4), (1, 2, 4), (1, 2, 4)]),
    ("LayerNormalization", [empty(0, 3, 5), normal(5)], {}, [(0, 3, 5), (0, 3, 1), (0, 3, 1)]),
    ("LogSoftmax", [empty(0, 3)], {"axis": 1}, [(0, 3)]),
    ("LpNormalization", [empty(0, 3)], {}, [(0, 3)]),
    ("LpPool", [empty(0, 3, 5, 4)], ROW, [(0, 3, 4, 3)]),
    ("MatMul", [empty(2, 0), empty(0, 4)], {}, [(2, 4)]),
    ("MatMul", [empty(0, 2, 3), normal(3, 4)], {}, [(0, 2, 4)]),
    ("MatMulInteger", [empty(2, 0, dtype=np.uint8), empty(0, 3, dtype=np.int8)], {}, [(2, 3)]),
    ("MaxPool", [empty(0, 3, 5, 4)], ROW, [(0, 3, 4, 3), (0, 3, 4, 3)]),
    ("MaxPool", [normal(2, 3, 1, 4)], ROW, [(2, 3, 0, 3), (2, 3, 0, 3)]),
    ("NonMaxSuppression", [empty(1, 0, 4), empty(1, 2, 0), np.array(3)], {}, [(0, 3)]),
    ("NonZero", [np.zeros((2, 3), np.float32)], {}, [(2, 0)]),
    ("OneHot", [empty(0, dtype=np.int64), np.array(3), normal(2)], {}, [(0, 3)]),
    ("Pad", [empty(0, 3), ints(0, -1, 0, 2)], {"mode": "reflect"}, [(0, 4)]),
    ("Pad", [empty(3, 0), ints(0, -1, 0, 2)], {"mode": "constant"}, [(3, 1)]),
    ("QuantizeLinear", [empty(0, 3), np.float32(0.1), np.uint8(3)], {}, [(0, 3)]),
    ("RNN", [empty(5, 0, 3), normal(1, 4, 3), normal(1, 4, 4)], CELL, [(5, 1, 0, 4), (1, 0, 4)]),
    ("Range", [np.array(3), np.array(1), np.array(1)], {}, [(0,)]),
    ("Reshape", [empty(0, 3), ints(3, 0, 2)], {"allowzero": 1}, [(3, 0, 2)]),
    ("Resize", [empty(0, 3, 4, 4), None, None, ints(0, 3, 7, 5)], {"mode": "linear"}, [(0, 3, 7, 5)]),
    ("ScatterElements", [normal(4, 3), empty(0, 3, dtype=np.int64), empty(0, 3)], {}, [(4, 3)]),
    ("ScatterND", [normal(4, 3), empty(0, 1, dtype=np.int64), empty(0, 3)], {}, [(4, 3)]),
    ("Slice", [normal(4, 3), ints(2), ints(2), ints(1)], {}, [(4, 0)]),
    ("Softmax", [empty(2, 0, 3)], {"axis": 1}, [(2, 0, 3)]),
    ("Softmax", [empty(0, 3)], {"axis": 1}, [(0, 3)]),
    ("Split", [empty(0, 4), ints(0, 0)], {"axis": 0}, [(0, 4), (0, 4)]),
    ("Tile", [normal(2, 3), ints(0, 2)], {}, [(0, 6)]),
    ("TopK", [empty(0, 5), ints(2)], {}, [(0, 2), (0, 2)]),
    ("TopK", [normal(5, 3), ints(0)], {}, [(5, 0), (5, 0)]),
    ("Transpose", [empty(2, 0, 3)], {"perm": (1, 2, 0)}, [(0, 3, 2)]),
    ("Trilu", [empty(0, 3, 3)], {}, [(0, 3, 3)]),
    ("Unique", [empty(0)], {}, [(0,), (0,), (0,), (0,)]),
    ("Where", [empty(0, 3, dtype=np.bool_), normal(3), normal(1)], {}, [(0, 3)]),
]


@pytest.mark.parametrize(("op", "operands", "attrs", "shapes"), EMPTY)
def test_nothing_in_the_batch(op: str, operands: list[Any], attrs: dict[str, Any], shapes: list[tuple[int, ...]]):
    results = computed(op, [None if x is None else np.asarray(x) for x in operands], 20, len(shapes), **attrs)
    assert [array.shape for array in results] == shapes


@pytest.mark.parametrize(("dtype", "result", "op"), [("float", "float", "MatMul"), ("uint8", "int32", "MatMulInteger")])
def test_products_over_nothing_are_known(dtype: str, result: str, op: str):
    """ONNX Runtime leaves some as they are in memory."""
    graph = rewrite(imported(f"g ({dtype}[2,0] x, {dtype}[0,5] w) => ({result}[2,5] y) {{ y = {op}(x, w) }}"))
    assert not graph.nodes
    np.testing.assert_array_equal(graph.constants[graph.outputs[0].tensor], np.zeros((2, 5)))
