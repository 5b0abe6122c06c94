"""Networks that hear: where somebody speaks, and the spectrum that models of speech begin with."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
from onnx import TensorProto

from .network import Network


def voice_activity() -> bytes:
    """A detector of voice over 32 ms of sound: a spectrum by a convolution, four convolutions, an LSTM that goes on.

    The rate decides between two networks, as in Silero's detector, "Silero VAD" (2021).
    """
    net = Network("voice_activity")
    sound, state = net.input("sound", (1, 576)), net.input("state", (2, 1, 128))
    rate = net.input("rate", (), TensorProto.INT64)
    fast, slow = net.body("fast"), net.body("slow")
    branches = {
        "then_branch": fast.graph(*_detector(fast, sound, state, 256)),
        "else_branch": slow.graph(*_detector(slow, sound, state, 128)),
    }
    is_fast = net.add("Equal", rate, net.constant(np.array(16000, np.int64)))
    voice, later = net.add_split("If", is_fast, count=2, **branches)
    return net.onnx(net.declare(voice, (1, 1)), net.declare(later, (2, 1, 128)))


def _detector(net: Network, sound: str, state: str, window: int) -> tuple[str, str]:
    """How likely there is voice, and the state after it."""
    bins, hidden = window // 2 + 1, 128
    angles = 2 * pi * np.outer(np.arange(bins), np.arange(window)) / window
    waves = np.concatenate([np.cos(angles), -np.sin(angles)]) * np.hanning(window)
    padded = net.add("Pad", sound, net.integers(0, 0, 0, window // 4), mode="reflect")
    sums = net.add(
        "Conv", net.add("Unsqueeze", padded, net.integers(1)), net.constant(waves[:, None].astype(np.float32)),
        kernel_shape=[window], strides=[window // 2],
    )  # fmt: skip
    real, imaginary = net.add_split("Split", sums, net.integers(bins, bins), count=2, axis=1)
    two = net.scalar(2)
    x = net.add("Sqrt", net.add("Add", net.add("Pow", real, two), net.add("Pow", imaginary, two)))
    for inputs, features, stride in ((bins, 128, 1), (128, 64, 2), (64, 64, 2), (64, hidden, 1)):
        weight, bias = net.weight((features, inputs, 3), 3 * inputs, sqrt(2)), net.shift(features)
        x = net.add("Relu", net.add("Conv", x, weight, bias, kernel_shape=[3], strides=[stride], pads=[1, 1]))
    steps = net.transpose(x, 2, 0, 1)
    before, cell = net.add_split("Split", state, net.integers(1, 1), count=2, axis=0)
    weights = net.weight((1, 4 * hidden, hidden), hidden), net.weight((1, 4 * hidden, hidden), hidden)
    outputs, *after = net.add_split(
        "LSTM", steps, *weights, net.weight((1, 8 * hidden), hidden), "", before, cell, count=3, hidden_size=hidden
    )
    heard = net.add("Relu", net.add("Squeeze", outputs, net.integers(1)))
    voice = net.add("Sigmoid", net.linear(net.mean(net.add("Squeeze", heard, net.integers(1)), 0), hidden, 1))
    return voice, net.add("Concat", *after, axis=0)


def mel_spectrum() -> bytes:
    """The front end of Whisper (Radford et al., 2022) over one second: 80 bands of a spectrum, in logarithms.

    The matrix of bands is computed within the model, as PyTorch's exporter leaves it.
    """
    net, length, step, rate = Network("mel_spectrum"), 400, 160, 16000
    sound = net.add("Pad", net.input("sound", (1, rate)), net.integers(0, length // 2, 0, length // 2), mode="reflect")
    window = net.constant(np.hanning(length + 1)[:-1].astype(np.float32))
    hop, extent = (net.constant(np.array(value, np.int64)) for value in (step, length))
    spectrum = net.add("STFT", net.add("Unsqueeze", sound, net.integers(2)), hop, window, extent, onesided=1)
    power = net.add("ReduceSumSquare", spectrum, net.integers(3), keepdims=0)
    whole = [net.constant(np.array(value, np.int64)) for value in (80, length, rate)]
    bands = net.add("MelWeightMatrix", *whole, net.scalar(0.0), net.scalar(8000.0))
    energy = net.add("Max", net.add("MatMul", power, bands), net.scalar(1e-10))
    level = net.add("Div", net.add("Log", energy), net.scalar(np.log(10.0)))
    top = net.add("ReduceMax", level, net.integers(0, 1, 2), keepdims=1)
    level = net.add("Max", level, net.add("Sub", top, net.scalar(8)))
    return net.onnx(net.add("Div", net.add("Add", net.transpose(level, 0, 2, 1), net.scalar(4)), net.scalar(4)))
