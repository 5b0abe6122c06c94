"""cuBLASLt as a peer, without a GPU: a library in its place that computes with what it is told, column-major."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tunewright.bench.gpus import cublaslt
from tunewright.tuner.peers.runtimes import PeerFailed

DTYPES = {0: np.float32, 2: np.float16, 3: np.int8, 10: np.int32, 14: ml_dtypes.bfloat16}
STREAM = 77


class Tensor(np.ndarray):
    """As PyTorch's, as far as it is asked."""

    def data_ptr(self):
        return self.ctypes.data

    def is_contiguous(self):
        return self.flags.c_contiguous


class Library:
    """Algorithms take the times; `statuses` has by function, or by number of the algorithm, what is not well."""

    def __init__(self, times_s=(3.0, 1.0, 2.0), statuses=None):
        self.times_s, self.statuses = times_s, statuses or {}
        self.objects: dict[int, Any] = {}
        self.algorithms: list[int] = []
        self._count = 0

    def _create(self, function, pointer, *values):
        self._count += 1
        pointer._obj.value = self._count
        self.objects[self._count] = list(values)
        return self.statuses.get(function, 0)

    def __getattr__(self, function):
        if function.endswith("Create"):
            return lambda *arguments: self._create(function, *arguments)
        if function.endswith("Destroy"):
            return lambda pointer: self.objects.pop(pointer.value) and 0
        assert function.endswith("SetAttribute"), function
        return lambda pointer, *arguments: self._set(function, pointer, *arguments)

    def _set(self, function, pointer, attribute, value, size_bytes):
        assert size_bytes == ctypes.sizeof(value._obj)
        self.objects[pointer.value].append((attribute, value._obj.value))
        return self.statuses.get(function, 0)

    def cublasLtMatmulAlgoGetHeuristic(  # noqa: N802 - the name of the library's
        self, handle, description, a, b, c, d, preference, most, proposals, count
    ):
        assert self.objects[preference.value] == [(1, 64 << 20)]
        assert most == len(proposals) == 64
        for number, proposal in enumerate(proposals[: len(self.times_s)]):
            proposal.algorithm.data[0], proposal.status = number, self.statuses.get(f"state {number}", 0)
        count._obj.value = len(self.times_s)
        return self.statuses.get("cublasLtMatmulAlgoGetHeuristic", 0)

    def cublasLtMatmul(  # noqa: N802 - as above
        self, handle, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
        workspace, workspace_bytes, stream,
    ):  # fmt: skip
        assert (stream, workspace_bytes, c, c_layout) == (STREAM, 64 << 20, d, d_layout)
        assert workspace not in (0, a, b, c) and (alpha._obj.value, beta._obj.value) == (1, 0)
        number = algorithm._obj.data[0]
        self.algorithms.append(number)
        if number in self.statuses:
            return self.statuses[number]
        compute, scale, *attributes = self.objects[description.value]
        assert type(alpha._obj) is type(beta._obj) is (ctypes.c_int if scale == 10 else ctypes.c_float)
        left, right, output = self._matrix(a, a_layout), self._matrix(b, b_layout), self._matrix(d, d_layout)
        if attributes:
            assert attributes == [(3, 1)]
            left = left.T
        wide = np.int32 if compute == 72 else np.float32
        output[...] = left.astype(wide) @ right.astype(wide)
        return 0

    def _matrix(self, address, layout):
        dtype, rows, columns, leading = self.objects[layout.value]
        assert leading >= rows
        size = columns * leading * np.dtype(DTYPES[dtype]).itemsize
        data = np.frombuffer((ctypes.c_char * size).from_address(address), DTYPES[dtype])
        return data.reshape(columns, leading)[:, :rows].T


class Driver:
    """A run takes what the library says of its algorithm; `calls` has how many runs each time."""

    stream_pointer = STREAM

    def __init__(self, library):
        self.library, self.calls = library, []

    def time(self, run, count):
        self.calls.append(count)
        for _ in range(count):
            run()
        return [self.library.times_s[self.library.algorithms[-1]]] * count

    def capture(self, run):
        return run


