"""Classic machine learning: tables that numbers are looked up in."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tunewright.graph.ir import Array

from ..evaluation.onnx_form import dtype_name
from .call import CLASSIC, ContribCall, Unsupported, standard_op

_OPSET_OF_NAN = 4
"""From this version on NaN is a key like others."""

_WIDTHS = {"floats": "float32", "int64s": "int64"}


@standard_op("OneHotEncoder", CLASSIC)
def _one_hot_encoder(call: ContribCall) -> str:
    """A new last axis, with 1 at the place of the category of each element; zeros for one that is none."""
    x = call.operand("X")
    texts, numbers = call.attr("cats_strings"), call.attr("cats_int64s")
    if call.kind(x).dtype == "string":
        if not texts:
            raise Unsupported("strings where the categories are numbers")
        places = list(range(len(texts)))
        x = call.emit_classic("LabelEncoder", x, keys_strings=texts, values_int64s=places, default_int64=-1)
        numbers = places
    if not numbers or 0 in call.shape(x):
        raise Unsupported("no categories, or no elements")
    if not call.attr("zeros"):
        raise Unsupported("categories of which each element must be one")
    x = call.cast(x, "int64")
    is_category = call.emit("Equal", call.unsqueeze(x, len(call.shape(x))), call.constant(numbers, "int64"))
    return call.cast(is_category, "float32")


@standard_op("LabelEncoder", CLASSIC)
def _label_encoder(call: ContribCall) -> str:
    """The value at the place of each element among the keys; the default where it is none of them.

    Keys are sorted, and the place of an element is found by halving: a Gather and a comparison for each bit of it.
    """
    x = call.operand("X")
    keys, values = _table(call, "keys"), _table(call, "values")
    if keys.dtype.kind not in "fi" or values.dtype.kind not in "fi" or str(keys.dtype) != call.kind(x).dtype:
        raise Unsupported("keys or values that are no numbers")
    if len(keys) != len(values) or not len(keys) or not prod(call.shape(x)):
        raise Unsupported("keys without values, or no elements")
    default = np.asarray(_default(call, values), values.dtype)
    is_nan = np.isnan(keys)
    result = _look_up(call, x, keys[~is_nan], values[~is_nan], default)
    if is_nan.any() and call.version >= _OPSET_OF_NAN:
        value = call.constant(values[is_nan][0], str(values.dtype))
        result = call.emit("Where", call.emit("IsNaN", x), value, result)
    return result


def _look_up(call: ContribCall, x: str, keys: Array, values: Array, default: Array) -> str:
    dtype = str(values.dtype)
    keys, first = np.unique(keys, return_index=True)  # the first of equal keys counts
    if not len(keys):
        return call.emit("Expand", call.constant(default, dtype), call.constant(call.shape(x), "int64"))
    bits = max(len(keys) - 1, 1).bit_length()
    most = np.inf if keys.dtype.kind == "f" else np.iinfo(dtype_name(keys)).max
    sorted_keys: Any = np.full(2**bits, most, keys.dtype)
    sorted_keys[: len(keys)] = keys
    table = call.constant(sorted_keys, str(keys.dtype))
    place = ""
    for bit in reversed(range(bits)):
        middle = call.constant(2**bit - 1, "int64")
        key = call.emit("Gather", table, call.sum(place, middle))
        step = call.emit("Where", call.emit("Less", key, x), *(call.constant(n, "int64") for n in (2**bit, 0)))
        place = call.sum(place, step)
    found = np.full(2**bits, default, values.dtype)
    found[: len(keys)] = values[first]
    is_key = call.emit("Equal", call.emit("Gather", table, place), x)
    value = call.emit("Gather", call.constant(found, dtype), place)
    return call.emit("Where", is_key, value, call.constant(default, dtype))


def _table(call: ContribCall, kind: str) -> Array:
    """The keys or values, from whichever attribute has them. Raises Unsupported for strings."""
    tensor = call.attr(f"{kind}_tensor")
    if tensor is not None:
        return np.reshape(tensor, -1)
    for suffix, dtype in _WIDTHS.items():
        given: Sequence[Any] | None = call.attr(f"{kind}_{suffix}")
        if given:
            return np.asarray(given, dtype)
    raise Unsupported("a table of strings")


def _default(call: ContribCall, values: Array) -> Any:
    tensor = call.attr("default_tensor")
    if tensor is not None and np.size(tensor) == 1 and call.attr("values_tensor") is not None:
        return np.reshape(tensor, -1)[0]
    if call.attr("values_tensor") is not None:
        return 0 if values.dtype.kind == "f" else -1
    return call.attr("default_float" if values.dtype.kind == "f" else "default_int64")
