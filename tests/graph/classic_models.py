"""What tests of classic machine learning share: a model of one op, beside ONNX Runtime's; trees drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tunewright.graph import contrib
from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs
from .correcting import run_by_peer

POST_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


def classic_model(op: str, operands: Sequence[Any], results: Sequence[int], version: int, **attrs: Any) -> ModelProto:
    """A model of one node; `results` are the element types of its outputs."""
    names, outputs = [f"x{k}" for k in range(len(operands))], [f"y{k}" for k in range(len(results))]
    node = helper.make_node(op, names, outputs, domain=contrib.CLASSIC, **attrs)
    inputs = [
        helper.make_tensor_value_info(
            name,
            TensorProto.STRING if array.dtype.kind == "O" else helper.np_dtype_to_tensor_dtype(array.dtype),
            array.shape,
        )
        for name, array in zip(names, operands, strict=True)
    ]
    kinds = zip(outputs, results, strict=True)
    values = [helper.make_value_info(name, helper.make_tensor_type_proto(kind, None)) for name, kind in kinds]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(contrib.CLASSIC, version)]
    return helper.make_model(helper.make_graph([node], "g", inputs, values), opset_imports=opsets, ir_version=9)


def agree(
    op: str,
    *operands: Any,
    results: Sequence[int] = (TensorProto.FLOAT,),
    version: int = 3,
    rest: str = "",
    inverse: Callable[[Any], Any] = np.asarray,
    **attrs: Any,
) -> None:
    """Ours is what ONNX Runtime computes, node by node and as tasks, and nothing falls back but `rest`.

    Floats are compared by what `inverse` makes of them.
    """
    model = classic_model(op, operands, results, version, **attrs)
    feeds = {f"x{k}": array for k, array in enumerate(operands)}
    graph = load(model.SerializeToString())
    tensors = {port.tensor: feeds[port.label] for port in graph.inputs}
    steps = partition(rewrite(graph))
    assert {step.node.op for step in steps if isinstance(step, Fallback)} == ({rest} if rest else set())
    expected = run_by_peer(model, feeds)
    runs: Sequence[list[Any]] = (Runs.nodes(graph, tensors), Runs.steps(graph, tensors))
    for results_of_ours in runs:
        for ours, theirs in zip(results_of_ours, expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            if theirs.dtype.kind == "f":
                np.testing.assert_allclose(inverse(ours), inverse(theirs), rtol=1e-4, atol=1e-5)
            else:
                assert ours.tolist() == theirs.tolist()


@dataclass
class DrawnTrees:
    """Trees of any form, with thresholds on quarters, so that features meet them exactly."""

    rng: np.random.Generator
    columns: int
    modes: Sequence[str] = ("BRANCH_LEQ",)
    with_missing: bool = False
    share: float = 0.3  # of nodes that are leaves; one way down each tree is of full depth, if it is deep
    nodes: dict[str, list[Any]] = field(default_factory=dict)
    leaves: list[tuple[int, int]] = field(default_factory=list)

    def attrs(self, trees: int, depth: int) -> dict[str, Any]:
        """The attributes of nodes."""
        names = (
            "treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
            "missing_value_tracks_true",
        )  # fmt: skip
        self.nodes = {f"nodes_{name}": [] for name in names}
        for tree in range(trees):
            self._grow(tree, iter(range(1 << 20)), depth, is_way=depth > 10)
        if not self.with_missing:
            del self.nodes["nodes_missing_value_tracks_true"]
        return self.nodes

    def _grow(self, tree: int, numbers: Any, depth: int, is_way: bool) -> int:
        number, rng = int(next(numbers)), self.rng
        is_leaf = depth == 0 or (number > 0 and not is_way and rng.random() < self.share)
        place = len(self.nodes["nodes_treeids"])
        row = (
            tree, number, 0 if is_leaf else int(rng.integers(self.columns)), float(rng.integers(-4, 5)) / 4,
            "LEAF" if is_leaf else str(rng.choice(self.modes)), 0, 0, 0 if is_leaf else int(rng.integers(2)),
        )  # fmt: skip
        kept = row[:-1] if "nodes_missing_value_tracks_true" not in self.nodes else row
        for values, value in zip(self.nodes.values(), kept, strict=True):
            values.append(value)
        if is_leaf:
            self.leaves.append((tree, number))
        else:
            way = int(rng.integers(2)) if is_way else -1
            for side, name in enumerate(("nodes_truenodeids", "nodes_falsenodeids")):
                self.nodes[name][place] = self._grow(tree, numbers, depth - 1, side == way)
        return number

    def weights(self, kind: str, targets: int, *, of_one: bool = False, sign: int = 0) -> dict[str, Any]:
        """The attributes of leaves: for all targets each, or for that of the tree alone."""
        rows = [
            (tree, number, target)
            for tree, number in self.leaves
            for target in ([tree % targets] if of_one else range(targets))
        ]
        values = self.rng.standard_normal(len(rows)).astype(np.float32)
        if sign:
            values = sign * np.abs(values)
        trees, numbers, ids = (list(column) for column in zip(*rows, strict=True))
        return {
            f"{kind}_treeids": trees,
            f"{kind}_nodeids": numbers,
            f"{kind}_ids": ids,
            f"{kind}_weights": values.tolist(),
        }

    def rows(self, count: int, dtype: str = "float32") -> Any:
        """Rows on quarters; with NaN and infinity, where values may be missing."""
        x = self.rng.integers(-6, 7, (count, self.columns)) / 4
        if self.with_missing:
            x[self.rng.random(x.shape) < 0.2] = np.nan
            x[self.rng.random(x.shape) < 0.05] = -np.inf
        return x.astype(dtype)
