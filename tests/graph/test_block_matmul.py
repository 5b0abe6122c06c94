"""Products with weights of few bits: which ones read them as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.rewrites import rewrite

from ..search_space.test_block_matmul import graph_of


def test_activations_are_rounded_where_they_may_be(runs: Any) -> None:
    """On processors that multiply bytes; as ONNX Runtime does it, to multiples of a 127th of a block's largest."""
    before = graph_of("3", 48, 3, 16, is_rounded=True)
    assert [node.op for node in rewrite(before).nodes] == ["BlockMatMul", "Relu"]
    after = rewrite(before, dots=True)
    assert [node.op for node in after.nodes] == ["BlockQuantize", "BlockMatMul", "Relu"]
    x = np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32)
    x[1, 16:32] = 0
    blocks = x.reshape(3, 3, 16)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    rounded = np.rint(blocks / np.where(scales, scales, 1)) * scales
    [port] = before.inputs
    [expected] = runs.nodes(before, {port.tensor: rounded.reshape(3, 48)})
    for run in (runs.nodes, runs.steps):
        [actual] = run(after, {port.tensor: x})
        runs.close(actual, expected, 1e-5)


def test_blocks_that_are_not_whole_words_are_not_rounded() -> None:
    after = rewrite(graph_of("1", 48, 3, 12, is_rounded=True), dots=True)
    assert [node.op for node in after.nodes] == ["BlockMatMul", "Relu"]


@pytest.mark.parametrize(
    ("options", "is_packed"),
    [
        ({}, True),
        ({"rows": "16"}, True),
        ({"rows": "17"}, False),  # so many rows are computed faster in floats
        ({"most": 16}, True),
        ({"blocks": 1}, False),
        ({"size": 7}, False),
        ({"columns": 15}, False),
        ({"then": "y = Floor (t)"}, False),  # a step function reads the sums
    ],
)
def test_which_products_are_packed(options: dict[str, Any], is_packed: bool, runs: Any) -> None:
    sizes: dict[str, Any] = {"rows": "1", "columns": 48, "blocks": 3, "size": 16} | options
    before = graph_of(**sizes)
    after = rewrite(before)
    assert any(node.op == "BlockMatMul" for node in after.nodes) is is_packed
    assert not any(node.op == "BlockMatMul" for node in rewrite(before, widen=False).nodes)
    rng = np.random.default_rng(0)
    [port] = before.inputs
    feeds = {port.tensor: rng.standard_normal(before.type(port.tensor).shape).astype(np.float32)}
    [expected], [actual] = runs.nodes(before, feeds), runs.nodes(after, feeds)
    runs.close(actual, expected, 1e-5)
