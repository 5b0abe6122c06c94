"""Networks that make pictures of pictures: larger ones, and how far away things are."""

from __future__ import annotations

import numpy as np

from .network import BRANCH_GAIN, Network
from .sequential import encoder_layer


def super_resolution() -> bytes:
    """Lim et al., "Enhanced Deep Residual Networks for Single Image Super-Resolution" (2017), small.

    Four times as large: up by transposed convolutions, added to the picture that cubic interpolation makes.
    """
    net, features = Network("super_resolution"), 48
    picture = net.input("picture", (1, 3, 96, 96))
    first = x = net.conv(picture, 3, features, 3)
    for _ in range(8):
        branch = net.conv(net.conv_relu(x, features, features, 3), features, features, 3, gain=BRANCH_GAIN)
        x = net.add("Add", x, branch)
    x = net.add("Add", net.conv(x, features, features, 3, gain=BRANCH_GAIN), first)
    for _ in range(2):
        x = net.add("Relu", net.conv_transpose(x, features, features, 4, 2))
    scales = net.constant(np.array([1, 1, 4, 4], np.float32))
    plain = net.add("Resize", picture, "", scales, mode="cubic", coordinate_transformation_mode="half_pixel")
    return net.onnx(net.add("Add", plain, net.conv(x, features, 3, 3, gain=BRANCH_GAIN)))


def depth_small() -> bytes:
    """Ranftl et al., "Vision Transformers for Dense Prediction" (2021): the tiny transformer, and its decoder.

    Four of its layers become maps of features, which are added up from the coarsest to the finest.
    """
    net, features, side, inner = Network("depth_small"), 192, 14, 64
    patches = net.conv(net.input("image", (1, 3, 224, 224)), 3, features, 16, 16, padding=0, gain=1.0)
    x = net.transpose(net.reshape(patches, 1, features, side * side), 0, 2, 1)
    rng = np.random.default_rng(0)
    x = net.add("Add", x, net.constant(rng.standard_normal((1, side * side, features), dtype=np.float32)))
    maps: list[str] = []
    for number in range(12):
        x = encoder_layer(net, x, side * side, features, 3, None, net.gelu)
        if number % 3 == 2:
            grid = net.reshape(net.transpose(net.layer_norm(x, features), 0, 2, 1), 1, features, side, side)
            maps.append(_map(net, grid, features, inner, len(maps)))
    x = maps[-1]
    for finer in reversed(maps[:-1]):
        x = net.add("Add", _enlarged(net, _residual(net, x, inner)), _residual(net, finer, inner))
    x = _enlarged(net, net.conv(_enlarged(net, _residual(net, x, inner)), inner, inner // 2, 3))
    return net.onnx(net.add("Relu", net.conv(net.conv_relu(x, inner // 2, 32, 3), 32, 1)))


def _map(net: Network, grid: str, features: int, inner: int, number: int) -> str:
    """The first map four times as large, the next twice, the last half as large."""
    x = net.conv(grid, features, inner, gain=1.0)
    match number:
        case 0:
            return net.conv_transpose(x, inner, inner, 4, 4)
        case 1:
            return net.conv_transpose(x, inner, inner, 2, 2)
        case 2:
            return x
    return net.conv(x, inner, inner, 3, 2, gain=1.0)


def _residual(net: Network, x: str, features: int) -> str:
    inner = net.conv_relu(net.add("Relu", x), features, features, 3)
    return net.add("Add", x, net.conv(inner, features, features, 3, gain=BRANCH_GAIN))


def _enlarged(net: Network, x: str) -> str:
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    return net.add("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
