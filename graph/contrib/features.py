"""Classic machine learning: what prepares features, such as Scaler and Imputer.

Rows are the first axis, features the second; a vector is one row. Results are as of ONNX Runtime where ONNX's text
leaves them open.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import numpy as np

from .call import CLASSIC, ContribCall, Unsupported, standard_op


def to_float(call: ContribCall, name: str) -> str:
    """The tensor in float32, in which classic models compute; one of doubles stays."""
    return name if call.kind(name).dtype == "float64" else call.cast(name, "float32")


def columns_of(call: ContribCall, name: str) -> int:
    """How many features there are. Raises Unsupported for what is neither rows nor a row."""
    shape = call.shape(name)
    if len(shape) not in (1, 2) or 0 in shape:
        raise Unsupported("what is neither rows nor a row")
    return shape[-1]


@standard_op("Scaler", CLASSIC)
def _scaler(call: ContribCall) -> str:
    x, columns = to_float(call, call.operand("X")), columns_of(call, call.operand("X"))
    offset, scale = call.attr("offset"), call.attr("scale")
    if not offset or not scale or len(offset) != len(scale) or len(offset) not in (1, columns):
        raise Unsupported("offsets and scales for another number of features")
    dtype = call.kind(x).dtype
    centred = call.emit("Sub", x, call.constant(offset, dtype))
    return call.cast(call.emit("Mul", centred, call.constant(scale, dtype)), "float32")


@standard_op("Normalizer", CLASSIC)
def _normalizer(call: ContribCall) -> str:
    """Rows over their largest element, the sum of their magnitudes or their length; rows of zeros stay."""
    columns_of(call, call.operand("X"))
    x = to_float(call, call.operand("X"))
    axes = call.constant([-1], "int64")
    match call.attr("norm"):
        case "MAX":
            size = call.emit("ReduceMax", x, axes)
        case "L1":
            size = call.emit("ReduceSum", call.emit("Abs", x), axes)
        case "L2":
            size = call.emit("Sqrt", call.emit("ReduceSum", call.emit("Mul", x, x), axes))
        case norm:
            raise Unsupported(f"norm {norm}")
    divisor = call.emit("Where", call.emit("Equal", size, call.like(x, 0)), call.like(x, 1), size)
    return call.cast(call.emit("Div", x, divisor), "float32")


@standard_op("Imputer", CLASSIC)
def _imputer(call: ContribCall) -> str:
    x, columns = call.operand("X"), columns_of(call, call.operand("X"))
    dtype = call.kind(x).dtype
    kind = "float" if dtype.startswith("float") else "int64"
    values, replaced = call.attr(f"imputed_value_{kind}s"), call.attr(f"replaced_value_{kind}", 0)
    if not values or (len(values) not in (1, columns)):
        raise Unsupported("imputed values for another number of features, or of another type")
    is_missing = call.emit("IsNaN", x) if isnan(replaced) else call.emit("Equal", x, call.like(x, replaced))
    return call.emit("Where", is_missing, call.constant(values, dtype), x)


@standard_op("Binarizer", CLASSIC)
def _binarizer(call: ContribCall) -> str:
    x = call.operand("X")
    dtype, threshold = call.kind(x).dtype, call.attr("threshold")
    if not dtype.startswith("float") and not float(threshold).is_integer():
        raise Unsupported("a threshold between integers")
    return call.cast(call.emit("Greater", x, call.like(x, threshold)), dtype)


@standard_op("FeatureVectorizer", CLASSIC)
def _feature_vectorizer(call: ContribCall) -> str:
    """Rows of several tensors beside each other, each of them cut or filled up with zeros to a given extent."""
    operands = call.rest
    extents: Sequence[int] = call.attr("inputdimensions") or ()
    if len(extents) != len(operands) or min(extents, default=0) < 1:
        raise Unsupported("inputdimensions that don't go with the inputs")
    parts = []
    for name, extent in zip(operands, extents, strict=True):
        columns = columns_of(call, name)
        if len(call.shape(name)) == 1:
            name, columns = call.unsqueeze(name, 1), 1
        name = call.cast(name, "float32")
        if columns > extent:
            name = call.slice(name, 1, 0, extent)
        elif columns < extent:
            name = call.emit("Pad", name, call.constant([0, 0, 0, extent - columns], "int64"))
        parts.append(name)
    return call.emit("Concat", *parts, axis=1) if len(parts) > 1 else call.emit("Identity", parts[0])


@standard_op("ArrayFeatureExtractor", CLASSIC)
def _array_feature_extractor(call: ContribCall) -> str:
    """The features of given numbers; of a vector as one row."""
    x, indices = call.operand("X"), call.operand("Y")
    shape, count = call.shape(x), int(np.prod(call.shape(indices)))
    if not shape or 0 in (count, *shape):
        raise Unsupported("operands without elements")
    taken = call.emit("Gather", x, call.reshape(indices, count), axis=len(shape) - 1)
    return call.reshape(taken, 1, count) if len(shape) == 1 else taken
