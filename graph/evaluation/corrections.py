"""Corrections of ops that ONNX's reference evaluator has wrong or unfinished (as of onnx 1.23.2).

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
- Softsign: fails for scalars. Erf: in float32. Gelu: with factors of float32.
- Shrink: large whole numbers as floats. Det: by logarithms.
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
- DynamicQuantizeLinear: zeros alone have another scale than in ONNX Runtime, which ONNX leaves open.
- GlobalLpPool, MaxRoiPool, Scatter: missing.

Most are a function from an `OnnxCall` and the operands to the result, or to a tuple of results, and a row in the table
of its module: `elements`, `folds`, `windows`, `images`, `recurrent`. `fallback.is_computed` tells what is missing then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
from onnx.reference import ops
from onnx.reference.op_run import OpRun


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """A node that the evaluator runs, in the meaning of an opset version."""

    op: str
    attrs: Mapping[str, Any]  # those that the node has
    version: int
    output_count: int


Correction = Callable[..., Any]
"""Computes an op: takes an OnnxCall and the operands, None where one is absent; trailing ones may be left out."""


class CorrectedOp(OpRun):
    """Base of the classes that the evaluator takes in place of its own: for the op that the class is named after."""

    op_domain = ""

    def node_attrs(self) -> dict[str, Any]:
        """The attributes that the node has."""
        return {item.name: getattr(self, item.name) for item in self.onnx_node.attribute}


def correct_op(op: str, compute: Correction) -> type[OpRun]:
    """The class by which the evaluator runs an op as corrected."""

    def run(self: CorrectedOp, *operands: Any, **_: Any) -> tuple[Any, ...]:
        node = self.onnx_node
        call = OnnxCall(op, self.node_attrs(), self.run_params["opsets"][""], len(node.output))
        result = compute(call, *operands)
        return result if isinstance(result, tuple) else (result,)

    return type(op, (CorrectedOp,), {"_run": run})


def override_op(op: str, *first: type) -> type[OpRun]:
    """The evaluator's own class of an op, of the newest opset it knows, with `first` ahead of it."""
    return type(op, (*first, ops.load_op("", op)), {"op_domain": ""})


def widen(x: Any) -> Any:
    """Convert narrow floats to float32: in their own type sums have few digits, and overflow early."""
    return np.asarray(x, np.result_type(x.dtype, np.float32))


def computed_wide(compute: Correction) -> Correction:
    """Have an op get its first operand in float32 at least, and round what it makes to the type of that operand."""

    @wraps(compute)
    def wrapper(call: OnnxCall, x: Any, *operands: Any) -> Any:
        return np.asarray(compute(call, widen(x), *operands)).astype(x.dtype)

    return wrapper