@pytest.fixture
def fastest(monkeypatch):
    """`fastest(library, left, right, ...)`, as `cublaslt.product`."""
    torch = SimpleNamespace(
        int32=np.int32, uint8=np.uint8, cuda=SimpleNamespace(synchronize=lambda: None),
        empty=lambda shape, dtype, device: np.full(shape, 7, dtype).view(Tensor),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)

    def run(library, left, right, **options):
        monkeypatch.setattr(cublaslt, "library", lambda: library)
        driver: Any = Driver(library)
        return cublaslt.product(left.view(Tensor), right.view(Tensor), driver, **options), driver

    return run


def operands(dtype=np.float32, rows=2, depth=3, columns=4):
    rng = np.random.default_rng(0)
    return [rng.integers(-9, 9, shape).astype(dtype) for shape in ((rows, depth), (depth, columns))]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_row_major_operands(fastest, dtype, is_transposed):
    left, right = operands(dtype)
    operand = np.ascontiguousarray(right.T) if is_transposed else right
    product, _ = fastest(Library(), left, operand, is_right_transposed=is_transposed)
    output_dtype = np.int32 if dtype is np.int8 else dtype
    assert product.output.dtype == output_dtype
    product.output[...] = 0
    product.run()
    expected = left.astype(np.float32) @ right.astype(np.float32)
    np.testing.assert_array_equal(product.output, expected.astype(output_dtype))


def test_layouts_are_transposes(fastest):
    library = Library()
    product, _ = fastest(library, *operands(np.float16, 2, 3, 4))
    layouts = [values for values in library.objects.values() if len(values) == 4]
    assert layouts == [[2, 3, 2, 3], [2, 4, 3, 4], [2, 4, 2, 4]]
    assert [68, 0] in library.objects.values()
    del product
    assert not library.objects


def test_the_fastest_is_chosen(fastest):
    library = Library((3.0, 1.0, 2.0))
    product, driver = fastest(library, *operands())
    assert product.algorithms == 3
    assert driver.calls == [2, 10] * 3
    product.run()
    assert library.algorithms == [0] * 12 + [1] * 12 + [2] * 12 + [1]


def test_algorithms_that_fail_are_passed_over(fastest):
    library = Library((3.0, 1.0, 2.0, 0.5), {1: 15, "state 3": 7})
    product, _ = fastest(library, *operands())
    assert product.algorithms == 2
    product.run()
    assert library.algorithms[-1] == 2
    with pytest.raises(PeerFailed, match="no algorithm of cuBLASLt works: cublasLtMatmul: status 13"):
        fastest(Library((1.0,), {0: 13}), *operands())


@pytest.mark.parametrize(
    "function",
    [
        "cublasLtCreate", "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
        "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic",
    ],
)  # fmt: skip
def test_a_status_raises(fastest, function):
    left, right = operands(columns=3)
    with pytest.raises(PeerFailed, match=f"{function}: status 15"):
        fastest(Library(statuses={function: 15}), left, right, is_right_transposed=True)


def test_no_algorithms(fastest):
    with pytest.raises(PeerFailed, match="it proposes none"):
        fastest(Library(()), *operands())


def test_tf32_only_where_it_is_allowed(fastest):
    for allows_tf32, compute in ((False, 68), (True, 77)):
        library = Library()
        product, _ = fastest(library, *operands(), allows_tf32=allows_tf32)
        assert [compute, 0] in library.objects.values() and product.algorithms
    with pytest.raises(PeerFailed, match="no product of float16 and float16 in TF32"):
        fastest(Library(), *operands(np.float16), allows_tf32=True)


def test_operands_that_do_not_fit(fastest):
    left, right = operands()
    with pytest.raises(PeerFailed, match="no product of float64"):
        fastest(Library(), *operands(np.float64))
    for other in (right.T, right[:, ::2], right[:2]):
        with pytest.raises(PeerFailed, match=r"no product of \(2, 3\)"):
            fastest(Library(), left, other)


def test_structures_are_as_large_as_in_the_header():
    assert ctypes.sizeof(cublaslt.Algorithm) == 64
    assert ctypes.sizeof(cublaslt.Proposal) == 96
    offsets = [getattr(cublaslt.Proposal, name).offset for name, _ in cublaslt.Proposal._fields_]
    assert offsets == [0, 64, 72, 76, 80]


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(cuda="99.1")))
    with pytest.raises(PeerFailed, match=r"libcublasLt\.so\.99"):
        cublaslt.library()
