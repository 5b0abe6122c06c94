"""cuBLASLt with the fastest of the algorithms that it proposes for a product. Read `product` first.

Its matrices are column-major, ours row-major. A row-major matrix is there its own transpose, so the operands change
places: it computes the transpose of the output, right^T left^T, and nothing is moved.

Numbers and structures are those of CUDA 13: cublasLt.h, cublas_api.h, library_types.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import CDLL, POINTER, Structure, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p, sizeof
from enum import IntEnum
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from weakref import finalize

from tunewright.codegen.cuda.driver import Driver
from tunewright.tuner.peers.runtimes import PeerFailed

WORKSPACE_BYTES, ALGORITHMS = 64 << 20, 64
"""Device memory that an algorithm may use, and the number of algorithms that are requested."""

WARMING, RUNS = 2, 10
"""Runs of an algorithm before it is recorded, and timed runs, whose median decides."""

TRANSA, MAX_WORKSPACE_BYTES, TRANSPOSED = 3, 1, 1
"""CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLAS_OP_T."""


class DataType(IntEnum):
    """The members of cudaDataType that are used."""

    FLOAT32 = 0
    FLOAT16 = 2
    INT8 = 3
    INT32 = 10
    BFLOAT16 = 14


class ComputeType(IntEnum):
    """The members of cublasComputeType_t that are used."""

    FLOAT32 = 68
    INT32 = 72
    TF32 = 77  # CUBLAS_COMPUTE_32F_FAST_TF32


class ProductTypes(NamedTuple):
    """Types of operands, output, sums, and of the factors alpha and beta."""

    operand: DataType
    output: DataType
    compute: ComputeType
    scale: DataType
    scalar: type[c_float | c_int]


_FLOAT = (ComputeType.FLOAT32, DataType.FLOAT32, c_float)

ARITHMETIC: Mapping[str, ProductTypes] = {
    "float16": ProductTypes(DataType.FLOAT16, DataType.FLOAT16, *_FLOAT),
    "bfloat16": ProductTypes(DataType.BFLOAT16, DataType.BFLOAT16, *_FLOAT),
    "float32": ProductTypes(DataType.FLOAT32, DataType.FLOAT32, *_FLOAT),
    "int8": ProductTypes(DataType.INT8, DataType.INT32, ComputeType.INT32, DataType.INT32, c_int),
}
"""Types of products, by the type of the operands."""


class Algorithm(Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", c_uint64 * 8),)


class Proposal(Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm and its expected cost."""

    _fields_ = (
        ("algorithm", Algorithm), ("workspace_bytes", c_size_t),
        ("status", c_int), ("waves", c_float), ("reserved", c_int * 4),
    )  # fmt: skip


_SET = (c_void_p, c_int, c_void_p, c_size_t)

SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtDestroy": (c_void_p,),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, POINTER(Proposal), POINTER(c_int)),
    "cublasLtMatmul": (*[c_void_p] * 12, POINTER(Algorithm), c_void_p, c_size_t, c_void_p),
}
"""Argument types of the functions. Each returns a status, 0 for success."""


class Operands(NamedTuple):
    """Tensors of PyTorch on the GPU, row-major: left [m, k], right [k, n] or transposed [n, k], output [m, n]."""

    left: Any
    right: Any
    output: Any
    workspace: Any
    is_right_transposed: bool


class CublasProduct(NamedTuple):
    """`run` queues the product on the driver's stream, which writes `output`. `algorithms`: how many were timed."""

    run: Callable[[], None]
    output: Any
    algorithms: int


def product(
    left: Any, right: Any, driver: Driver, *, is_right_transposed: bool = False, allows_tf32: bool = False
) -> CublasProduct:
    """A product by its fastest algorithm. Operands are contiguous tensors of PyTorch on the GPU: see `Operands`.

    Of float16, bfloat16 or float32, with sums in float32, or of int8, with an output of int32: of that cuBLASLt takes
    the right one only transposed. `allows_tf32`: operands of float32 may be rounded to TF32. Raises PeerFailed.
    """
    import torch

    dtype = str(left.dtype).removeprefix("torch.")
    depth, columns = reversed(right.shape) if is_right_transposed else right.shape
    if dtype not in ARITHMETIC or left.dtype != right.dtype or (allows_tf32 and dtype != "float32"):
        raise PeerFailed(f"no product of {left.dtype} and {right.dtype}{' in TF32' if allows_tf32 else ''}")
    if left.shape[1] != depth or not (left.is_contiguous() and right.is_contiguous()):
        raise PeerFailed(f"no product of {tuple(left.shape)} and {tuple(right.shape)}, or not contiguous")
    arithmetic = ARITHMETIC[dtype]
    if allows_tf32:
        arithmetic = arithmetic._replace(compute=ComputeType.TF32)
    output_dtype = torch.int32 if dtype == "int8" else left.dtype
    output = torch.empty((left.shape[0], columns), dtype=output_dtype, device=left.device)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=left.device)
    torch.cuda.synchronize()  # the driver's stream does not wait for PyTorch's
    operands = Operands(left, right, output, workspace, is_right_transposed)
    return fastest(library(), driver, operands, arithmetic)


