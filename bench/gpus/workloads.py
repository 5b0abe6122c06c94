"""The workloads that are built and timed, as models in ONNX's text form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx.parser

from tunewright.graph.numerics import Numerics
from tunewright.graph.task import Task
from tunewright.tuner.models.model import open_model

ARCHITECTURES = ("sm_80", "sm_90a")
"""The architectures that kernels are built for."""


@dataclass(frozen=True, slots=True)
class BuildWorkload:
    """A model and a sketch: kernels of its heaviest task are built by that sketch."""

    sketch: str
    text: str
    archs: tuple[str, ...] = ARCHITECTURES


@dataclass(frozen=True, slots=True)
class KernelWorkload:
    """A model whose heaviest task is searched and timed beside peers: see `torch_peers.kernels`."""

    kind: str
    text: str


BRAIN_DENSE = """(float[200, 768] x, float[3072, 768] w) => (float y) {
  a = Cast<to = 16>(x) b = Cast<to = 16>(w) t = Gemm<transB = 1>(a, b) u = Gelu(t) y = Cast<to = 1>(u)
}"""


def product_text(dtype: str, rows: int, depth: int, columns: int) -> str:
    """A product of two inputs."""
    return f"({dtype}[{rows}, {depth}] x, {dtype}[{depth}, {columns}] w) => ({dtype} y) {{ y = MatMul(x, w) }}"


def byte_product_text(rows: int, depth: int, columns: int) -> str:
    """A product of bytes with constant weights, which are packed along the reduction."""
    weights = f"{constant_text('w', 'int8[1] {1}', (depth, columns))} y = MatMulInteger(x, w)"
    return f"(int8[{rows}, {depth}] x) => (int32 y) {{ {weights} }}"


def few_bits_text(rows: int, depth: int, columns: int, size: int) -> str:
    """A product in float16 with constant weights of four bits, in blocks of so many numbers."""
    count = columns * depth // size
    known = constant_text("q", "uint8[1] {3}", (count, size)), constant_text("z", "uint8[1] {8}", (count,))
    scales = f"{constant_text('v', 'float[1] {0.03125}', (count,))} s = Cast<to = 10>(v)"
    floats = f"d = DequantizeLinear<axis = 0>(q, s, z) g = Constant<value_ints = [{columns}, {depth}]>()"
    product = "h = Reshape(d, g) w = Transpose<perm = [1, 0]>(h) y = MatMul(x, w)"
    return f"(float16[{rows}, {depth}] x) => (float16 y) {{ {' '.join(known)} {scales} {floats} {product} }}"


def constant_text(name: str, value: str, shape: Sequence[int]) -> str:
    """A constant tensor of one value."""
    return f"{name}s = Constant<value_ints = {list(shape)}>() {name} = ConstantOfShape<value = {value}>({name}s)"


def softmax_text(dtype: str, rows: int, columns: int) -> str:
    """Softmax of rows."""
    return f"({dtype}[{rows}, {columns}] x) => ({dtype} y) {{ y = Softmax(x) }}"


def layer_norm_text(dtype: str, rows: int, columns: int) -> str:
    """Layer normalisation of rows."""
    head = f"({dtype}[{rows}, {columns}] x, {dtype}[{columns}] s)"
    return f"{head} => ({dtype} y) {{ y = LayerNormalization(x, s) }}"


def attention_text(dtype: str, heads: int, tokens: int, features: int) -> str:
    """Attention of each head, without scale and mask."""
    head = ", ".join(f"{dtype}[{heads}, {tokens}, {features}] {name}" for name in "qkv")
    scores = "t = Transpose<perm = [0, 2, 1]>(k) r = MatMul(q, t)"
    return f"({head}) => ({dtype} y) {{ {scores} p = Softmax(r) y = MatMul(p, v) }}"


def depthwise_text(dtype: str, extent: int, channels: int, window: int) -> str:
    """A depthwise convolution with constant weights, whose channels are laid last."""
    values = constant_text("v", "float[1] {1.0}", (channels, 1, window, window))
    weights = f"{values} w = Cast<to = {10 if dtype == 'float16' else 1}>(v)"
    pads = ", ".join([str(window // 2)] * 4)
    conv = f"y = Conv<group = {channels}, pads = [{pads}]>(x, w)"
    return f"({dtype}[1, {channels}, {extent}, {extent}] x) => ({dtype} y) {{ {weights} {conv} }}"


BUILD_WORKLOADS: Mapping[str, BuildWorkload] = {
    "gemm float16 1024x1024x1024": BuildWorkload("warp_tiles", product_text("float16", 1024, 1024, 1024)),
    "gemm float16 1024x1024x1024 by warpgroups": BuildWorkload(
        "warpgroup_tiles", product_text("float16", 1024, 1024, 1024), ("sm_90a",)
    ),
    "dense bfloat16 200x768x3072": BuildWorkload("warp_tiles", BRAIN_DENSE),
    "conv float16 3x3 64-64 at 56x56": BuildWorkload(
        "warp_tiles",
        "(float16[1, 64, 56, 56] x, float16[64, 64, 3, 3] w) => (float16 y) { y = Conv<pads = [1, 1, 1, 1]>(x, w) }",
    ),
    "conv float16 7x7 3-64 at 224x224 by specialized warps": BuildWorkload(
        "unfolded_tiles",
        f"(float16[1, 3, 224, 224] x) => (float16 y) {{ {constant_text('v', 'float[1] {1.0}', (64, 3, 7, 7))}"
        " w = Cast<to = 10>(v) y = Conv<pads = [3, 3, 3, 3], strides = [2, 2]>(x, w) }",
        ("sm_90a",),
    ),
    "gemm float32 1024x1024x1024": BuildWorkload("product_tiles", product_text("float", 1024, 1024, 1024)),
    "gemm float32 1024x1024x1024 on tensor cores": BuildWorkload("warp_tiles", product_text("float", 1024, 1024, 1024)),
    "gemm int8 1024x1024x1024": BuildWorkload("warp_tiles", byte_product_text(1024, 1024, 1024)),
    "gemm int8 1024x1024x1024 by warpgroups": BuildWorkload(
        "warpgroup_tiles", byte_product_text(1024, 1024, 1024), ("sm_90a",)
    ),
    "conv int8 3x3 64-64 at 56x56": BuildWorkload(
        "warp_tiles",
        f"(int8[1, 64, 56, 56] x) => (int32 y) {{ {constant_text('w', 'int8[1] {1}', (64, 64, 3, 3))}"
        " y = ConvInteger<pads = [1, 1, 1, 1]>(x, w) }",
    ),
    "gemm float16 1x4096x4096": BuildWorkload("shared_folds", product_text("float16", 1, 4096, 4096)),
    "gemm float16 1x4096x4096 of four bits": BuildWorkload("shared_folds", few_bits_text(1, 4096, 4096, 32)),
    "gemm float32 8x768x3072": BuildWorkload("shared_folds", product_text("float", 8, 768, 3072)),
    "softmax float32 4096x1024": BuildWorkload("row_blocks", softmax_text("float", 4096, 1024)),
    "layer norm float16 4096x768": BuildWorkload("row_blocks", layer_norm_text("float16", 4096, 768)),
    "gemm float16 1024x1024x1024 by specialized warps": BuildWorkload(
        "specialized_tiles", product_text("float16", 1024, 1024, 1024), ("sm_90a",)
    ),
    "attention bfloat16 32x2048x128 by specialized warps": BuildWorkload(
        "specialized_attention", attention_text("bfloat16", 32, 2048, 128), ("sm_90a",)
    ),
    "attention float16 12x512x64": BuildWorkload("attention_tiles", attention_text("float16", 12, 512, 64)),
    "attention bfloat16 32x2048x128": BuildWorkload("attention_tiles", attention_text("bfloat16", 32, 2048, 128)),
    "transpose float32 1024x1024": BuildWorkload(
        "turned_tiles", "(float[1024, 1024] x) => (float y) { y = Transpose<perm = [1, 0]>(x) }"
    ),
    "depthwise float32 3x3 96 at 56x56": BuildWorkload(
        "thread_windows",
        depthwise_text("float", 56, 96, 3),
    ),
    "depthwise float16 5x5 240 at 28x28": BuildWorkload(
        "thread_windows",
        depthwise_text("float16", 28, 240, 5),
    ),
    "gelu float16 4096x3072": BuildWorkload("elements", "(float16[4096, 3072] x) => (float16 y) { y = Gelu(x) }"),
}

SQUARES = (1024, 2048, 4096, 8192)

BERT = ((128, 768, 768), (128, 768, 3072), (128, 3072, 768), (2048, 768, 3072), (2048, 3072, 768))
"""Rows, depth and columns of the layers of BERT base, of 1 and of 16 texts of 128 tokens."""

LLAMA = ((16, 4096, 4096), (16, 4096, 14336), (2048, 4096, 6144), (2048, 4096, 14336), (2048, 14336, 4096))
"""Rows, depth and columns of the layers of Llama 3 8B, of 16 and of 2,048 tokens."""


def _products() -> dict[str, KernelWorkload]:
    narrow = [(n, n, n) for n in SQUARES] + [*BERT, *LLAMA]
    wide = [(n, n, n) for n in SQUARES[:3]]
    workloads: dict[str, KernelWorkload] = {}
    for dtype, shapes in (("float16", narrow), ("bfloat16", narrow), ("float", wide)):
        name = "float32" if dtype == "float" else dtype
        workloads |= {
            f"gemm {name} {r}x{d}x{c}": KernelWorkload("product", product_text(dtype, r, d, c)) for r, d, c in shapes
        }
    return workloads | {
        f"gemm int8 {n}x{n}x{n}": KernelWorkload("product of bytes", byte_product_text(n, n, n)) for n in SQUARES
    }


KERNEL_WORKLOADS: Mapping[str, KernelWorkload] = {
    **_products(),
    "softmax float32 4096x1024": KernelWorkload("softmax", softmax_text("float", 4096, 1024)),
    "softmax float16 16384x4096": KernelWorkload("softmax", softmax_text("float16", 16384, 4096)),
    "layer norm float16 4096x768": KernelWorkload("layer norm", layer_norm_text("float16", 4096, 768)),
    "attention float16 192x512x64": KernelWorkload("attention", attention_text("float16", 192, 512, 64)),
    "attention float16 32x2048x128": KernelWorkload("attention", attention_text("float16", 32, 2048, 128)),
    "layer norm float16 16384x4096": KernelWorkload("layer norm", layer_norm_text("float16", 16384, 4096)),
}


def heaviest_task(text: str) -> Task:
    """The task of a model with the most operations, fused where there is a choice."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> m {text}')
    tasks = open_model(model.SerializeToString(), numerics=Numerics(widen=False)).tasks.values()
    return max((task for task, _ in tasks), key=lambda task: (task.flops, task.traffic_bytes))
