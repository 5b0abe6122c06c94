"""Where onnx's shape inference says less than is known, or something else than the op does (onnx 1.23.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TypeProto, helper

from tunewright.graph.inference import TypeFault, check_shape
from tunewright.graph.ir import Array, Node
from tunewright.graph.resize import resized
from tunewright.graph.windows import explicit, places

Shape = tuple[int, ...]

MOST_SCALE = 1 << 31
"""What an axis may be scaled by is less."""


def completed(
    node: Node, protos: Sequence[TypeProto], shape: Shape | None, values: Sequence[Array | None]
) -> list[TypeProto]:
    """The types of the outputs. `shape` is the first input's, `values` are those of the inputs that are known.

    Raises TypeFault for a shape beyond the limits.
    """
    complete = _COMPLETIONS.get(node.op) if not node.domain else None
    extents = complete(node, shape, values) if complete and shape is not None else None
    if extents is None:
        return list(protos)
    check_shape(extents)
    return [helper.make_tensor_type_proto(proto.tensor_type.elem_type, extents) for proto in protos]


def _one_hot(node: Node, shape: Shape, values: Sequence[Array | None]) -> Shape | None:
    """Inference leaves out the extent that the depth says."""
    depth = values[1]
    if depth is None or depth.size != 1:
        return None
    axis = node.attrs["axis"] % (len(shape) + 1)
    return (*shape[:axis], int(depth.reshape(-1)[0]), *shape[axis:])


def _pool(node: Node, shape: Shape, values: Sequence[Array | None]) -> Shape | None:
    """Rounded up, a window that would start behind the input and its padding in front is left out in every opset."""
    kernel = node.attrs.get("kernel_shape", ())
    if not node.attrs.get("ceil_mode", 0) or node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    if len(kernel) != len(shape) - 2:
        return None
    extents = places(explicit(node.attrs, shape[2:], kernel), shape[2:], ceil=True)
    return (*shape[:2], *extents)


def _resize(node: Node, shape: Shape, values: Sequence[Array | None]) -> Shape | None:
    """Inference multiplies extents and scales in double precision, where ONNX Runtime and exporters do in single."""
    place = 1 if node.op == "Upsample" or node.version < 11 else 2
    given = node.attrs.get("scales", values[place] if place < len(values) else None)
    axes = [axis % len(shape) for axis in node.attrs.get("axes") or range(len(shape))]
    if given is None or len(given) != len(axes):
        return None
    if not (np.abs(given) < MOST_SCALE).all():
        raise TypeFault(f"scales {', '.join(map(str, given))[:80]} are not all below {MOST_SCALE:,}")
    scales = dict(zip(axes, given, strict=True))
    return tuple(resized(extent, float(scales.get(axis, 1.0))) for axis, extent in enumerate(shape))


_COMPLETIONS: Mapping[str, Callable[[Node, Shape, Sequence[Array | None]], Shape | None]] = {
    "AveragePool": _pool,
    "LpPool": _pool,
    "MaxPool": _pool,
    "OneHot": _one_hot,
    "Resize": _resize,
    "Upsample": _resize,
}
"""The extents of an op's outputs, all of which have the same."""
