"""Contributed ops on bytes and on weights of few bits, beside ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.onnx_import import ModelError, load

from .contrib_models import agree, contrib_model, run_ours
from .correcting import RNG, normal, run_by_peer


def drawn(dtype: Any, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def weights(dtype: Any, *shape: int) -> Any:
    """Signed ones of seven bits: without VNNI, ONNX Runtime adds pairs of products up in 16 bits that saturate."""
    values = drawn(dtype, *shape)
    return values // 2 if dtype == np.int8 else values


def scale(value: Any) -> Any:
    return np.array(value, np.float32)


def scales(*shape: int) -> Any:
    return np.abs(normal(*shape)) + np.float32(0.01)


def quantisation(dtype: Any, **scales: float) -> dict[str, Any]:
    """Scales and zero points of some operands, as constants."""
    parameters: dict[str, Any] = {}
    for place, (name, value) in enumerate(scales.items()):
        parameters |= {f"{name}_scale": scale(value), f"{name}_zero_point": np.array(3 + 4 * place, dtype)}
    return parameters


@pytest.fixture(params=[np.uint8, np.int8], ids=["uint8", "int8"])
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_binary(op: str, dtype: Any) -> None:
    constants = quantisation(dtype, A=0.02, B=0.03, C=0.05)
    agree(op, {"A": drawn(dtype, 3, 5), "B": drawn(dtype, 5), **constants}, "C", constants, steps=1)


@pytest.mark.parametrize(
    ("op", "attrs"), [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2})], ids=["sigmoid", "leaky_relu"]
)
def test_unary(op: str, attrs: dict[str, Any], dtype: Any) -> None:
    constants = quantisation(dtype, X=0.02, Y=0.01)
    agree(op, {"X": drawn(dtype, 3, 5), **constants}, "Y", constants, steps=1, **attrs)


@pytest.mark.parametrize("attrs", [{"opset": 13, "axis": -1}, {"opset": 11, "axis": 1}], ids=["13", "11"])
def test_softmax(attrs: dict[str, Any], dtype: Any) -> None:
    constants = {"X_scale": scale(0.02), "x_zero_point": np.array(3, dtype)}
    constants |= {"y_scale": scale(1 / 256), "y_zero_point": np.array(0, dtype)}
    agree("QLinearSoftmax", {"X": drawn(dtype, 3, 5, 4), **constants}, "Y", constants, steps=1, **attrs)


def test_concat(dtype: Any) -> None:
    constants = quantisation(dtype, Y=0.05, a=0.02, b=0.03)
    operands = {name: constants[name] for name in ("Y_scale", "Y_zero_point")}
    for name, extent in (("a", 5), ("b", 4)):
        operands |= {name: drawn(dtype, 3, extent)}
        operands |= {key: constants[key] for key in (f"{name}_scale", f"{name}_zero_point")}
    agree("QLinearConcat", operands, "Y", constants, steps=1, axis=1)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("QLinearGlobalAveragePool", {}),
        ("QLinearGlobalAveragePool", {"channels_last": 1}),
        ("QLinearAveragePool", {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 1]}),
    ],
)
def test_pools(op: str, attrs: dict[str, Any], dtype: Any) -> None:
    constants = quantisation(dtype, x=0.02, y=0.01)
    agree(op, {"X": drawn(dtype, 2, 5, 6, 7), **constants}, "Y", constants, steps=1, **attrs)


def test_where_and_mean(dtype: Any) -> None:
    constants = quantisation(dtype, x=0.02, y=0.03, z=0.05)
    condition = RNG.integers(0, 2, (3, 5)).astype(bool)
    operands = {"condition": condition, "X": drawn(dtype, 3, 5), "Y": drawn(dtype, 5), **constants}
    agree("QLinearWhere", operands, "Z", constants, steps=1)
    constants = quantisation(dtype, data=0.02, reduced=0.01)
    operands = {"data": drawn(dtype, 2, 5, 4), **constants}
    model = contrib_model("QLinearReduceMean", operands, ["reduced"], constants, axes=[1], keepdims=1)
    mean = (operands["data"].astype(np.float32) - 3).mean(1, keepdims=True) * 2  # no kernel in ONNX Runtime
    limits = np.iinfo(dtype)
    expected = np.clip(np.rint(mean) + 7, limits.min, limits.max)
    assert np.abs(run_ours(model, operands)[0] - expected).max() <= 1


def test_conversions(dtype: Any) -> None:
    agree("QuantizeLinear", {"x": normal(3, 4), "y_scale": scale(0.02), "y_zero_point": np.array(3, dtype)}, "y")
    parameters = {"x_scale": scale([0.02, 0.1, 0.3]), "x_zero_point": drawn(dtype, 3)}
    agree("DequantizeLinear", {"x": drawn(dtype, 3, 4), **parameters}, "y", axis=0)


PAIRS = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_products(a: Any, b: Any) -> None:
    operands = {"A": drawn(a, 3, 5), "B": weights(b, 7, 5), "a_scale": scale(0.02), "a_zero_point": np.array(3, a)}
    operands |= {"b_scale": scale(0.03), "b_zero_point": np.array(7, b), "C": RNG.integers(-99, 99, 7).astype(np.int32)}
    rounded = {"y_scale": scale(0.2), "y_zero_point": np.array(9, a)}
    constants = operands.keys() - {"A"}
    agree("QGemm", operands, "Y", constants, transB=1)
    agree("QGemm", {**operands, **rounded}, "Y", [*constants, *rounded], steps=1, transB=1, alpha=0.7)
    columns = {"A": drawn(a, 2, 3, 5), "B": weights(b, 5, 7), "b_scale": scales(7), "b_zero_point": drawn(b, 7)}
    parameters = {name: operands[name] for name in ("a_scale", "a_zero_point")}
    agree("MatMulIntegerToFloat", {**columns, **parameters, "bias": normal(7)}, "Y")


@pytest.mark.parametrize("b", [np.uint8, np.int8])
def test_dynamic_product(b: Any) -> None:
    operands = {"A": normal(2, 3, 5), "B": weights(b, 5, 7), "b_scale": scales(7), "b_zero_point": drawn(b, 7)}
    agree("DynamicQuantizeMatMul", {**operands, "bias": normal(7)}, "Y")
    agree("DynamicQuantizeMatMul", {"A": normal(2, 3, 5), "B": weights(b, 5, 7), "b_scale": scale(0.1)}, "Y")


@pytest.mark.parametrize("weight", [np.uint8, np.int8])
def test_attention_over_a_product_of_bytes(weight: Any) -> None:
    operands = {"input": drawn(np.uint8, 2, 5, 12), "weight": weights(weight, 12, 36), "bias": normal(36)}
    operands |= {"input_scale": scale(0.01), "input_zero_point": np.array(4, np.uint8)}
    single = {"weight_scale": scale(0.02), "weight_zero_point": np.array(3, weight)}
    constants = ["weight", "bias"]
    lengths = np.array([3, 5], np.int32)
    agree("QAttention", {**operands, **single, "mask_index": lengths}, ["output"], constants, num_heads=3)
    past = {"past": normal(2, 2, 3, 4, 4)}
    agree("QAttention", {**operands, **single, **past}, ["output", "present"], constants, num_heads=3, unidirectional=1)


def blocked(n: int, k: int, bits: int, size: int) -> dict[str, Any]:
    blocks = -(-k // size)
    return {"A": normal(2, 3, k), "B": drawn(np.uint8, n, blocks, size * bits // 8), "scales": scales(n, blocks)}


def agree_blocked(n: int, k: int, bits: int, size: int, constant: bool = True, **more: Any) -> None:
    operands = {**blocked(n, k, bits, size), **more}
    constants = operands.keys() - {"A"} if constant else ()
    agree("MatMulNBits", operands, "Y", constants, N=n, K=k, bits=bits, block_size=size)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_with_few_bits(bits: int) -> None:
    agree_blocked(7, 64, bits, 16)
    packed = drawn(np.uint8, 7, -(-3 * bits // 8))
    agree_blocked(7, 80, bits, 32, zero_points=packed, bias=normal(7))
    agree_blocked(7, 80, bits, 32, zero_points=packed, constant=False)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "kind", "off"), [(1, "float32", 1e-5), (20, "float32", 1e-5), (2, "float16", 0.01)])
def test_activations_of_eight_bits(bits: int, rows: int, kind: str, off: float) -> None:
    """With `accuracy_level` 4 they are rounded, as ONNX Runtime does it."""
    operands = {**blocked(32, 128, bits, 32), "A": normal(rows, 128)}
    operands |= {name: operands[name].astype(kind) for name in ("A", "scales")}
    attrs = {"N": 32, "K": 128, "bits": bits, "block_size": 32, "accuracy_level": 4}
    model = contrib_model("MatMulNBits", operands, ["Y"], operands.keys() - {"A"}, **attrs)
    [ours], [theirs] = run_ours(model, operands), run_by_peer(model, {"A": operands["A"]})
    np.testing.assert_allclose(ours, theirs, atol=off * np.abs(theirs).max())


def test_blocks_of_activations_that_are_not_rounded() -> None:
    """Those that are not whole, or not whole words."""
    for k, size in ((120, 32), (48, 12)):
        operands = {**blocked(32, k, 4, size), "A": normal(2, k)}
        attrs = {"N": 32, "K": k, "bits": 4, "block_size": size, "accuracy_level": 4}
        graph = load(
            contrib_model("MatMulNBits", operands, ["Y"], operands.keys() - {"A"}, **attrs).SerializeToString()
        )
        assert all(node.op != "RoundBlocks" for node in graph.nodes)


def test_other_forms_of_products_with_few_bits() -> None:
    agree_blocked(7, 64, 4, 16, zero_points=normal(7, 4))
    agree_blocked(7, 64, 4, 16, g_idx=RNG.permutation(np.arange(64) // 16).astype(np.int32))


@pytest.mark.parametrize("kind", [0, 1], ids=["fp4", "nf4"])
def test_products_with_a_table_of_numbers(kind: int) -> None:
    operands = {"A": normal(3, 48), "B": drawn(np.uint8, 7 * 24), "absmax": scales(21)}
    constants = ["B", "absmax"]
    agree("MatMulBnb4", operands, "Y", constants, N=7, K=48, block_size=16, quant_type=kind)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_table_of_few_bits(bits: int) -> None:
    data = {"data": drawn(np.uint8, 5, 64 * bits // 8), "scales": scales(5, 4)}
    operands = {**data, "indices": np.array([[0, 3], [2, 1]])}
    attrs = {"block_size": 16, "quantize_axis": 1, "bits": bits}
    agree("GatherBlockQuantized", operands, ["output"], data, **attrs)
    zero_points = {"zero_points": drawn(np.uint8, 5, 4 * bits // 8)}
    agree("GatherBlockQuantized", {**operands, **zero_points}, ["output"], [*data, *zero_points], **attrs)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_rows_of_a_table_of_four_bits(kind: str) -> None:
    def numbers(*shape: int) -> Any:
        return RNG.integers(-8 * (kind == "int4"), 8, shape).astype(np.int8).astype(np.dtype(kind))

    data = {"data": numbers(5, 48), "scales": scales(5, 3), "zero_points": numbers(5, 3)}
    operands = {"data": data["data"], "indices": np.array([[0, 3], [2, 1]]), **data}
    agree("GatherBlockQuantized", operands, ["output"], data, block_size=16, quantize_axis=-1)


def test_a_table_is_not_gathered_along_its_blocks() -> None:
    operands = {"data": drawn(np.uint8, 5, 32), "indices": np.array(3), "scales": scales(5, 2)}
    model = contrib_model("GatherBlockQuantized", operands, ["output"], block_size=16, gather_axis=1, bits=8)
    with pytest.raises(ModelError, match="blocks along the axis that is gathered"):
        load(model.SerializeToString())


def test_zero_points_by_group() -> None:
    """By the definition: ONNX Runtime (1.31.1) takes the zero points of blocks, and the scales of groups."""
    n, k, size = 3, 64, 16
    packed, zero_points = drawn(np.uint8, n, k // size, size // 2), drawn(np.uint8, n, k // size // 2)
    factors, groups = scales(n, k // size), RNG.integers(0, k // size, k).astype(np.int32)
    operands = {"A": np.eye(k, dtype=np.float32), "B": packed, "scales": factors, "zero_points": zero_points}
    model = contrib_model(
        "MatMulNBits", {**operands, "g_idx": groups}, ["Y"], ["B", "g_idx"], N=n, K=k, bits=4, block_size=size
    )
    numbers, zeros = (
        np.stack([array & 15, array >> 4], -1).reshape(n, -1).astype(np.float32) for array in (packed, zero_points)
    )
    [result] = run_ours(model, operands)
    np.testing.assert_allclose(result.T, (numbers - zeros[:, groups]) * factors[:, groups], rtol=1e-5, atol=1e-5)
