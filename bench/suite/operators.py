"""Single operators and short chains of them, as they are in well-known models: `OPERATORS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

from .network import Network, batched_product, model_of


@dataclass(frozen=True, slots=True)
class Operator:
    """A model of one operator, or a few."""

    category: str
    build: Callable[[], bytes]


NamedOperator = tuple[str, Operator]


def _operator(category: str, name: str, add: Callable[[Network, str], str], *shape: int) -> NamedOperator:
    """An operator with one input."""
    return name, Operator(category, partial(model_of, add, *shape))


def _unary(op: str) -> Callable[[Network, str], str]:
    return lambda net, x: net.add(op, x)


def _products() -> Iterator[NamedOperator]:
    for rows, inner, columns in ((384, 512, 512), (1024, 1024, 1024)):
        add = partial(Network.gemm, inputs=inner, outputs=columns)
        yield _operator("gemm", f"gemm {rows}x{inner}x{columns}", add, rows, inner)
    for rows, inner, columns in ((128, 768, 768), (128, 768, 3072), (128, 3072, 768), (64, 768, 2304)):
        add = partial(Network.linear, inputs=inner, outputs=columns)
        yield _operator("dense", f"dense {rows}x{inner}x{columns}", add, 1, rows, inner)
    for inner, columns in ((2048, 1000), (4096, 4096)):
        add = partial(Network.gemm, inputs=inner, outputs=columns)
        yield _operator("matrix-vector", f"matrix-vector {inner}x{columns}", add, 1, inner)
    for batch, rows, inner, columns in ((12, 128, 64, 128), (12, 128, 128, 64), (3, 197, 64, 197)):
        build = partial(batched_product, batch, rows, inner, columns)
        yield f"batched matmul {batch}x{rows}x{inner}x{columns}", Operator("batched matmul", build)


CONVOLUTIONS = (  # inputs, outputs, kernel, stride, height, width: of resnet50, then of vgg16 on 126 x 224
    (64, 64, 3, 1, 56, 56), (128, 128, 3, 1, 28, 28), (256, 256, 3, 1, 14, 14), (512, 512, 3, 1, 7, 7),
    (128, 128, 3, 2, 56, 56), (256, 256, 3, 2, 28, 28),
    (64, 256, 1, 1, 56, 56), (256, 64, 1, 1, 56, 56), (512, 128, 1, 1, 28, 28), (256, 1024, 1, 1, 14, 14),
    (2048, 512, 1, 1, 7, 7),
    (64, 64, 3, 1, 126, 224), (128, 128, 3, 1, 63, 112), (256, 256, 3, 1, 31, 56), (512, 512, 3, 1, 15, 28),
)  # fmt: skip

DEPTHWISE = (  # channels, kernel, stride, extent: of mobilenet_v2, then of efficientnet_b0 and convnext_tiny
    (32, 3, 1, 112), (96, 3, 2, 112), (144, 3, 1, 56), (384, 3, 1, 14), (960, 3, 1, 7), (240, 5, 1, 28), (96, 7, 1, 56),
)  # fmt: skip


def _convolutions() -> Iterator[NamedOperator]:
    for inputs, outputs, kernel, stride, height, width in CONVOLUTIONS:
        category = f"conv {kernel}x{kernel}" + (f" stride {stride}" if stride > 1 else "")
        add = partial(Network.conv, inputs=inputs, outputs=outputs, kernel=kernel, stride=stride)
        name = f"{category} {inputs}-{outputs} at {height}x{width}"
        yield _operator(category, name, add, 1, inputs, height, width)
    for channels, kernel, stride, extent in DEPTHWISE:
        add = partial(
            Network.conv, inputs=channels, outputs=channels, kernel=kernel, stride=stride, groups=channels, gain=1.0
        )
        name = f"depthwise {kernel}x{kernel} {channels} at {extent}x{extent}" + (" stride 2" if stride > 1 else "")
        yield _operator("depthwise", name, add, 1, channels, extent, extent)


def _rows() -> Iterator[NamedOperator]:
    for rows, columns in ((512, 1024), (1536, 128), (591, 197)):
        yield _operator("softmax", f"softmax {rows}x{columns}", _unary("Softmax"), rows, columns)
    for rows, columns in ((128, 768), (197, 192), (3136, 96)):
        add = partial(Network.layer_norm, features=columns)
        yield _operator("layer norm", f"layer norm {rows}x{columns}", add, rows, columns)


def _pools() -> Iterator[NamedOperator]:
    for kernel, stride, padding, channels, extent in ((3, 2, 1, 64, 112), (2, 2, 0, 128, 112), (3, 1, 1, 192, 28)):
        add = partial(Network.max_pool, kernel=kernel, stride=stride, padding=padding)
        name = f"max pool {kernel}x{kernel} stride {stride} {channels} at {extent}x{extent}"
        yield _operator("pooling", name, add, 1, channels, extent, extent)

    def average_pool(net: Network, x: str) -> str:
        return net.add("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4)

    yield _operator("pooling", "average pool 3x3 192 at 28x28", average_pool, 1, 192, 28, 28)
    yield _operator("pooling", "global average pool 2048 at 7x7", lambda net, x: net.mean(x, 2, 3), 1, 2048, 7, 7)


def _elementwise() -> Iterator[NamedOperator]:
    yield "add 256x56x56", Operator("elementwise", partial(_sum_model, 1, 256, 56, 56))
    yield "add 128x768", Operator("elementwise", partial(_sum_model, 128, 768))
    yield _operator("elementwise", "relu 64x112x112", _unary("Relu"), 1, 64, 112, 112)
    yield _operator("elementwise", "gelu 128x3072", Network.gelu, 128, 3072)
    yield _operator("elementwise", "silu 96x112x112", Network.silu, 1, 96, 112, 112)


def _sum_model(*shape: int) -> bytes:
    net = Network("operator")
    return net.onnx(net.add("Add", net.input("a", shape), net.input("b", shape)))


def _chains() -> Iterator[NamedOperator]:
    category = "fused chain"
    yield _operator(
        category, "conv 1x1 64-256 at 56x56, add, relu", partial(_residual, inputs=64, outputs=256), 1, 64, 56, 56
    )
    yield _operator(
        category, "depthwise 3x3, conv 1x1 96-24 at 56x56", partial(_separable, inputs=96, outputs=24), 1, 96, 56, 56
    )
    yield _operator(
        category,
        "inverted residual 24-144-24 at 56x56",
        partial(_inverted_residual, inputs=24, inner=144),
        1,
        24,
        56,
        56,
    )
    yield _operator(category, "dense 128x768x3072, gelu", lambda n, x: n.gelu(n.linear(x, 768, 3072)), 1, 128, 768)
    yield _operator(
        category,
        "squeeze, excite 240 at 28x28",
        partial(Network.squeeze_excite, features=240, squeezed=10),
        1,
        240,
        28,
        28,
    )
    yield "add, layer norm 128x768", Operator(category, _sum_norm_model)
    yield "attention 12x128x64", Operator(category, _attention)


def _residual(net: Network, x: str, inputs: int, outputs: int) -> str:
    return net.add("Relu", net.add("Add", net.conv(x, inputs, outputs), net.input("shortcut", (1, outputs, 56, 56))))


def _separable(net: Network, x: str, inputs: int, outputs: int) -> str:
    return net.conv(net.relu6(net.conv(x, inputs, inputs, 3, groups=inputs)), inputs, outputs)


def _inverted_residual(net: Network, x: str, inputs: int, inner: int) -> str:
    return net.add("Add", x, _separable(net, net.relu6(net.conv(x, inputs, inner)), inner, inputs))


def _sum_norm_model() -> bytes:
    net = Network("operator")
    return net.onnx(net.layer_norm(net.add("Add", *(net.input(name, (128, 768)) for name in "ab")), 768))


def _attention() -> bytes:
    net = Network("operator")
    query, value = (net.input(name, (12, 128, 64)) for name in ("query", "value"))
    scores = net.add("Mul", net.add("MatMul", query, net.input("key", (12, 64, 128))), net.scalar(0.125))
    return net.onnx(net.add("MatMul", net.add("Softmax", scores, axis=-1), value))


OPERATORS: Mapping[str, Operator] = dict(
    chain(_products(), _convolutions(), _rows(), _pools(), _elementwise(), _chains())
)
"""Operators by name."""
