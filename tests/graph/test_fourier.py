"""Fourier transforms as products: as numpy has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs


def graph_of(op: str, x: Any, *known: Any, opset: int = 20, **attrs: Any) -> Graph:
    names = [f"k{n}" if array is not None else "" for n, array in enumerate(known)]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], **attrs)],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(array), name) for array, name in zip(known, names, strict=True) if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return load(model.SerializeToString())


def run(graph: Graph, x: Any) -> Any:
    """The result, of kernels alone."""
    rewritten = rewrite(graph)
    assert not any(isinstance(step, Fallback) for step in partition(rewritten))
    return Runs.steps(rewritten, {rewritten.inputs[0].tensor: x})[0]


def signal(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def as_complex(x: Any) -> Any:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]


def close(result: Any, expected: Any, x: Any) -> None:
    tolerance = 1e-12 if x.dtype == np.float64 else 1e-5
    assert result.dtype == x.dtype
    wanted = np.stack([expected.real, expected.imag], -1)
    np.testing.assert_allclose(result, wanted, rtol=0, atol=tolerance * max(np.abs(wanted).max(), 1))


@pytest.mark.parametrize("length", [None, 5, 16, 31])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("kind", ["whole", "half"])
def test_dft(kind: str, axis: int, parts: int, length: int | None) -> None:
    x = signal(7, 13, 3, parts)
    half = int(kind == "half" and parts == 1)
    known = (None if length is None else np.array(length), np.array(axis))
    graph = graph_of("DFT", x, *known, onesided=half)
    transform = np.fft.rfft if half else np.fft.fft
    along = axis if axis >= 0 else 2
    close(run(graph, x), transform(as_complex(x).astype("complex128" if parts == 2 else float), length, along), x)


def test_dft_of_opset_17_and_of_doubles() -> None:
    x = signal(2, 11, 1, dtype="float64")
    close(run(graph_of("DFT", x, opset=17, axis=1), x), np.fft.fft(x[..., 0], axis=1), x)
    close(run(graph_of("DFT", x), x), np.fft.fft(x[..., 0], axis=1), x)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(("step", "length"), [(8, 16), (5, 7), (1, 33), (3, 1)])
def test_stft(step: int, length: int, half: int) -> None:
    x, window = signal(2, 33, 1), np.hanning(length).astype(np.float32)
    frames = np.stack([x[:, k : k + length, 0] for k in range(0, 33 - length + 1, step)], 1)
    transform = np.fft.rfft if half else np.fft.fft
    for known, scale in (((window,), window), ((window, np.array(length)), window), ((None, np.array(length)), 1.0)):
        graph = graph_of("STFT", x, np.array(step), *known, onesided=half)
        close(run(graph, x), transform((frames * scale).astype(float)), x)


def test_stft_of_a_signal_without_parts() -> None:
    """As what computes features of sounds has it, and ONNX Runtime takes it."""
    x, window = signal(2, 33), np.hanning(8).astype(np.float32)
    frames = np.stack([x[:, k : k + 8] for k in range(0, 26, 4)], 1)
    close(run(graph_of("STFT", x, np.array(4), window), x), np.fft.rfft((frames * window).astype(float)), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("count", "length"), [(12, None), (13, 9), (7, 12), (1, 1)])
@pytest.mark.parametrize("parts", [1, 2])
def test_inverse_dft(parts: int, count: int, length: int | None, dtype: str) -> None:
    x = signal(3, count, 50, parts, dtype=dtype)
    graph = graph_of("DFT", x, None if length is None else np.array(length), np.array(1), inverse=1)
    close(run(graph, x), np.fft.ifft(as_complex(x).astype(complex), length, 1), x)


@pytest.mark.parametrize(("count", "length"), [(9, None), (9, 15), (4, 15), (12, 16)])
def test_inverse_of_half_a_transform(count: int, length: int | None) -> None:
    x = signal(2, count, 2)
    graph = graph_of("DFT", x, None if length is None else np.array(length), np.array(1), inverse=1, onesided=1)
    wanted = np.fft.irfft(as_complex(x).astype(complex), length, 1)
    np.testing.assert_allclose(run(graph, x), wanted[..., None], atol=1e-6)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_long_transforms_take_two_steps(inverse: int, parts: int) -> None:
    x = signal(2, 1800, 3, parts)
    for length in (200, 1536, 2048):
        graph = graph_of("DFT", x, np.array(length), np.array(1), inverse=inverse, onesided=int(parts == 1 - inverse))
        transform = np.fft.ifft if inverse else np.fft.fft if parts == 2 else np.fft.rfft
        wanted = transform(as_complex(x).astype(complex if parts == 2 or inverse else float), length, 1)
        close(run(graph, x), wanted, x)
        assert sum(node.op == "MatMul" for node in rewrite(graph).nodes) == 1 + (length > 200 or parts + inverse > 1)


def test_what_is_left() -> None:
    """Long transforms of prime length, for which there are faster ways, and inverse ones of a few numbers."""
    for graph in (graph_of("DFT", signal(1, 2053, 1)), graph_of("DFT", signal(1, 8, 2), inverse=1)):
        assert [node.op for node in rewrite(graph).nodes] == ["DFT"]
