"""Convolutional networks, written down from the papers that describe them."""

from __future__ import annotations

from math import sqrt

from .network import BRANCH_GAIN, PLAIN, Network, NetworkForm


def _classifier(net: Network, x: str, features: int, classes: int = 1000) -> bytes:
    """The mean over all pixels, and a linear layer."""
    pooled = net.reshape(net.mean(x, 2, 3), net.form.batch, features)
    return net.onnx(net.gemm(pooled, features, classes))


def _image(net: Network, height: int = 224, width: int = 224) -> str:
    return net.input("image", (net.form.batch, 3, height, width))


def _resnet_stem(net: Network) -> str:
    return net.max_pool(net.conv_relu(_image(net), 3, 64, 7, 2), 3, 2, 1)


def _residual_sum(net: Network, branch: str, shortcut: str) -> str:
    return net.add("Relu", net.add("Add", branch, shortcut))


def resnet18() -> bytes:
    """He et al., "Deep Residual Learning for Image Recognition" (2015): blocks of two 3x3 convolutions."""
    net = Network("resnet18")
    x, inputs = _resnet_stem(net), 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            inner = net.conv_relu(x, inputs, outputs, 3, stride)
            branch = net.conv(inner, outputs, outputs, 3, gain=BRANCH_GAIN)
            x = _residual_sum(net, branch, net.conv(x, inputs, outputs, 1, stride, gain=1.0) if stride > 1 else x)
            inputs = outputs
    return _classifier(net, x, inputs)


