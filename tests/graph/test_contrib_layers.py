"""Contributed activations, products with activations, and normalisations, beside ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.graph import contrib
from tunewright.graph.onnx_import import ModelError, load

from .contrib_models import agree, contrib_model, run_ours
from .correcting import RNG, normal


def words(high: int, *shape: int) -> Any:
    return RNG.integers(0, high, shape).astype(np.int32)


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("Gelu", {"X": (3, 7)}),
        ("FastGelu", {"X": (3, 7)}),
        ("FastGelu", {"X": (3, 7), "bias": (7,)}),
        ("QuickGelu", {"X": (3, 7)}),
        ("BiasGelu", {"A": (3, 7), "B": (7,)}),
    ],
)
def test_gelu_and_its_kin(op: str, operands: dict[str, Any]) -> None:
    agree(op, {name: normal(*shape) for name, shape in operands.items()}, "YC")


@pytest.mark.parametrize(
    ("a", "b", "attrs"),
    [
        ((2, 5, 3), (2, 7, 5), {"alpha": 0.5, "transA": 1, "transB": 1}),
        ((3, 2, 5), (2, 5, 7), {"transBatchA": 1}),
        ((5, 2, 3), (5, 2, 7), {"transA": 1, "transBatchA": 1, "transBatchB": 1}),
        ((5,), (7, 5), {"transB": 1}),
    ],
)
def test_fused_mat_mul(a: Any, b: Any, attrs: dict[str, Any]) -> None:
    agree("FusedMatMul", {"A": normal(*a), "B": normal(*b)}, "Y", **attrs)


@pytest.mark.parametrize("attrs", [{"activation": "LeakyRelu", "activation_alpha": 0.3}, {"activation": "Tanh"}])
def test_fused_gemm(attrs: dict[str, Any]) -> None:
    operands = {"A": normal(3, 5), "B": normal(7, 5), "C": normal(7)}
    agree("FusedGemm", operands, "Y", transB=1, alpha=2.0, beta=0.5, **attrs)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", None), ("Tanh", None), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.3, 0.4])],
)
def test_fused_conv(activation: str, parameters: list[float] | None) -> None:
    operands = {"X": normal(1, 3, 9, 8), "W": normal(4, 3, 3, 3), "B": normal(4), "Z": normal(1, 4, 9, 8)}
    attrs: dict[str, Any] = {"activation_params": parameters} if parameters else {}
    agree("FusedConv", operands, "Y", activation=activation, pads=[1] * 4, kernel_shape=[3, 3], **attrs)


def test_max_pool_with_channels_last() -> None:
    x = words(255, 1, 9, 8, 5).astype(np.uint8)
    agree("NhwcMaxPool", {"x": x}, "y", kernel_shape=[2, 3], strides=[2, 1])


@pytest.mark.parametrize("present", [("beta", "bias"), ("beta",), ()])
def test_skip_layer_normalization(present: tuple[str, ...]) -> None:
    operands = {"input": normal(2, 3, 8), "skip": normal(3, 8), "gamma": normal(8)}
    operands |= {name: normal(8) for name in present}
    agree("SkipLayerNormalization", operands, ("output", "input_skip_bias_sum"), epsilon=1e-5)


def test_skip_simplified_layer_normalization() -> None:
    operands = {"input": normal(2, 3, 8), "skip": normal(2, 3, 8), "gamma": normal(8), "bias": normal(8)}
    agree("SkipSimplifiedLayerNormalization", operands, ("output", "input_skip_bias_sum"), epsilon=1e-5)


def test_statistics_are_those_of_the_sum() -> None:
    operands = {"input": normal(2, 8), "skip": normal(2, 8), "gamma": normal(8)}
    total = operands["input"] + operands["skip"]
    for op, deviation in (
        ("SkipLayerNormalization", total.std(-1, keepdims=True)),
        ("SkipSimplifiedLayerNormalization", np.sqrt((total**2).mean(-1, keepdims=True))),
    ):
        _, inverse = run_ours(contrib_model(op, operands, ("output", "inv_std_var")), operands)
        np.testing.assert_allclose(inverse, 1 / deviation, rtol=1e-5)


@pytest.mark.parametrize("axis", [1, -1])
def test_simplified_layer_normalization_in_the_standard_domain(axis: int) -> None:
    x = normal(2, 3, 8)
    agree("SimplifiedLayerNormalization", {"X": x, "scale": normal(*x.shape[axis:])}, "Y", axis=axis, epsilon=1e-6)


def test_embeddings() -> None:
    tables = {"word_embedding": normal(20, 8), "position_embedding": normal(9, 8)}
    tables |= {"gamma": normal(8), "beta": normal(8)}
    segments = {"segment_ids": words(2, 2, 5), "segment_embedding": normal(2, 8), "mask": words(2, 2, 5)}
    results = ("output", "mask_index", "embedding_sum")
    agree("EmbedLayerNormalization", {"input_ids": words(20, 2, 5), **segments, **tables}, results)
    positions = {"position_ids": words(9, 2, 5)}
    agree("EmbedLayerNormalization", {"input_ids": words(20, 2, 5), **positions, **tables}, results[:2])


def test_faults_are_told_as_those_of_other_ops() -> None:
    model = contrib_model("QuickGelu", {"X": normal(3)}, "Y", beta=1.0)
    with pytest.raises(ModelError, match="QuickGelu of opset 1 has no attribute 'beta'; its attributes: alpha"):
        load(model.SerializeToString())
    model = contrib_model("Attention", {"input": normal(1, 2, 6), "weights": normal(6, 18)}, ["output"])
    with pytest.raises(ModelError, match="attribute num_heads is missing"):
        load(model.SerializeToString())
    model = contrib_model("QuickGelu", {"X": np.zeros(3, np.int32)}, "Y")
    with pytest.raises(ModelError, match="holds int32"):
        load(model.SerializeToString())


def test_what_can_not_be_written_is_refused_with_the_reason() -> None:
    operands = {"input": normal(1, 2, 6), "weights": normal(6, 18)}
    with pytest.raises(ModelError, match="Attention with rotary embeddings"):
        load(contrib_model("Attention", operands, ["output"], num_heads=2, do_rotary=1).SerializeToString())


def test_every_op_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    assert not [op for _, op in contrib.OPS if f"`{op}`" not in page]


def test_an_unknown_op_of_the_domain_is_refused() -> None:
    model = contrib_model("QuickGelu", {"X": normal(3)}, "Y")
    model.graph.node[0].op_type = "WordConvEmbedding"
    with pytest.raises(ModelError, match=f"{contrib.DOMAIN}.*WordConvEmbedding|WordConvEmbedding"):
        load(model.SerializeToString())
