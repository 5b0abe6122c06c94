"""Classic machine learning, as converters of scikit-learn, LightGBM and XGBoost write it."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .network import Network

ML = "ai.onnx.ml"


def boosted_trees() -> bytes:
    """Chen and Guestrin, "XGBoost" (2016): 300 trees of depth 6 over 40 numbers, for three classes; 256 rows."""
    net, rows, columns, trees, depth, classes = Network("boosted_trees"), 256, 40, 300, 6, 3
    x = net.input("rows", (rows, columns))
    inner, nodes = 2**depth - 1, 2 ** (depth + 1) - 1
    rng = np.random.default_rng(0)
    number = np.tile(np.arange(nodes), trees)
    tree = np.repeat(np.arange(trees), nodes)
    is_leaf = number >= inner
    leaves = 2**depth
    label, scores = net.add_split(
        "TreeEnsembleClassifier",
        x,
        count=2,
        domain=ML,
        nodes_treeids=tree,
        nodes_nodeids=number,
        nodes_featureids=np.where(is_leaf, 0, rng.integers(0, columns, number.size)),
        nodes_values=np.where(is_leaf, 0, rng.standard_normal(number.size)).astype(np.float32),
        nodes_modes=["LEAF" if leaf else "BRANCH_LT" for leaf in is_leaf],
        nodes_truenodeids=np.where(is_leaf, 0, 2 * number + 1),
        nodes_falsenodeids=np.where(is_leaf, 0, 2 * number + 2),
        nodes_missing_value_tracks_true=np.where(is_leaf, 0, 1),
        class_treeids=np.repeat(np.arange(trees), leaves),
        class_nodeids=np.tile(np.arange(inner, nodes), trees),
        class_ids=np.repeat(np.arange(trees) % classes, leaves),
        class_weights=(0.1 * rng.standard_normal(trees * leaves)).astype(np.float32),
        classlabels_int64s=list(range(classes)),
        post_transform="SOFTMAX",
    )
    return net.onnx(label, scores)


def support_vectors() -> bytes:
    """Cortes and Vapnik, "Support-Vector Networks" (1995): scaled rows, 300 vectors, three classes; 64 rows."""
    net, rows, columns, vectors, classes = Network("support_vectors"), 64, 30, (120, 100, 80), 3
    rng = np.random.default_rng(0)
    offset, scale = rng.standard_normal(columns), rng.uniform(0.5, 2, columns)
    x = net.add("Scaler", net.input("rows", (rows, columns)), domain=ML, offset=offset, scale=scale)
    label, scores = net.add_split(
        "SVMClassifier",
        net.declare(x, (rows, columns)),
        count=2,
        domain=ML,
        kernel_type="RBF",
        kernel_params=[1 / columns, 0.0, 3.0],
        support_vectors=rng.standard_normal(sum(vectors) * columns).astype(np.float32),
        vectors_per_class=vectors,
        coefficients=rng.uniform(-1, 1, sum(vectors) * (classes - 1)).astype(np.float32),
        rho=rng.standard_normal(classes).astype(np.float32),
        classlabels_ints=list(range(classes)),
    )
    return net.onnx(net.declare(label, (rows,), TensorProto.INT64), net.declare(scores, (rows, classes)))
