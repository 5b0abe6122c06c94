"""Shapes of operands, checked before inference and after it, and shapes that inference has wrong (onnx 1.23.2).

Inference crashes on some operands that don't fit (found by fuzzing), and refuses others in words of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from tunewright.graph.ir import Array, Node

from ..evaluation.images import CROP_AND_RESIZE
from ..evaluation.onnx_form import MAX_RANK, TypeFault
from ..evaluation.recurrent import ACTIVATIONS, GATES
from ..evaluation.windows import (
    dilated_kernel,
)
from .protobuf import StructuralFault

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
Values = Sequence[Array | None]


_LENIENT_OPS = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Ops that don't look at their axis where one scale serves all."""

_AXES_INPUT = {"CumProd": 1, "CumSum": 1, "Pad": 3, "Slice": 3, "Squeeze": 1, "Unsqueeze": 1}


_SINGLE_INPUTS: Mapping[str, Mapping[int, str]] = {
    "Clip": {1: "min", 2: "max"},
    "CumProd": {1: "axis"},
    "CumSum": {1: "axis"},
    "Dropout": {1: "ratio", 2: "training_mode"},
    "If": {0: "cond"},
    "Loop": {0: "M", 1: "cond"},
    "NonMaxSuppression": {2: "max_output_boxes_per_class", 3: "iou_threshold", 4: "score_threshold"},
    "OneHot": {1: "depth"},
    "Pad": {2: "constant_value"},
    "Range": {0: "start", 1: "limit", 2: "delta"},
    "TopK": {1: "K"},
    "Trilu": {1: "k"},
}
"""Inputs that are one number, and what ONNX calls them."""


def check_operands(node: Node, ranks: Sequence[int | None], shapes: Shapes, values: Values) -> None:
    """Raises TypeFault for operands that don't fit, and StructuralFault where no other sizes would help.

    `ranks`, `shapes` and `values` go with the node's inputs; None: not known.
    """
    if node.domain:
        return
    rank = ranks[0] if ranks else None
    reach = MAX_RANK if rank is None or node.op in _LENIENT_OPS else rank
    outward = 1 if node.op in ("OneHot", "ConcatFromSequence", "Flatten", "SequenceMap", "SplitToSequence") else 0
    axis = node.attrs.get("axis")
    if isinstance(axis, int) and not -max(reach, 1) - outward <= axis < max(reach, 1) + outward:
        raise StructuralFault(f"axis {axis} of {reach} dimensions")
    for position, name in _SINGLE_INPUTS.get(node.op, {}).items():
        shape = shapes[position] if position < len(shapes) else None
        if shape is not None and prod(shape) != 1:
            raise TypeFault(f"input {name} has shape {list(shape)}; it must be one number")
    place = _AXES_INPUT.get(node.op, 1 if node.op.startswith("Reduce") else None)
    axes = node.attrs.get("axes")
    if place is not None and place < len(values) and values[place] is not None:
        axes = np.asarray(values[place]).reshape(-1).tolist()
    if axes is not None:
        count = reach + (len(axes) if node.op == "Unsqueeze" else 0)
        if len(axes) > 2 * MAX_RANK or any(not -max(count, 1) <= axis < max(count, 1) for axis in axes):
            raise StructuralFault(f"axes {str(axes[:8])[1:-1]} of {count} dimensions")
    special = _OPERAND_CHECKS.get(node.op)
    if special is not None:
        special(node, rank, shapes, values)


