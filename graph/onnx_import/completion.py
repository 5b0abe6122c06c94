"""Where onnx's shape inference says less than is known, or something else than the op does (onnx 1.23.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import TypeProto, helper

from tunewright.graph.ir import Array, Node

Shape = tuple[int, ...]


def completed(node: Node, proto: TypeProto, shape: Shape | None, values: Sequence[Array | None]) -> TypeProto:
    """The type of the first output. `shape` is the first input's, `values` are those of the inputs that are known."""
    complete = _COMPLETIONS.get(node.op) if not node.domain else None
    extents = complete(node, shape, values) if complete and shape is not None else None
    if extents is None:
        return proto
    return helper.make_tensor_type_proto(proto.tensor_type.elem_type, extents)


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
    count = len(kernel)
    strides, dilations = (node.attrs.get(name) or (1,) * count for name in ("strides", "dilations"))
    pads = node.attrs.get("pads") or (0,) * 2 * count
    extents = []
    for i, extent in enumerate(shape[2:]):
        slack = extent + pads[i] + pads[count + i] - (kernel[i] - 1) * dilations[i] - 1
        made = -(-slack // strides[i]) + 1
        extents.append(made - ((made - 1) * strides[i] >= extent + pads[i]))
    return None if min(extents) < 0 else (*shape[:2], *extents)


_COMPLETIONS: Mapping[str, Callable[[Node, Shape, Sequence[Array | None]], Shape | None]] = {
    "AveragePool": _pool,
    "LpPool": _pool,
    "MaxPool": _pool,
    "OneHot": _one_hot,
}
