"""Ops of signal processing, detection, and sequences of steps: rare ones, which the evaluator runs."""

from __future__ import annotations

from functools import partial

import numpy as np
from onnx import helper

from ..draft import DraftTensor, ModelDraft, Shape, body_graph
from .recipe import Recipes


def taper(op: str, d: ModelDraft) -> DraftTensor:
    """A window function of so many samples."""
    return d.op(op, d.ints(d.between(1, 12)), periodic=d.among(None, 0, 1))


def fourier(d: ModelDraft) -> DraftTensor:
    """A DFT of real or complex numbers, one-sided, inverse, or of another length."""
    dtype = d.dtype_for("DFT", among=("float32", "float64"))
    length = d.between(2, 8)
    parts = d.among(1, 2)
    x = d.fresh(dtype, (d.between(1, 2), length, d.between(1, 3), parts), constant=0.2)
    inverse = 1 if parts == 2 and d.chance(0.4) else None
    onesided = 1 if parts == 1 and d.chance(0.4) else None
    dft_length = d.ints(d.between(2, 9)) if d.chance(0.3) else None
    if d.opset < 20:
        return d.op("DFT", x, dft_length, axis=1, inverse=inverse, onesided=onesided)
    return d.op("DFT", x, dft_length, d.ints(d.among(1, -3)), inverse=inverse, onesided=onesided)


def short_fourier(d: ModelDraft) -> DraftTensor:
    """A DFT of overlapping frames."""
    length, frame = d.between(8, 16), d.among(2, 4)
    signal = d.fresh("float32", (d.between(1, 2), length, 1), constant=0.2)
    taper_ = d.fresh("float32", (frame,), constant=0.9) if d.chance(0.5) else None
    return d.op("STFT", signal, d.ints(d.between(1, 3)), taper_, d.ints(frame), onesided=d.among(None, 0, 1))


def mel_weights(d: ModelDraft) -> DraftTensor:
    """A matrix of filters."""
    low, high = d.among(0.0, 20.0), d.among(1000.0, 4000.0)
    numbers = [d.ints(d.between(2, 8)), d.ints(d.among(16, 32)), d.ints(8000)]
    return d.op("MelWeightMatrix", *numbers, d.scalar(low, "float32"), d.scalar(high, "float32"))


def suppression(d: ModelDraft) -> DraftTensor:
    """The boxes with the best scores that don't overlap."""
    batch, boxes, classes = d.between(1, 2), d.between(1, 6), d.between(1, 2)
    low = d.array_rng.uniform(0, 1, (batch, boxes, 2))
    corners = np.concatenate([low, low + d.array_rng.uniform(0.1, 0.6, (batch, boxes, 2))], axis=2)
    scores = d.array_rng.uniform(0, 1, (batch, classes, boxes))
    operands = d.constant(corners, "float32"), d.constant(scores, "float32")
    limits = [d.ints(d.between(0, 3)), d.scalar(d.among(0.3, 0.5), "float32"), d.scalar(d.among(0.0, 0.4), "float32")]
    return d.op("NonMaxSuppression", *operands, *limits[: d.between(1, 3)], center_point_box=d.among(None, 0, 1))


def roi_pool(d: ModelDraft) -> DraftTensor:
    """The largest of each part of a box."""
    x = d.fresh("float32", (1, d.between(1, 3), d.between(4, 7), d.between(4, 7)), constant=0.2)
    boxes = d.constant(np.array([[0, 0, 0, 3, 3], [0, 1, 1, 3, 2]]), "float32")
    return d.op("MaxRoiPool", x, boxes, pooled_shape=[d.between(1, 2), d.between(1, 2)])


def sequence_map(d: ModelDraft) -> DraftTensor:
    """A SequenceMap: an op on each tensor of a sequence."""
    shape: Shape = d.some_shape(low=1, high=3)
    x = d.fresh("float32", shape)
    s = d.op("SequenceConstruct", x, d.op("Neg", x))
    with d.body():
        element = d.parameter("float32", shape)
        result = d.op(d.among("Exp", "Relu", "Tanh"), element)
        graph = body_graph(d.content.nodes, [element], [result], "body")
    node = helper.make_node("SequenceMap", [s.name], [d.name("t")], body=graph)
    [sequence] = d.add(node, [s.kind])
    return d.op("SequenceAt", sequence, d.ints(d.among(0, 1)))


SIGNALS: Recipes = {
    **{op: partial(taper, op) for op in ("BlackmanWindow", "HammingWindow", "HannWindow")},
    "DFT": fourier,
    "MaxRoiPool": roi_pool,
    "MelWeightMatrix": mel_weights,
    "NonMaxSuppression": suppression,
    "STFT": short_fourier,
    "SequenceMap": sequence_map,
}
