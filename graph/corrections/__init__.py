"""Where ONNX's reference evaluator is wrong or unfinished, the ops as they should be (found with onnx 1.23.2).

- LSTM, GRU, RNN: activations, clipping, sequence lengths and more are ignored (`recurrent`).
- Loop: stacks scan outputs with `vstack`, wrong unless they are vectors, and fails after no iteration.
- Scan: only along axis 0 and forwards, and without batches in opset 8.
- SequenceMap: bodies see nothing around them, and no items make no output.
- MaxPool: mixes up the pads of different axes unless beginning and end are equal; indices start anew in each channel.
- AveragePool, LpPool: pass over NaN, and count what lies behind the padding with `ceil_mode`.
- GlobalMaxPool: for images alone.
- MeanVarianceNormalization: of float32 alone, and cancels. GroupNormalization cancels.
- InstanceNormalization: rounds the mean of halves to halves.
- BatchNormalization of opsets 9 to 13: learns from the batch.
- Gemm: multiplies integers as floats.
- ConvTranspose: fails with groups, and with nothing in the batch.
- Col2Im, Flatten, GatherND, GlobalAveragePool: fail with nothing in the batch.
- Reduce*: fails or overflows for infinities (LogSumExp), integers, scalars; gives other types than it takes.
- Softmax, LogSoftmax, Hardmax: before opset 13 don't flatten.
- LayerNormalization: works with halves in halves; moments have the type of the input.
- LpNormalization: sums up without taking absolute values.
- LRN: normalises as many channels as there are samples, and only images.
- Pad: no negative pads.
- GridSample: no modes of opset 16 but "nearest", fails with nothing in the batch, and takes seconds.
- Resize, Upsample: err where a coordinate is whole but for rounding, go pixel by pixel, and Resize fails in opset 10.
  A part of the input (`tf_crop_and_resize`) ends past the last result if its scale makes a fraction of the extent.
- AffineGrid: float32 alone, and fails for aligned corners of an axis of one element.
- RoiAlign before opset 16: shifted by half a pixel.
- NonMaxSuppression: fails for thresholds that are scalars, and for those that are absent.
- CastLike: fails from opset 25 on.
- GatherElements: fails where more than 64 elements lie along the axis.
- OneHot: fails if the depth is a vector of one element.
- Softsign: fails for scalars.
- Mean: adds up in the shape of the first operand.
- Pow: refuses negative powers of integers.
- PRelu: multiplies 0 by the slope.
- Compress: fails for conditions that are longer than the axis.
- Unique: in order of first occurrence fails or is in another, but for vectors; slices that hold NaN are never alike.
- SoftmaxCrossEntropyLoss: takes the logarithm of a softmax that may be 0.
- Squeeze, Unsqueeze before opset 13: take one axis after the other, negative ones too early.
- Optional: makes a sequence of its operand.
- DequantizeLinear before opset 19: missing. (It means what 19 means for the types that it takes.)
- QuantizeLinear: what is beyond 32 bits, such as the lowest float of a mask, wraps instead of saturating.
- MatMulInteger: fails with a zero point for each row.
- QLinearConv: a scale for each channel for images alone.
- GlobalLpPool, MaxRoiPool, Scatter: missing.

`fallback.is_computed` tells what is missing after that. The modules are those of `graph.ops`, as far as there are such.
"""

from __future__ import annotations

from onnx.reference.op_run import OpRun

from ..recurrent import RECURRENT_OPS
from .contraction import Col2Im, ConvTranspose, Gemm, MatMulInteger
from .control_flow import Loop, Scan, SequenceMap
from .corrected import alike, mended
from .detection import HalfPixelFrom16, MaxRoiPool, NonMaxSuppression
from .elementwise import Mean, Pow, PRelu, Softsign
from .movement import (
    CastLike,
    Compress,
    Flatten,
    GatherElements,
    GatherND,
    OneHot,
    Pad,
    Scatter,
    Squeeze,
    Unique,
    Unsqueeze,
)
from .normalisation import GroupNormalization, Inference, InstanceNormalization, MeanVarianceNormalization
from .optional import Optional
from .pooling import AveragePool, GlobalAveragePool, GlobalLpPool, GlobalMaxPool, LpPool, MaxPool
from .quantisation import QLinearConv, Saturating
from .recurrence import Recurrent
from .reduction import (
    LRN,
    REDUCTIONS,
    SOFTMAXES,
    LayerNormalization,
    LpNormalization,
    Reduction,
    Softmax,
    SoftmaxCrossEntropyLoss,
)
from .resizing import RESIZING, Resizing
from .sampling import AffineGrid, GridSample

__all__ = ["CORRECTIONS"]

CORRECTIONS: list[type[OpRun]] = [
    AffineGrid,
    AveragePool,
    CastLike,
    Col2Im,
    Compress,
    ConvTranspose,
    Flatten,
    GatherElements,
    GatherND,
    Gemm,
    GlobalAveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    GridSample,
    GroupNormalization,
    InstanceNormalization,
    LRN,
    LayerNormalization,
    Loop,
    LpNormalization,
    LpPool,
    MatMulInteger,
    MaxPool,
    MaxRoiPool,
    Mean,
    MeanVarianceNormalization,
    NonMaxSuppression,
    OneHot,
    Optional,
    PRelu,
    Pad,
    Pow,
    QLinearConv,
    Scan,
    Scatter,
    SequenceMap,
    SoftmaxCrossEntropyLoss,
    Softsign,
    Squeeze,
    Unique,
    Unsqueeze,
    *alike(Recurrent, *sorted(RECURRENT_OPS)),
    *alike(Reduction, *REDUCTIONS),
    *alike(Resizing, *RESIZING),
    *alike(Softmax, *SOFTMAXES),
    mended("BatchNormalization", Inference),
    mended("DequantizeLinear"),  # that of the newest opset: older ones have fewer types and attributes
    mended("QuantizeLinear", Saturating),
    mended("RoiAlign", HalfPixelFrom16),
]
"""For the evaluator's `new_ops`, so that they hold inside bodies as well."""
