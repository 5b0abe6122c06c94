"""Networks that find things in pictures: objects, lines of text, and what these say."""

from __future__ import annotations

import numpy as np

from .network import BRANCH_GAIN, Network


def _conv_silu(net: Network, x: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> str:
    return net.silu(net.conv(x, inputs, outputs, kernel, stride))


def _cross_stage(net: Network, x: str, inputs: int, outputs: int, blocks: int, *, residual: bool = True) -> str:
    """Wang et al., "CSPNet" (2019): half of the channels pass by the blocks."""
    inner = outputs // 2
    left, right = _conv_silu(net, x, inputs, inner), _conv_silu(net, x, inputs, inner)
    for _ in range(blocks):
        branch = _conv_silu(net, _conv_silu(net, left, inner, inner), inner, inner, 3)
        left = net.add("Add", left, branch) if residual else branch
    return _conv_silu(net, net.add("Concat", left, right, axis=1), outputs, outputs)


def _pyramid_pool(net: Network, x: str, features: int) -> str:
    """Spatial pyramid pooling of He et al. (2014), as three pools of 5 x 5 one behind the other."""
    parts = [_conv_silu(net, x, features, features // 2)]
    for _ in range(3):
        parts.append(net.max_pool(parts[-1], 5, 1, 2))
    return _conv_silu(net, net.add("Concat", *parts, axis=1), 2 * features, features)


def _double(net: Network, x: str) -> str:
    """Twice as high and wide, each pixel four times."""
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return net.add("Resize", x, "", scales, **options)


def yolo_nano_nms() -> bytes:
    """Redmon et al., "You Only Look Once" (2016), with the backbone and neck of its fifth version at nano size.

    What is found is suppressed where it overlaps within the model, as deployed models are exported.
    """
    net, size, classes = Network("yolo_nano_nms"), 320, 80
    x = net.silu(net.conv(net.input("image", (1, 3, size, size)), 3, 16, 6, 2, padding=2))
    x = _cross_stage(net, _conv_silu(net, x, 16, 32, 3, 2), 32, 32, 1)
    eighth = _cross_stage(net, _conv_silu(net, x, 32, 64, 3, 2), 64, 64, 2)
    sixteenth = _cross_stage(net, _conv_silu(net, eighth, 64, 128, 3, 2), 128, 128, 3)
    last = _cross_stage(net, _conv_silu(net, sixteenth, 128, 256, 3, 2), 256, 256, 1)
    last = _conv_silu(net, _pyramid_pool(net, last, 256), 256, 128)
    middle = net.add("Concat", _double(net, last), sixteenth, axis=1)
    middle = _conv_silu(net, _cross_stage(net, middle, 256, 128, 1, residual=False), 128, 64)
    first = _cross_stage(net, net.add("Concat", _double(net, middle), eighth, axis=1), 128, 64, 1, residual=False)
    down = net.add("Concat", _conv_silu(net, first, 64, 64, 3, 2), middle, axis=1)
    second = _cross_stage(net, down, 128, 128, 1, residual=False)
    down = net.add("Concat", _conv_silu(net, second, 128, 128, 3, 2), last, axis=1)
    third = _cross_stage(net, down, 256, 256, 1, residual=False)
    heads = ((first, 64, 8), (second, 128, 16), (third, 256, 32))
    boxes = [_decoded(net, x, inputs, size // stride, stride, classes) for x, inputs, stride in heads]
    return net.onnx(*_suppressed(net, net.add("Concat", *boxes, axis=1), classes))


def _decoded(net: Network, x: str, inputs: int, extent: int, stride: int, classes: int) -> str:
    """Boxes [1, 3 extent^2, 5 + classes] of the anchors at one scale: centre, size, and how sure."""
    values = net.conv(x, inputs, 3 * (5 + classes))
    values = net.transpose(net.reshape(values, 1, 3, 5 + classes, extent, extent), 0, 1, 3, 4, 2)
    centre, extents, sure = net.add_split(
        "Split", net.add("Sigmoid", values), net.integers(2, 2, 1 + classes), count=3, axis=4
    )
    grid = np.stack(np.meshgrid(np.arange(extent), np.arange(extent)), -1).astype(np.float32) - np.float32(0.5)
    anchors = np.array([1.25, 2.0, 4.0], np.float32).reshape(1, 3, 1, 1, 1) * stride
    centre = net.add("Add", net.add("Mul", centre, net.scalar(2)), net.constant(grid[None, None]))
    centre = net.add("Mul", centre, net.scalar(stride))
    extents = net.add("Pow", net.add("Mul", extents, net.scalar(2)), net.scalar(2))
    extents = net.add("Mul", extents, net.constant(anchors))
    return net.reshape(net.add("Concat", centre, extents, sure, axis=4), 1, 3 * extent * extent, 5 + classes)


def _suppressed(net: Network, rows: str, classes: int) -> tuple[str, str, str]:
    """The boxes that are left, their classes and scores."""
    centre, extents, sure, scores = net.add_split("Split", rows, net.integers(2, 2, 1, classes), count=4, axis=2)
    half = net.add("Mul", extents, net.scalar(0.5))
    boxes = net.add("Concat", net.add("Sub", centre, half), net.add("Add", centre, half), axis=2)
    scores = net.transpose(net.add("Mul", scores, sure), 0, 2, 1)
    limits = net.integers(20), net.scalar(0.45), net.scalar(0.9)
    found = net.add("NonMaxSuppression", boxes, scores, *limits)
    kind, place = (net.add("Gather", found, net.integers(n), axis=1) for n in (1, 2))
    chosen = net.add(
        "Gather", net.add("Squeeze", boxes, net.integers(0)), net.add("Squeeze", place, net.integers(1)), axis=0
    )
    return chosen, kind, net.add("GatherND", scores, found)


def ocr_detector() -> bytes:
    """Liao et al., "Real-time Scene Text Detection with Differentiable Binarization" (2019), on a light backbone.

    Depthwise convolutions with hard swish, after Howard et al., "Searching for MobileNetV3" (2019).
    """
    net, size = Network("ocr_detector"), 320
    x = net.add("HardSwish", net.conv(net.input("image", (1, 3, size, size)), 3, 16, 3, 2))
    inputs, levels = 16, []
    for outputs, blocks in ((24, 2), (40, 3), (96, 3)):
        for block in range(blocks):
            x = _inverted(net, x, inputs, outputs, 1 if block else 2)
            inputs = outputs
        levels.append((x, outputs))
    levels.append((_inverted(net, x, 96, 160, 2), 160))
    fused = [net.conv(level, count, 96) for level, count in levels]
    for number in (2, 1, 0):
        fused[number] = net.add("Add", fused[number], _double(net, fused[number + 1]))
    parts = []
    for number, level in enumerate(fused):
        part = net.conv(level, 96, 24, 3)
        for _ in range(number):
            part = _double(net, part)
        parts.append(part)
    x = net.conv_relu(net.add("Concat", *parts, axis=1), 96, 24, 3)
    x = net.add("Relu", net.conv_transpose(x, 24, 24, 2, 2))
    return net.onnx(net.add("Sigmoid", net.conv_transpose(x, 24, 1, 2, 2)))


def _inverted(net: Network, x: str, inputs: int, outputs: int, stride: int) -> str:
    """A wide depthwise convolution between two narrow layers, its channels gated by their means."""
    inner = 4 * inputs
    branch = net.add("HardSwish", net.conv(x, inputs, inner))
    branch = net.add("HardSwish", net.conv(branch, inner, inner, 5, stride, groups=inner))
    means = net.add("Relu", net.conv(net.add("GlobalAveragePool", branch), inner, inner // 4))
    gate = net.add("HardSigmoid", net.conv(means, inner // 4, inner), alpha=1 / 6, beta=0.5)
    branch = net.conv(net.add("Mul", branch, gate), inner, outputs, gain=BRANCH_GAIN if stride == 1 else 1.0)
    return net.add("Add", x, branch) if stride == 1 and inputs == outputs else branch


def ocr_recogniser() -> bytes:
    """Shi et al., "An End-to-End Trainable Neural Network for Image-based Sequence Recognition" (2015): CRNN.

    A line of 48 x 320 pixels; convolutions that halve its height more often than its width, then an LSTM both ways.
    """
    net, letters = Network("ocr_recogniser"), 6625
    x, inputs = net.input("line", (1, 3, 48, 320)), 3
    for outputs, pool in ((64, (2, 2)), (128, (2, 2)), (256, (1, 1)), (256, (2, 1)), (512, (2, 1)), (512, (3, 1))):
        x = net.conv_relu(x, inputs, outputs, 3)
        if pool != (1, 1):
            x = net.add("MaxPool", x, kernel_shape=pool, strides=pool)
        inputs = outputs
    x = net.transpose(net.add("Squeeze", x, net.integers(2)), 2, 0, 1)
    for _ in range(2):
        x = net.both_ways(x, 80, 512, 256)
    return net.onnx(net.add("Softmax", net.linear(net.transpose(x, 1, 0, 2), 512, letters, 4.0), axis=-1))
