"""Arithmetic of all element types, native and in the oracle, against numpy: extremes, zero divisors, NaN, odd sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from tunewright.codegen.expr.dtype import INTEGERS, DType
from tunewright.codegen.host import detect
from tunewright.graph.fusion.fusion import TaskCall
from tunewright.graph.ir import Array
from tunewright.graph.oracle import reference
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.session.session import InferenceSession

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, on overflows and divisions by zero

Meaning = Callable[..., Any]
IR_VERSION = 10


def one_op_each(
    ops: Mapping[str, tuple[str, Mapping[str, Any]]], feeds: Mapping[str, Array], version: int = 20
) -> Model:
    """A model of independent nodes: output -> op, then its inputs, and attributes."""
    nodes = [
        helper.make_node(words.split()[0], words.split()[1:], [name], **attrs) for name, (words, attrs) in ops.items()
    ]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in ops]
    graph = helper.make_graph(nodes, "each", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=IR_VERSION)
    return open_model(model.SerializeToString(), {})


def run_both(model: Model, feeds: Mapping[str, Array]) -> list[dict[str, Array]]:
    """Outputs of the native code and of the oracle, by name. Every node must have a kernel."""
    assert model.fallback_reasons == []
    with InferenceSession.of(model, detect(threads=1), {}) as session:
        names = [value.name for value in session.get_outputs()]
        native = dict(zip(names, session.run(None, dict(feeds)), strict=True))
    exact = {value.tensor: feeds[value.label] for value in model.graph.inputs} | dict(model.graph.constants)
    for step in model.steps:
        if isinstance(step, TaskCall):
            operands = zip(step.inputs, step.task.inputs, strict=True)
            results = reference(step.task, [exact[name].reshape(tensor.shape) for name, tensor in operands])
            exact.update(zip(step.outputs, results, strict=True))
    outputs = zip(names, model.graph.outputs, strict=True)
    return [native, {name: exact[value.tensor].reshape(native[name].shape) for name, value in outputs}]


def extremes(dtype: DType, count: int, seed: int) -> Array:
    """Numbers of the whole range, its ends and small ones among them."""
    limits = np.iinfo(dtype.value)
    rng = np.random.default_rng(seed)
    values = rng.integers(limits.min, limits.max, count, dtype=dtype.value, endpoint=True)
    small = rng.integers(max(limits.min, -3), 4, count).astype(dtype.value)
    ends = np.array([limits.min, limits.max, 0, limits.max - 1], dtype.value)
    choice = rng.integers(0, 3, count)
    return np.where(choice == 0, values, np.where(choice == 1, small, rng.choice(ends, count)))


def c_quotient(a: Array, b: Array) -> Array:
    """Towards zero, by whole numbers of Python; by zero 0, and wrapped around."""
    exact = [
        0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    return wrap(exact, a.dtype)


def wrap(values: list[int], dtype: Any) -> Array:
    bits = 8 * np.dtype(dtype).itemsize
    return np.array([value % (1 << bits) for value in values], f"uint{bits}").astype(dtype)


def whole_power(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    return wrap(
        [
            pow(x, y, 1 << bits) if y >= 0 else (x if y % 2 else 1) if x in (1, -1) else 0
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ],
        a.dtype,
    )


BINARY: Mapping[str, tuple[str, Mapping[str, Any], Meaning]] = {
    "add": ("Add", {}, np.add),
    "sub": ("Sub", {}, np.subtract),
    "mul": ("Mul", {}, np.multiply),
    "div": ("Div", {}, c_quotient),
    "mod": ("Mod", {}, np.mod),
    "fmod": ("Mod", {"fmod": 1}, np.fmod),
    "pow": ("Pow", {}, whole_power),
    "min": ("Min", {}, np.minimum),
    "max": ("Max", {}, np.maximum),
    "less": ("Less", {}, np.less),
    "less_equal": ("LessOrEqual", {}, np.less_equal),
    "equal": ("Equal", {}, np.equal),
    "bit_and": ("BitwiseAnd", {}, np.bitwise_and),
    "bit_or": ("BitwiseOr", {}, np.bitwise_or),
    "bit_xor": ("BitwiseXor", {}, np.bitwise_xor),
}
UNARY: Mapping[str, tuple[str, Mapping[str, Any], Meaning]] = {
    "abs": ("Abs", {}, np.abs),
    "sign": ("Sign", {}, np.sign),
    "not": ("BitwiseNot", {}, np.bitwise_not),
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("count", [1, 37, 300])
def test_integers_wrap_and_never_trap(dtype: DType, count: int) -> None:
    feeds = {"a": extremes(dtype, count, 1), "b": extremes(dtype, count, 2)}
    binary = {k: v for k, v in BINARY.items() if k != "pow" or dtype in (DType.I32, DType.I64)}
    ops = {name: (f"{op} a b", attrs) for name, (op, attrs, _) in binary.items()}
    ops |= {name: (f"{op} a", attrs) for name, (op, attrs, _) in UNARY.items()}
    wanted = {name: meaning(feeds["a"], feeds["b"]) for name, (_, _, meaning) in binary.items()}
    wanted |= {name: meaning(feeds["a"]) for name, (_, _, meaning) in UNARY.items()}
    for found in run_both(one_op_each(ops, feeds), feeds):
        for name, want in wanted.items():
            np.testing.assert_array_equal(found[name], want, name)
            assert found[name].dtype == want.dtype


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_whole_numbers_beside_narrow_floats_stay_whole(dtype: Any) -> None:
    """Places and ranks, though some are constants that a narrow float holds."""
    feeds: dict[str, Array] = {"a": np.array([[3.5], [-2]], dtype), "b": np.array([[1, 4]], dtype)}
    ops = {"hard": ("Hardmax a", {"axis": 1}), "first": ("ArgMax a", {"axis": 1}), "last": ("ArgMax b", {"axis": 1})}
    for found in run_both(one_op_each(ops, feeds), feeds):
        assert found["hard"].astype(int).tolist() == [[1], [1]]
        assert (found["first"].tolist(), found["last"].tolist()) == ([[0], [0]], [[1]])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_whole_numbers_shrink_exactly(dtype: DType) -> None:
    a = extremes(dtype, 60, 3)
    exact = a.astype(object)
    want = [x - 2 if x > 1.5 else x + 2 if x < -1.5 else 0 for x in exact]
    ops = {"y": ("Shrink a", {"lambd": 1.5, "bias": 2.0}), "z": ("Shrink a", {})}
    for found in run_both(one_op_each(ops, {"a": a}), {"a": a}):
        np.testing.assert_array_equal(found["y"], wrap(want, a.dtype))
        np.testing.assert_array_equal(found["z"], a)


@pytest.mark.parametrize("base", [DType.I32, DType.I64], ids=str)
@pytest.mark.parametrize("exponent", [DType.I8, DType.I32, DType.I64], ids=str)
def test_exponents_of_another_type(base: DType, exponent: DType) -> None:
    feeds = {"a": extremes(base, 40, 1), "b": extremes(exponent, 40, 2)}
    want = whole_power(feeds["a"], feeds["b"])
    for found in run_both(one_op_each({"y": ("Pow a b", {})}, feeds), feeds):
        np.testing.assert_array_equal(found["y"], want)
        assert found["y"].dtype == want.dtype


@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d.is_unsigned], ids=str)
def test_shifts_by_the_width_or_more_leave_nothing(dtype: DType) -> None:
    bits = 8 * dtype.size_bytes
    counts = np.array([0, 1, 2, bits - 1, bits, bits + 1, 200] * 5, dtype.value)
    feeds = {"a": extremes(dtype, 35, 3), "b": counts}
    ops = {"left": ("BitShift a b", {"direction": "LEFT"}), "right": ("BitShift a b", {"direction": "RIGHT"})}
    for found in run_both(one_op_each(ops, feeds), feeds):
        pairs = list(zip(feeds["a"].tolist(), counts.tolist(), strict=True))
        np.testing.assert_array_equal(found["left"], wrap([x << n for x, n in pairs], dtype.value))
        np.testing.assert_array_equal(found["right"], wrap([x >> n for x, n in pairs], dtype.value))


REDUCTIONS: Mapping[str, Meaning] = {
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
}


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.U64, DType.U32], ids=str)
@pytest.mark.parametrize("shape", [(3, 37), (41, 5)])
@pytest.mark.parametrize("axis", [0, 1])
def test_integers_are_reduced_and_multiplied_in_their_type(dtype: DType, shape: tuple[int, int], axis: int) -> None:
    rows, depth = shape
    feeds = {
        "a": extremes(dtype, rows * depth, 4).reshape(shape),
        "b": extremes(dtype, depth * 19, 5).reshape(depth, 19),
    }
    ops = {name: (f"{name} a", {"axes": [axis], "keepdims": 0}) for name in REDUCTIONS if name != "ReduceSum"}
    ops |= {"MatMul": ("MatMul a b", {}), "ArgMax": ("ArgMax a", {"axis": axis, "keepdims": 0})}
    a: Any = feeds["a"]
    wanted = {name: REDUCTIONS[name](a, axis=axis).astype(dtype.value) for name in ops if name in REDUCTIONS}
    wanted |= {"MatMul": np.matmul(a, feeds["b"]), "ArgMax": np.argmax(a, axis=axis)}
    for found in run_both(one_op_each(ops, feeds, version=12), feeds):
        for name, want in wanted.items():
            np.testing.assert_array_equal(found[name], want, name)


NAMES = [*INTEGERS, DType.F32, DType.F64, DType.BOOL]


@pytest.mark.parametrize("source", NAMES, ids=str)
def test_casts_between_all_types(source: DType) -> None:
    whole = np.array([0, 1, 2, 100, 127, 3, 5] * 7)
    if source is DType.BOOL:
        values = whole % 2 == 1
    elif source.is_float:
        values = (whole + 0.75 * (whole % 2) - 60 * (whole % 3 == 2)).astype(source.value)
    else:
        values = extremes(source, 49, 6)
    feeds = {"a": values}
    targets = [target for target in NAMES if target is not source]
    ops = {target.value: ("Cast a", {"to": int(helper.np_dtype_to_tensor_dtype(target.numpy))}) for target in targets}
    for found in run_both(one_op_each(ops, feeds), feeds):
        for target in targets:
            if source.is_float and target.is_unsigned:
                want = values.astype(np.int64).astype(target.value)
                known = slice(None) if target.size_bytes < 8 else values >= 0
            else:
                want, known = values.astype(target.value), slice(None)
            np.testing.assert_array_equal(found[target.value][known], want[known], target.value)