def fastest(library: Any, driver: Driver, operands: Operands, arithmetic: ProductTypes) -> CublasProduct:
    """A product by the algorithm with the least median, timed as graphs from a cold cache; see `product`.

    Algorithms that fail are passed over. Raises PeerFailed where none is left, or another call fails.
    """
    matmul = _Matmul(library, operands, arithmetic, driver.stream_pointer)
    times: list[tuple[float, Callable[[], None]]] = []
    failure = "it proposes none"
    for proposal in matmul.proposals():
        run = partial(matmul.run, proposal)
        try:
            driver.time(run, WARMING)
            times.append((median(driver.time(driver.capture(run), RUNS)), run))
        except PeerFailed as error:
            failure = str(error)
    if not times:
        raise PeerFailed(f"no algorithm of cuBLASLt works: {failure}")
    return CublasProduct(min(times, key=lambda pair: pair[0])[1], operands.output, len(times))


class _Matmul:
    """A product with its cuBLASLt descriptors, which last as long as this object."""

    def __init__(self, library: Any, operands: Operands, arithmetic: ProductTypes, stream: int) -> None:
        self._library, self._operands, self._stream = library, operands, stream
        self._one, self._zero = arithmetic.scalar(1), arithmetic.scalar(0)
        self._handle = self._create("cublasLt")
        self._description = self._create("cublasLtMatmulDesc", arithmetic.compute, arithmetic.scale)
        if operands.is_right_transposed:
            self._set("cublasLtMatmulDesc", self._description, TRANSA, c_int(TRANSPOSED))
        self._left = self._layout(arithmetic.operand, operands.left)
        self._right = self._layout(arithmetic.operand, operands.right)
        self._output = self._layout(arithmetic.output, operands.output)

    def proposals(self) -> list[Proposal]:
        """The proposals of cuBLASLt, the one with the least expected time first."""
        preference = self._create("cublasLtMatmulPreference")
        self._set("cublasLtMatmulPreference", preference, MAX_WORKSPACE_BYTES, c_uint64(WORKSPACE_BYTES))
        proposals, count = (Proposal * ALGORITHMS)(), c_int()
        layouts = self._right, self._left, self._output, self._output
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            self._handle, self._description, *layouts, preference, ALGORITHMS, proposals, byref(count),
        )  # fmt: skip
        return [proposal for proposal in proposals[: count.value] if proposal.status == 0]

    def run(self, proposal: Proposal) -> None:
        left, right, output, workspace, _ = self._operands
        self._call(
            "cublasLtMatmul",
            self._handle, self._description,
            byref(self._one), right.data_ptr(), self._right, left.data_ptr(), self._left,
            byref(self._zero), output.data_ptr(), self._output, output.data_ptr(), self._output,
            byref(proposal.algorithm), workspace.data_ptr(), WORKSPACE_BYTES, self._stream,
        )  # fmt: skip

    def _layout(self, dtype: DataType, tensor: Any) -> c_void_p:
        """The column-major layout of the transpose of a row-major matrix."""
        rows, columns = tensor.shape
        return self._create("cublasLtMatrixLayout", dtype, columns, rows, columns)

    def _create(self, kind: str, *arguments: int) -> c_void_p:
        """An object of the library, destroyed after this one."""
        pointer = c_void_p()
        self._call(f"{kind}Create", byref(pointer), *arguments)
        finalize(self, getattr(self._library, f"{kind}Destroy"), pointer).atexit = False  # CUDA may be gone by then
        return pointer

    def _set(self, kind: str, pointer: c_void_p, attribute: int, value: c_int | c_uint64) -> None:
        self._call(f"{kind}SetAttribute", pointer, attribute, byref(value), sizeof(value))

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise PeerFailed(f"{function}: status {status}")


@cache
def library() -> Any:
    """The cuBLASLt that PyTorch has loaded, or else that of NVIDIA's packages. Raises PeerFailed."""
    import torch

    name = f"libcublasLt.so.{str(torch.version.cuda).partition('.')[0]}"
    packages = find_spec("nvidia")
    folders = (packages.submodule_search_locations if packages else None) or ()
    failure = ""
    for path in (name, *(str(path) for folder in folders for path in Path(folder).glob(f"*/lib/{name}"))):
        try:
            return _with_signatures(CDLL(path))
        except OSError as error:
            failure = str(error)
    raise PeerFailed(f"cuBLASLt, which comes with PyTorch: {failure}")


def _with_signatures(library: CDLL) -> CDLL:
    for function, types in SIGNATURES.items():
        getattr(library, function).argtypes = types
    return library
