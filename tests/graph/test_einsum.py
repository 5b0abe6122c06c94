"""Einsum, as products of matrices."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs

RNG = np.random.default_rng(5)


def imported(equation: str, *shapes: tuple[int, ...], dtype: str = "float32") -> Graph:
    names = [f"x{k}" for k in range(len(shapes))]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in zip(names, shapes, strict=True)]
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 5), (5, 7)]),
        ("bij,bjk", [(2, 3, 5), (2, 5, 7)]),
        ("bhid,bhjd->bhij", [(2, 3, 5, 7), (2, 3, 4, 7)]),
        ("bhij,bjhd->bihd", [(2, 3, 5, 4), (2, 4, 3, 7)]),
        ("bin,bjn->bij", [(1, 3, 5), (1, 4, 5)]),
        ("i,j->ij", [(3,), (5,)]),
        ("i,i->", [(5,), (5,)]),
        ("i,i->i", [(5,), (5,)]),
        ("ij->ji", [(3, 5)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("...iij->j...i", [(2, 5, 5, 3)]),
        ("iji,jk->ik", [(3, 5, 3), (5, 2)]),
        ("ijk->j", [(3, 5, 2)]),
        ("...ij,...jk->...ik", [(2, 3, 4, 5), (3, 5, 2)]),
        ("...ij, ...jk -> ...ik", [(2, 1, 4, 5), (1, 3, 5, 2)]),
        ("...i->...", [(3, 5)]),
        ("ij,jk,kl->il", [(3, 5), (5, 2), (2, 7)]),
        ("bi,oij,bj->bo", [(2, 3), (4, 3, 5), (2, 5)]),
        ("abc,cd->bd", [(2, 3, 4), (4, 5)]),
    ],
)
def test_equations(equation: str, shapes: list[tuple[int, ...]]) -> None:
    graph = imported(equation, *shapes)
    arrays = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]
    rewritten = rewrite(graph)
    assert not any(isinstance(step, Fallback) for step in partition(rewritten))
    feeds = {port.tensor: arrays[int(port.label[1:])] for port in rewritten.inputs}
    [result] = Runs.steps(rewritten, feeds)
    Runs.close(np.asarray(result), np.asarray(np.einsum(equation.replace(" ", ""), *arrays), np.float32))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64", "float16"])
@pytest.mark.parametrize("equation", ["bij,bjk->ki", "bij,bkj->bik"])
def test_other_types(equation: str, dtype: str) -> None:
    """Whole numbers are exact modulo 2^n."""
    rewritten = rewrite(imported(equation, (2, 5, 5), (2, 5, 5), dtype=dtype))
    assert not any(isinstance(step, Fallback) for step in partition(rewritten))
    draw = RNG.integers(-(2**31), 2**31, (2, 2, 5, 5)) if dtype != "float16" else RNG.standard_normal((2, 2, 5, 5))
    arrays = [array.astype(dtype) for array in draw]
    [result] = Runs.steps(rewritten, {port.tensor: arrays[int(port.label[1:])] for port in rewritten.inputs})
    expected = np.einsum(equation, *arrays)
    if dtype == "float16":
        np.testing.assert_allclose(np.asarray(result, np.float32), np.asarray(expected, np.float32), atol=0.05)
    else:
        np.testing.assert_array_equal(result, expected)