def resnet50(form: NetworkForm = PLAIN) -> bytes:
    """The same paper: blocks of 1x1, 3x3 and 1x1. Strides are those of the 3x3, as in all present implementations."""
    net = Network("resnet50", form=form)
    x, inputs = _resnet_stem(net), 64
    for stage, (inner, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            branch = net.conv_relu(x, inputs, inner)
            branch = net.conv_relu(branch, inner, inner, 3, stride)
            branch = net.conv(branch, inner, 4 * inner, gain=BRANCH_GAIN)
            x = _residual_sum(net, branch, x if block else net.conv(x, inputs, 4 * inner, 1, stride, gain=1.0))
            inputs = 4 * inner
    return _classifier(net, x, inputs)


def vgg16_126x224() -> bytes:
    """Simonyan and Zisserman, "Very Deep Convolutional Networks" (2014), configuration D, on pictures of 126 x 224."""
    net = Network("vgg16_126x224")
    x, inputs = _image(net, 126, 224), 3
    for outputs, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = net.conv_relu(x, inputs, outputs, 3)
            inputs = outputs
        x = net.max_pool(x, 2, 2)
    x = net.reshape(x, 1, 512 * 3 * 7)
    x = net.add("Relu", net.gemm(x, 512 * 3 * 7, 4096, sqrt(2)))
    x = net.add("Relu", net.gemm(x, 4096, 4096, sqrt(2)))
    return net.onnx(net.gemm(x, 4096, 1000))


def squeezenet() -> bytes:
    """Iandola et al., "SqueezeNet" (2016), in the authors' version 1.1."""
    net = Network("squeezenet")
    x, inputs = net.conv_relu(_image(net), 3, 64, 3, 2, padding=0), 64
    for squeezed, expanded, pooled in (
        (16, 64, True), (16, 64, False), (32, 128, True), (32, 128, False),
        (48, 192, True), (48, 192, False), (64, 256, False), (64, 256, False),
    ):  # fmt: skip
        x = net.max_pool(x, 3, 2) if pooled else x
        narrow = net.conv_relu(x, inputs, squeezed)
        sides = net.conv_relu(narrow, squeezed, expanded), net.conv_relu(narrow, squeezed, expanded, 3)
        x, inputs = net.add("Concat", *sides, axis=1), 2 * expanded
    x = net.conv_relu(x, inputs, 1000)
    return net.onnx(net.reshape(net.mean(x, 2, 3), 1, 1000))


def mobilenet_v2() -> bytes:
    """Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018), table 2."""
    net = Network("mobilenet_v2")
    x, inputs = net.relu6(net.conv(_image(net), 3, 32, 3, 2)), 32
    for expansion, outputs, count, first_stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            stride, inner = 1 if number else first_stride, expansion * inputs
            branch = net.relu6(net.conv(x, inputs, inner)) if expansion > 1 else x
            branch = net.relu6(net.conv(branch, inner, inner, 3, stride, groups=inner))
            branch = net.conv(branch, inner, outputs, gain=1.0)
            x = net.add("Add", x, branch) if stride == 1 and inputs == outputs else branch
            inputs = outputs
    return _classifier(net, net.relu6(net.conv(x, inputs, 1280)), 1280)


def efficientnet_b0() -> bytes:
    """Tan and Le, "EfficientNet" (2019), table 1; its blocks squeeze and excite (Hu et al., 2017)."""
    net = Network("efficientnet_b0")
    x, inputs = net.silu(net.conv(_image(net), 3, 32, 3, 2)), 32
    for expansion, outputs, count, first_stride, kernel in (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ):  # fmt: skip
        for number in range(count):
            stride, inner = 1 if number else first_stride, expansion * inputs
            branch = net.silu(net.conv(x, inputs, inner)) if expansion > 1 else x
            branch = net.silu(net.conv(branch, inner, inner, kernel, stride, groups=inner))
            branch = net.conv(net.squeeze_excite(branch, inner, inputs // 4), inner, outputs)
            x = net.add("Add", x, branch) if stride == 1 and inputs == outputs else branch
            inputs = outputs
    return _classifier(net, net.silu(net.conv(x, inputs, 1280)), 1280)


def convnext_tiny() -> bytes:
    """Liu et al., "A ConvNet for the 2020s" (2022)."""
    net = Network("convnext_tiny")
    x, inputs = _channel_norm(net, net.conv(_image(net), 3, 96, 4, 4, padding=0, gain=1.0), 96), 96
    for stage, (outputs, blocks) in enumerate(((96, 3), (192, 3), (384, 9), (768, 3))):
        if stage:
            x = net.conv(_channel_norm(net, x, inputs), inputs, outputs, 2, 2, padding=0, gain=1.0)
            inputs = outputs
        for _ in range(blocks):
            branch = net.transpose(net.conv(x, inputs, inputs, 7, groups=inputs, gain=1.0), 0, 2, 3, 1)
            branch = net.gelu(net.linear(net.layer_norm(branch, inputs), inputs, 4 * inputs))
            branch = net.add("Mul", net.linear(branch, 4 * inputs, inputs), net.shift(inputs, BRANCH_GAIN))
            x = net.add("Add", x, net.transpose(branch, 0, 3, 1, 2))
    pooled = net.layer_norm(net.mean(x, 2, 3, keepdims=False), inputs)
    return net.onnx(net.gemm(pooled, inputs, 1000))


def _channel_norm(net: Network, x: str, features: int) -> str:
    """Layer normalisation over the channels of each pixel."""
    return net.transpose(net.layer_norm(net.transpose(x, 0, 2, 3, 1), features), 0, 3, 1, 2)


def unet_small() -> bytes:
    """Ronneberger et al., "U-Net" (2015), with three levels of 32 to 128 channels over 256, padded to keep extents."""
    net = Network("unet_small")

    def twice(x: str, inputs: int, outputs: int) -> str:
        return net.conv_relu(net.conv_relu(x, inputs, outputs, 3), outputs, outputs, 3)

    x, inputs, skipped = _image(net, 128, 128), 3, []
    for outputs in (32, 64, 128):
        x = twice(x, inputs, outputs)
        skipped.append((x, outputs))
        x, inputs = net.max_pool(x, 2, 2), outputs
    x, inputs = twice(x, inputs, 256), 256
    for level, outputs in reversed(skipped):
        weight = net.weight((inputs, outputs, 2, 2), inputs)
        x = net.add("ConvTranspose", x, weight, net.shift(outputs), kernel_shape=[2, 2], strides=[2, 2])
        x, inputs = twice(net.add("Concat", x, level, axis=1), 2 * outputs, outputs), outputs
    return net.onnx(net.conv(x, inputs, 2, gain=1.0))
