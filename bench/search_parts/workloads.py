"""The workloads of the search: each as an ONNX model, and in the terms of a rival."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tunewright.bench.suite.network import Network, batched_product, model_of
from tunewright.bench.suite.operators import OPERATORS


@dataclass(frozen=True, slots=True)
class SearchWorkload:
    """An operator: its model, and its kind and sizes for `rivals.metaschedule.workload`."""

    build: Callable[[], bytes]
    kind: str
    sizes: tuple[int, ...]


def _conv(channels: int, kernel: int, extent: int, outputs: int = 0, groups: int = 1) -> Callable[[], bytes]:
    outputs = outputs or channels
    add = partial(Network.conv, inputs=channels, outputs=outputs, kernel=kernel, groups=groups)
    return partial(model_of, add, 1, channels, extent, extent)


def _channels_last(channels: int, kernel: int, extent: int, groups: int = 1) -> Callable[[], bytes]:
    """A convolution as inside of networks, with the layout that both choose: channels last on both sides."""
    conv = partial(Network.conv, inputs=channels, outputs=channels, kernel=kernel, groups=groups)

    def add(net: Network, x: str) -> str:
        result = conv(net, net.add("Transpose", x, perm=[0, 3, 1, 2]))
        return net.add("Transpose", result, perm=[0, 2, 3, 1])

    return partial(model_of, add, 1, extent, extent, channels)


WORKLOADS: Mapping[str, SearchWorkload] = {
    "gemm 384x512x512": SearchWorkload(OPERATORS["gemm 384x512x512"].build, "gemm", (384, 512, 512)),
    "gemm 1024x1024x1024": SearchWorkload(OPERATORS["gemm 1024x1024x1024"].build, "gemm", (1024, 1024, 1024)),
    "conv 3x3 64-64 at 56x56": SearchWorkload(_channels_last(64, 3, 56), "conv", (64, 64, 3, 56, 56)),
    "conv 3x3 256-256 at 14x14": SearchWorkload(_channels_last(256, 3, 14), "conv", (256, 256, 3, 14, 14)),
    "depthwise 3x3 96 at 56x56": SearchWorkload(_channels_last(96, 3, 56, groups=96), "depthwise", (96, 3, 56, 56)),
    "batched matmul 12x128x128x64": SearchWorkload(
        OPERATORS["batched matmul 12x128x128x64"].build, "batched", (12, 128, 128, 64)
    ),
    "softmax 512x1024": SearchWorkload(OPERATORS["softmax 512x1024"].build, "softmax", (512, 1024)),
}
"""Workloads of the comparison, in the layout of the rival's: none contains a transposition."""

UNSEEN: Mapping[str, Callable[[], bytes]] = {
    "gemm 197x768x3072": partial(model_of, partial(Network.gemm, inputs=768, outputs=3072), 197, 768),
    "gemm 300x500x700": partial(model_of, partial(Network.gemm, inputs=500, outputs=700), 300, 500),
    "dense 1x512x384": partial(model_of, partial(Network.gemm, inputs=512, outputs=384), 1, 512),
    "conv 3x3 128-256 at 52x52": _conv(128, 3, 52, 256),
    "conv 3x3 80-176 at 26x26": _conv(80, 3, 26, 176),
    "conv 1x1 832-384 at 7x7": _conv(832, 1, 7, 384),
    "conv 5x5 32-96 at 28x28": _conv(32, 5, 28, 96),
    "depthwise 5x5 120 at 28x28": _conv(120, 5, 28, groups=120),
    "batched matmul 16x197x64x197": partial(batched_product, 16, 197, 64, 197),
    "softmax 1500x384": partial(model_of, lambda net, x: net.add("Softmax", x), 1500, 384),
    "layer norm 1500x512": partial(model_of, partial(Network.layer_norm, features=512), 1500, 512),
    "gelu 1500x2048": partial(model_of, Network.gelu, 1500, 2048),
    "max pool 3x3 stride 2 192 at 71x71": partial(model_of, lambda net, x: net.max_pool(x, 3, 2), 1, 192, 71, 71),
}
"""Further models, of networks in no suite and of odd sizes, for figures on unseen tasks."""


def workloads_sha256() -> str:
    """The digest of all these models, which entries depend on."""
    models = (*(workload.build for workload in WORKLOADS.values()), *UNSEEN.values())
    return hashlib.sha256(b"".join(hashlib.sha256(build()).digest() for build in models)).hexdigest()
