"""Ensembles of trees: right for any schedule, and where the sketch applies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Task
from tunewright.search_space.patterns.tree_ensemble import match_tree_ensemble
from tunewright.search_space.sketches import sketch, spaces

from .oracle import HOST, interpret, native
from .test_sketches import tasks_of

SKETCH = sketch("tree_ensemble")


def task_of(rows: int, columns: int, trees: int, depth: int, targets: int, *, of_one: bool, then: str) -> Task:
    """Trees, each for one target, or for all of them: perfect ones, or where that is too deep a long way down each."""
    rng = np.random.default_rng(rows)
    inner, nodes = (2**depth - 1, 2 ** (depth + 1) - 1) if depth <= 10 else (depth, 2 * depth + 1)
    number, tree = np.tile(np.arange(nodes), trees), np.repeat(np.arange(trees), nodes)
    children = 2 * number + 1, 2 * number + 2
    if depth > 10:
        children = number + depth, np.where(number == depth - 1, 2 * depth, number + 1)
    ends = np.flatnonzero(number >= inner)
    ids = tree[ends] % targets if of_one else np.tile(np.arange(targets), len(ends))
    ends = ends if of_one else np.repeat(ends, targets)
    given: dict[str, Any] = {
        "nodes_treeids": tree, "nodes_nodeids": number, "nodes_featureids": rng.integers(0, columns, len(tree)),
        "nodes_truenodeids": children[0], "nodes_falsenodeids": children[1],
        "target_treeids": tree[ends], "target_nodeids": number[ends], "target_ids": ids,
    }  # fmt: skip
    attrs = [f"{name}={values.tolist()}" for name, values in given.items()]
    for name, count in (("nodes_values", len(tree)), ("target_weights", len(ends))):
        attrs.append(f"{name}=[{', '.join(f'{value:.3f}' for value in rng.uniform(-1, 1, count))}]")
    modes = ", ".join('"LEAF"' if leaf else '"BRANCH_LEQ"' for leaf in number >= inner)
    attrs.append(f"nodes_modes=[{modes}], n_targets={targets}")
    nodes_text = f"t = ai.onnx.ml.TreeEnsembleRegressor<{', '.join(attrs)}>(x) {then}"
    (task, *_) = (t for t in tasks_of(f"x[{rows}, {columns}] | {nodes_text} | y ; ", {}) if "Trees" in t.op)
    return task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "columns", "trees", "depth", "targets", "of_one"),
    [
        (37, 5, 11, 4, 1, False),
        (1, 7, 13, 3, 1, False),
        (13, 2, 2, 1, 1, False),
        (5, 300, 7, 3, 1, False),
        (19, 5, 9, 3, 3, True),
        (1, 5, 6, 2, 3, True),
        (11, 5, 5, 3, 3, False),
        (7, 3, 4, 2, 37, False),
        (37, 5, 11, 13, 1, False),
        (1, 7, 130, 11, 1, False),
        (19, 200, 9, 20, 3, True),
        (1, 5, 6, 12, 3, True),
        (11, 5, 5, 17, 3, False),
    ],
)
def test_any_schedule_agrees_with_the_oracle(
    rows: int, columns: int, trees: int, depth: int, targets: int, of_one: bool
) -> None:
    task = task_of(rows, columns, trees, depth, targets, of_one=of_one, then="y = Sigmoid(t)")
    assert task.op == "Trees+Sigmoid"
    assert [space.sketch for space in spaces(task, HOST)] == ["tree_ensemble"]
    space, arrays = SKETCH.space(task, HOST), example_inputs(task, 1)
    expected: Any = reference(task, arrays)[0]
    for row in [space.row(space.default), *space.sample(5, np.random.default_rng(2))]:
        kernel = SKETCH.lower(task, space.schedule(row), HOST)
        verify(kernel)
        for [result] in (interpret(task, kernel, arrays), native(task, kernel, arrays)):
            np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("columns", "trees"), [(3, 1), (1, 4)])
def test_one_tree_or_one_column_is_left_to_others(columns: int, trees: int) -> None:
    task = task_of(5, columns, trees, 3, 1, of_one=False, then="y = Relu(t)")
    assert match_tree_ensemble(task) is None
    assert [space.sketch for space in spaces(task, HOST)] == ["generic"]
