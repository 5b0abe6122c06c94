"""Where onnx's shape inference says less than is known, or something else than the op does (onnx 1.23.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TypeProto, helper

from tunewright.graph.inference import TypeFault, check_shape
from tunewright.graph.ir import Array, Node
from tunewright.graph.resize import resized
from tunewright.graph.windows import explicit, explicit_transposed, places, unpadded

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]

MOST_SCALE = 1 << 31
"""What an axis may be scaled by is less."""


def completed(
    node: Node, protos: Sequence[TypeProto], shapes: Shapes, values: Sequence[Array | None]
) -> list[TypeProto]:
    """The types of the outputs. `shapes` and `values` are those of the inputs, as far as they are known.

    Raises TypeFault for a shape beyond the limits.
    """
    complete = _COMPLETIONS.get(node.op) if not node.domain else None
    extents = complete(node, shapes, values) if complete and shapes and shapes[0] is not None else None
    if extents is None:
        return list(protos)
    check_shape(extents)
    return [helper.make_tensor_type_proto(proto.tensor_type.elem_type, extents) for proto in protos]


def _one_hot(node: Node, shapes: Sequence[Any], values: Sequence[Array | None]) -> Shape | None:
    """Inference leaves out the extent that the depth says."""
    shape, depth = shapes[0], values[1]
    if depth is None or depth.size != 1:
        return None
    axis = node.attrs["axis"] % (len(shape) + 1)
    return (*shape[:axis], int(depth.reshape(-1)[0]), *shape[axis:])


def _pool(node: Node, shapes: Sequence[Any], values: Sequence[Array | None]) -> Shape | None:
    """Rounded up, a window that would start behind the input and its padding in front is left out in every opset."""
    shape, kernel = shapes[0], node.attrs.get("kernel_shape", ())
    if not node.attrs.get("ceil_mode", 0) or node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    if len(kernel) != len(shape) - 2:
        return None
    extents = places(explicit(node.attrs, shape[2:], kernel), shape[2:], ceil=True)
    return (*shape[:2], *extents)


def _conv_transpose(node: Node, shapes: Sequence[Any], values: Sequence[Array | None]) -> Shape | None:
    """Inference does not cut `output_padding` off again where `auto_pad` says how far the result extends."""
    shape, weight = shapes[:2]
    is_same = node.attrs.get("auto_pad", "NOTSET").startswith("SAME")
    if not is_same or "output_padding" not in node.attrs or weight is None or len(weight) != len(shape):
        return None
    windows = explicit_transposed(node.attrs, shape[2:], weight[2:])
    count = len(shape) - 2
    whole = unpadded(windows, shape[2:], windows["output_padding"])
    extents = [extent - windows["pads"][i] - windows["pads"][count + i] for i, extent in enumerate(whole)]
    return (shape[0], weight[1] * node.attrs.get("group", 1), *extents)


def _squeeze(node: Node, shapes: Sequence[Any], values: Sequence[Array | None]) -> Shape | None:
    """Before opset 13 inference takes the axes to be in order."""
    shape, axes = shapes[0], node.attrs.get("axes")
    if axes is None or not shape:
        return None
    gone = {axis % len(shape) for axis in axes}
    return tuple(extent for axis, extent in enumerate(shape) if axis not in gone)


def _resize(node: Node, shapes: Sequence[Any], values: Sequence[Array | None]) -> Shape | None:
    """Inference multiplies extents and scales in double precision, where ONNX Runtime and exporters do in single."""
    shape: Shape = shapes[0]
    place = 1 if node.op == "Upsample" or node.version < 11 else 2
    given = node.attrs.get("scales", values[place] if place < len(values) else None)
    axes = [axis % len(shape) for axis in node.attrs.get("axes") or range(len(shape))]
    if given is None or len(given) != len(axes):
        return None
    if not ((np.asarray(given) > 0) & (np.asarray(given) < MOST_SCALE)).all():
        raise TypeFault(f"scales {', '.join(map(str, given))[:80]} are not all above 0 and below {MOST_SCALE:,}")
    scales = dict(zip(axes, given, strict=True))
    return tuple(resized(extent, float(scales.get(axis, 1.0))) for axis, extent in enumerate(shape))


_COMPLETIONS: Mapping[str, Callable[[Node, Sequence[Any], Sequence[Array | None]], Shape | None]] = {
    "AveragePool": _pool,
    "ConvTranspose": _conv_transpose,
    "LpPool": _pool,
    "MaxPool": _pool,
    "OneHot": _one_hot,
    "Resize": _resize,
    "Squeeze": _squeeze,
    "Upsample": _resize,
}
"""The extents of an op's outputs, all of which have the same."""
