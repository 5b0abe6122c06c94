"""Products with weights of few bits: which ones read them as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.rewrites import rewrite

from ..search_space.test_block_matmul import graph_of


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