def _split(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    parts = node.attrs.get("num_outputs", len(node.outputs))
    sizes = node.attrs.get("split", values[1] if len(values) > 1 else None)
    count = len(node.outputs) if sizes is None else len(np.asarray(sizes).reshape(-1))
    if parts != len(node.outputs) or count != len(node.outputs):
        raise StructuralFault(
            f"{len(node.outputs)} outputs where the attributes say {parts if sizes is None else count}"
        )


def _pad(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    pads = node.attrs.get("pads", values[1] if len(values) > 1 else None)
    axes = values[3] if len(values) > 3 else None
    if len(node.inputs) > 3 and axes is None:
        return
    count = rank if axes is None else axes.size
    if pads is not None and count is not None and np.size(pads) != 2 * count:
        raise StructuralFault(
            f"{np.size(pads)} pads for {count} axes, which need {2 * count}: all beginnings, then all ends"
        )


_PER_DIMENSION = {"strides": 1, "dilations": 1, "kernel_shape": 1, "pads": 2, "output_padding": 1}


def _windows(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    spatial = len(node.attrs.get("kernel_shape", ())) if rank is None else rank - 2
    for name, count in _PER_DIMENSION.items():
        attribute = node.attrs.get(name)
        if attribute is not None and len(attribute) != count * spatial and (spatial or rank is not None):
            ends = ", all beginnings, then all ends" if count > 1 else ""
            raise StructuralFault(
                f"attribute {name} has {len(attribute)} values; "
                f"{spatial} spatial dimensions need {count * spatial}{ends}"
            )
    if node.op != "ConvTranspose":
        _check_room(node, shapes)


def _check_room(node: Node, shapes: Shapes) -> None:
    """A window may be larger than what it slides over by a stride at most, which gives an empty result."""
    weight = WEIGHT_AND_BIAS[node.op][0] if node.op in WEIGHT_AND_BIAS else None
    shape, weight_shape = shapes[0], None if weight is None or weight >= len(shapes) else shapes[weight]
    kernel = tuple(weight_shape[2:]) if weight_shape is not None else tuple(node.attrs.get("kernel_shape", ()))
    if shape is None or len(kernel) != len(shape) - 2 or str(node.attrs.get("auto_pad")).startswith("SAME"):
        return
    count = len(kernel)
    pads = node.attrs.get("pads") or (0,) * 2 * count
    strides, dilations = (node.attrs.get(name) or (1,) * count for name in ("strides", "dilations"))
    for i, reach in enumerate(dilated_kernel(kernel, dilations)):
        room = shape[2 + i] + pads[i] + pads[count + i]
        steps = -((reach - room) // strides[i]) if node.attrs.get("ceil_mode") else (room - reach) // strides[i]
        if steps + 1 < 0:
            raise TypeFault(
                f"a window of {reach:,} does not fit into {room:,}, the extent of axis {2 + i} with its pads; "
                "a smaller kernel or dilation, or larger pads are needed"
            )


WEIGHT_AND_BIAS = {"Conv": (1, 2), "ConvInteger": (1, None), "ConvTranspose": (1, 2), "QLinearConv": (3, 8)}
"""Op -> the positions of weight and bias among its inputs."""

_WINDOWS = ("AveragePool", *WEIGHT_AND_BIAS, "LpPool", "MaxPool")


_TERMS = re.compile(r"\s*((\.\.\.|[A-Za-z])\s*)*")


def _einsum(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    """Inference never comes back from a term with two ellipses, or with what is no letter."""
    equation = str(node.attrs.get("equation", ""))
    operands, *result = equation.split("->")
    for term in (*operands.split(","), *result):
        if term.count("...") > 1:
            raise StructuralFault(f"more than one ellipsis in a term of {equation[:80]!r}")
        if len(result) > 1 or not _TERMS.fullmatch(term):
            raise StructuralFault(
                f"equation {equation[:80]!r} is none; it has letters, ... and commas, and one -> at most"
            )


def _group_norm(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    groups, shape = node.attrs["num_groups"], shapes[0]
    if shape is None:
        return
    if len(shape) < 2:
        raise StructuralFault(f"input X has shape {list(shape)}; it must have channels, along axis 1")
    if shape[1] % groups:
        raise TypeFault(f"{shape[1]} channels can't be divided into {groups} groups of equal size (num_groups)")
    expected_shape = (shape[1],) if node.version >= 21 else (groups,)
    for name, parameter_shape in (("scale", shapes[1]), ("bias", shapes[2])):
        if parameter_shape is not None and parameter_shape != expected_shape:
            whose = "channel" if node.version >= 21 else "group"
            raise TypeFault(
                f"input {name} has shape {list(parameter_shape)}; it must be {list(expected_shape)}, "
                f"one value a {whose}"
            )


def _per_sample(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    """BatchNormalization before opset 9 could normalise each element of a sample for itself."""
    if node.attrs.get("spatial", 1):
        return
    if len(node.outputs) > 1 or None in shapes:
        raise StructuralFault("spatial = 0 is supported for inference alone, and for inputs of known shape")


def _recurrent_activations(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    activations = node.attrs.get("activations")
    count = ACTIVATIONS[node.op] * (2 if node.attrs.get("direction") == "bidirectional" else 1)
    if activations and len(activations) < count:  # the default of RNN is for two directions, whatever there are
        raise StructuralFault(f"attribute activations names {len(activations)}; {count} are needed")


def _crop(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    if node.attrs.get("coordinate_transformation_mode") != CROP_AND_RESIZE:
        return
    count = 2 * len(node.attrs.get("axes") or range(rank or 0))
    shape = shapes[1] if len(shapes) > 1 and node.inputs[1] else (0,)
    if shape is not None and count and prod(shape) != count:
        raise TypeFault(
            f"{CROP_AND_RESIZE} needs the input roi with {count} values, all starts, then all ends; "
            f"it has {prod(shape)}"
        )


def _range(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    if len(values) > 2 and values[2] is not None and not values[2].any():
        raise TypeFault("delta is 0; it must be another number")


def _col2im(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    """Columns `[N, C * places of a block, number of blocks]`."""
    shape, image, block = shapes[0], values[1], values[2]
    if shape is None or image is None or block is None or len(shape) != 3:
        return
    if image.ndim != 1 or block.ndim != 1:
        raise StructuralFault("inputs image_shape and block_shape must have one dimension each")
    size, count = prod(block.tolist()), len(block)
    if size < 1 or shape[1] % size:
        raise TypeFault(f"{shape[1]} rows of columns can't be divided by the {size} elements of a block")
    pads, strides, dilations = (
        node.attrs.get(name) or (default,) * n * count
        for name, default, n in (("pads", 0, 2), ("strides", 1, 1), ("dilations", 1, 1))
    )
    if not len(image) == len(strides) == len(dilations) == len(pads) // 2 == count:
        raise StructuralFault(
            f"image_shape, pads, strides and dilations are not for the {count} dimensions of block_shape"
        )
    spans = zip(image.tolist(), dilated_kernel(block.tolist(), dilations), strides, strict=True)
    blocks = prod((n + pads[i] + pads[count + i] - reach) // stride + 1 for i, (n, reach, stride) in enumerate(spans))
    if shape[2] != blocks:
        raise TypeFault(f"{shape[2]} columns where the image has room for {blocks} blocks")


def _compress(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    if shapes[1] is not None and len(shapes[1]) != 1:
        raise StructuralFault(f"input condition has shape {list(shapes[1])}; it must have one dimension")


_OPERAND_CHECKS: Mapping[str, Callable[[Node, int | None, Shapes, Values], None]] = {
    "BatchNormalization": _per_sample,
    "Col2Im": _col2im,
    "Compress": _compress,
    "Einsum": _einsum,
    "GroupNormalization": _group_norm,
    "Pad": _pad,
    "Range": _range,
    "Resize": _crop,
    "Split": _split,
    **dict.fromkeys(GATES, _recurrent_activations),
    **dict.fromkeys(_WINDOWS, _windows),
}


# Checks after inference: it lets operands pass that don't fit, and kernels must not read out of bounds


def check_shapes(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> None:
    """Raises TypeFault for operands that don't fit.

    `inputs` and `outputs` are the shapes, all of them known; those of absent operands are empty.
    """
    check = _SHAPE_CHECKS.get(node.op) if not node.domain else None
    if check is not None:
        reason = check(node, inputs, outputs)
        if reason:
            shapes = ", ".join(str(list(shape)) for shape in inputs)
            raise TypeFault(f"{reason} (operands {shapes})")


Check = Callable[[Node, Sequence[Shape], Sequence[Shape]], str]
"""Returns what is wrong, or an empty string."""


def _broadcast(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    try:
        fits = np.broadcast_shapes(*inputs) == outputs[0]
    except ValueError:
        fits = False
    return "" if fits else "operands don't broadcast against each other"


def _is_broadcastable(shape: Shape, whole: Shape) -> bool:
    """Whether a shape broadcasts to `whole`."""
    padded = (1,) * (len(whole) - len(shape)) + shape
    return len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(padded, whole, strict=True))


def _conv(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    weight, bias = WEIGHT_AND_BIAS[node.op]
    x, w = inputs[0], inputs[weight]
    group, kernel = node.attrs.get("group", 1), node.attrs.get("kernel_shape")
    if len(x) != len(w) or len(x) < 3:
        return f"an input of {len(x)} dimensions and a weight of {len(w)}; both need the same number, 3 or more"
    is_transposed = node.op == "ConvTranspose"
    channels, features = (w[0], w[1] * group) if is_transposed else (w[1] * group, w[0])
    if x[1] != channels:
        return f"the input has {x[1]} channels, and the weight is for {channels} ({group} group{'s' * (group > 1)})"
    if w[0] % group:
        return (
            f"{w[0]} {'channels' if is_transposed else 'features'} can't be divided into {group} groups of equal size"
        )
    if kernel and tuple(kernel) != w[2:]:
        return f"attribute kernel_shape is {list(kernel)}, and the weight has {list(w[2:])}"
    has_bias = bias is not None and len(node.inputs) > bias and bool(node.inputs[bias])
    if has_bias and inputs[bias or 0] != (features,):
        return f"the bias has shape {list(inputs[bias or 0])}; the result has {features} channels"
    return "" if len(outputs[0]) == len(x) and outputs[0][:2] == (x[0], features) else "the result has other channels"


def _quantisation(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    """One scale and zero point per tensor, per place of an axis, or per block along it."""
    x, scale, *zero = inputs
    axis = node.attrs.get("axis", 1)
    along = (x[axis],) if -len(x) <= axis < len(x) else ()
    if prod(scale) != 1 and scale != along and not (node.attrs.get("block_size", 0) and len(scale) == len(x)):
        return f"{list(scale)} is no scale for each place of axis {axis}"
    return "" if not zero or not node.inputs[2] or prod(zero[0]) == prod(scale) else "as many zero points as scales"


def _scatter_elements(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    data, indices, updates = inputs
    if len(data) != len(indices):
        return f"data of {len(data)} dimensions and indices of {len(indices)}; both need the same number"
    return "" if indices == updates else "indices and updates have different shapes"


def _scatter_nd(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    data, indices, updates = inputs
    if not indices or indices[-1] > len(data):
        return f"indices of {indices[-1] if indices else 0} numbers each for data of {len(data)} dimensions"
    expected_shape = (*indices[:-1], *data[indices[-1] :])
    return "" if updates == expected_shape else f"updates must have shape {list(expected_shape)}"


def _split_sizes(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    axis = node.attrs.get("axis", 0) % max(len(inputs[0]), 1)
    total = sum(shape[axis] for shape, name in zip(outputs, node.outputs, strict=True) if name)
    whole = all(node.outputs)
    fits = total == inputs[0][axis] if whole else total <= inputs[0][axis]
    return "" if fits else f"parts of {total} in all along an extent of {inputs[0][axis]}"


def _recurrent(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    """W `[D, G * H, I]`, R `[D, G * H, H]`, B `[D, 2 * G * H]`: kernels take them apart by these extents alone."""
    x, w, r, *rest = inputs
    gates = GATES[node.op]
    directions = 2 if node.attrs.get("direction", "forward") == "bidirectional" else 1
    hidden = node.attrs.get("hidden_size", r[-1] if r else 0)
    batch = x[0 if node.attrs.get("layout", 0) else 1] if len(x) == 3 else 0
    state = (batch, directions, hidden) if node.attrs.get("layout", 0) else (directions, batch, hidden)
    expected_shapes = [(directions, 2 * gates * hidden), (batch,), state, state, (directions, 3 * hidden)]
    operand_shapes = [rest[k] if name else None for k, name in enumerate(node.inputs[3:])]
    fits = len(x) == 3 and w == (directions, gates * hidden, x[2]) and r == (directions, gates * hidden, hidden)
    fits = fits and all(
        shape in (None, expected) for shape, expected in zip(operand_shapes, expected_shapes, strict=False)
    )
    return "" if fits else f"weights don't have the shapes of {directions} direction(s) of hidden size {hidden}"


_ARITHMETIC = """
Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul
Or Pow Sub Sum Where Xor
"""


def _fits(message: str, fits: Callable[[Node, Sequence[Shape], Sequence[Shape]], bool]) -> Check:
    return lambda node, inputs, outputs: "" if fits(node, inputs, outputs) else message


def _along(axis: int, shape: Shape) -> int:
    """An axis counted from the front."""
    return axis % max(len(shape), 1)


def _same_size(_: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    size = prod(inputs[0])
    return "" if size == prod(outputs[0]) else f"{size:,} elements can't be laid out as {list(outputs[0])}"


def _per_channel(node: Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> str:
    channels = inputs[0][1] if len(inputs[0]) > 1 else 1
    expected_shape = (channels,) if node.attrs.get("spatial", 1) else inputs[0][1:]
    fits = all(shape == expected_shape for shape in inputs[1:])
    return "" if fits else f"all operands but the first must have shape {list(expected_shape)}"


def _concat_fits(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    axis = _along(node.attrs["axis"], outputs[0])
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in inputs}
    return len(rest) == 1 and sum(shape[axis] for shape in inputs) == outputs[0][axis]


def _gather_elements_fits(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    data, indices = inputs
    axis = _along(node.attrs.get("axis", 0), data)
    pairs = enumerate(zip(indices, data, strict=False))
    return len(data) == len(indices) and all(a <= b or k == axis for k, (a, b) in pairs) and outputs[0] == indices


_norm_fits = _fits(
    "scale or bias don't have the shape of what is normalised",
    lambda n, i, _: all(_is_broadcastable(s, i[0][_along(n.attrs.get("axis", -1), i[0]) :]) for s in i[1:]),
)
_pool_fits = _fits(
    "not a batch of channels of images",
    lambda _, i, o: len(i[0]) == len(o[0]) > 2 and i[0][:2] == o[0][:2],
)
_product_fits = _fits(
    "inner extents differ", lambda _, i, __: bool(i[0] and i[1]) and i[0][-1] == i[1][max(len(i[1]) - 2, 0)]
)
_blocks_fit = _fits("blocks don't divide the extents", lambda _, i, o: len(i[0]) == 4 and prod(i[0]) == prod(o[0]))

_SHAPE_CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(_ARITHMETIC.split(), _broadcast),
    **dict.fromkeys(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _same_size),
    **dict.fromkeys(WEIGHT_AND_BIAS, _conv),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _per_channel),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _norm_fits),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks_fit),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantisation),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool_fits),
    "Concat": _fits("parts don't fit together", _concat_fits),
    "Expand": _fits("the operand doesn't broadcast to the result", lambda _, i, o: _is_broadcastable(i[0], o[0])),
    "GatherElements": _fits("indices reach beyond the data", _gather_elements_fits),
    "Gemm": _fits(
        "the third operand doesn't broadcast to the result",
        lambda _, i, o: len(i) < 3 or _is_broadcastable(i[2], o[0]),
    ),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _product_fits),
    "OneHot": _fits("depth is no number or values no pair", lambda _, i, __: i[2] == (2,) and prod(i[1]) == 1),
    "PRelu": _fits(
        "the second operand doesn't broadcast", lambda _, i, o: o[0] == i[0] and _is_broadcastable(i[1], i[0])
    ),
    **dict.fromkeys(GATES, _recurrent),
    "RoiAlign": _fits(
        "it takes a batch of images [N, C, H, W], regions [R, 4] and the images they are of [R]",
        lambda _, i, __: len(i[0]) == 4 and i[1][1:] == (4,) and i[2] == i[1][:1],
    ),
    **dict.fromkeys(("Scatter", "ScatterElements"), _scatter_elements),
    "ScatterND": _scatter_nd,
    "Split": _split_sizes,
    "Transpose": _fits(
        "perm is no permutation of the axes",
        lambda n, i, _: sorted(n.attrs.get("perm", range(len(i[0])))) == list(range(len(i[0]))),
    ),
}
