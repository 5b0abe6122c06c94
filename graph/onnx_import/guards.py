"""Operands that don't fit, and that onnx's shape inference lets pass or aborts the process over.

`check_before` keeps from inference what makes it crash (found by fuzzing onnx 1.23.2) and what it tells in words of its
own; `check_after` compares shapes where inference doesn't, so that no kernel reads out of bounds. Both raise TypeFault,
and NeverFits where no other sizes would help.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from tunewright.graph.inference import MAX_RANK, TypeFault
from tunewright.graph.ir import Array, Node
from tunewright.graph.recurrent import ACTIVATIONS, GATES
from tunewright.graph.resize import CROPPED
from tunewright.graph.windows import reaches

from .errors import NeverFits

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
Values = Sequence[Array | None]


_LENIENT_OPS = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Ops that don't look at their axis where one scale serves all."""

_AXES_INPUT = {"CumSum": 1, "Pad": 3, "Slice": 3, "Squeeze": 1, "Unsqueeze": 1}


_SINGLE_INPUTS: Mapping[str, Mapping[int, str]] = {
    "Clip": {1: "min", 2: "max"},
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


def check_before(node: Node, ranks: Sequence[int | None], shapes: Shapes, values: Values) -> None:
    """`ranks`, `shapes` (None: unknown) and `values` (None: not known) go with the node's inputs."""
    if node.domain:
        return
    rank = ranks[0] if ranks else None
    reach = MAX_RANK if rank is None or node.op in _LENIENT_OPS else rank
    outward = 1 if node.op in ("OneHot", "ConcatFromSequence", "Flatten", "SequenceMap", "SplitToSequence") else 0
    axis = node.attrs.get("axis")
    if isinstance(axis, int) and not -max(reach, 1) - outward <= axis < max(reach, 1) + outward:
        raise NeverFits(f"axis {axis} of {reach} dimensions")
    for position, name in _SINGLE_INPUTS.get(node.op, {}).items():
        shape = shapes[position] if position < len(shapes) else None
        if shape is not None and prod(shape) != 1:
            raise TypeFault(f"input {name} has shape {list(shape)}; it must be one number")
    place = _AXES_INPUT.get(node.op, 1 if node.op.startswith("Reduce") else None)
    axes = node.attrs.get("axes")
    if place is not None and place < len(values) and values[place] is not None:
        axes = np.asarray(values[place]).reshape(-1).tolist()
    if axes is not None:
        _check_axes(axes, reach + (len(axes) if node.op == "Unsqueeze" else 0))
    special = _BEFORE.get(node.op)
    if special is not None:
        special(node, rank, shapes, values)


def _check_axes(axes: Sequence[int], rank: int) -> None:
    if len(axes) > 2 * MAX_RANK or any(not -max(rank, 1) <= axis < max(rank, 1) for axis in axes):
        raise NeverFits(f"axes {str(axes[:8])[1:-1]} of {rank} dimensions")


def _split(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    parts = node.attrs.get("num_outputs", len(node.outputs))
    sizes = node.attrs.get("split", values[1] if len(values) > 1 else None)
    count = len(node.outputs) if sizes is None else len(np.asarray(sizes).reshape(-1))
    if parts != len(node.outputs) or count != len(node.outputs):
        raise NeverFits(f"{len(node.outputs)} outputs where the attributes say {parts if sizes is None else count}")


def _pad(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    pads = node.attrs.get("pads", values[1] if len(values) > 1 else None)
    axes = values[3] if len(values) > 3 else None
    if len(node.inputs) > 3 and axes is None:
        return
    count = rank if axes is None else axes.size
    if pads is not None and count is not None and np.size(pads) != 2 * count:
        raise NeverFits(f"{np.size(pads)} pads for {count} axes, which need {2 * count}: all beginnings, then all ends")


_PER_DIMENSION = {"strides": 1, "dilations": 1, "kernel_shape": 1, "pads": 2, "output_padding": 1}


def _windows(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    spatial = len(node.attrs.get("kernel_shape", ())) if rank is None else rank - 2
    for name, count in _PER_DIMENSION.items():
        given = node.attrs.get(name)
        if given is not None and len(given) != count * spatial and (spatial or rank is not None):
            ends = ", all beginnings, then all ends" if count > 1 else ""
            raise NeverFits(
                f"attribute {name} has {len(given)} values; {spatial} spatial dimensions need {count * spatial}{ends}"
            )
    if node.op != "ConvTranspose":
        _check_room(node, shapes)


def _check_room(node: Node, shapes: Shapes) -> None:
    """A window may be larger than what it slides over by a stride at most, which gives an empty result."""
    weight = _WEIGHT_AND_BIAS[node.op][0] if node.op in _WEIGHT_AND_BIAS else None
    shape, of_weight = shapes[0], None if weight is None or weight >= len(shapes) else shapes[weight]
    kernel = tuple(of_weight[2:]) if of_weight is not None else tuple(node.attrs.get("kernel_shape", ()))
    if shape is None or len(kernel) != len(shape) - 2 or str(node.attrs.get("auto_pad")).startswith("SAME"):
        return
    count = len(kernel)
    pads = node.attrs.get("pads") or (0,) * 2 * count
    strides, dilations = (node.attrs.get(name) or (1,) * count for name in ("strides", "dilations"))
    for i, reach in enumerate(reaches(kernel, dilations)):
        room = shape[2 + i] + pads[i] + pads[count + i]
        steps = -((reach - room) // strides[i]) if node.attrs.get("ceil_mode") else (room - reach) // strides[i]
        if steps + 1 < 0:
            raise TypeFault(
                f"a window of {reach:,} does not fit into {room:,}, the extent of axis {2 + i} with its pads; "
                "a smaller kernel or dilation, or larger pads are needed"
            )


_WEIGHT_AND_BIAS = {"Conv": (1, 2), "ConvInteger": (1, None), "ConvTranspose": (1, 2), "QLinearConv": (3, 8)}
"""Which inputs of a convolution these are."""

_WINDOWS = ("AveragePool", *_WEIGHT_AND_BIAS, "LpPool", "MaxPool")


_TERMS = re.compile(r"\s*((\.\.\.|[A-Za-z])\s*)*")


def _einsum(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    """Inference never comes back from a term with two ellipses, or with what is no letter."""
    equation = str(node.attrs.get("equation", ""))
    operands, *result = equation.split("->")
    for term in (*operands.split(","), *result):
        if term.count("...") > 1:
            raise NeverFits(f"more than one ellipsis in a term of {equation[:80]!r}")
        if len(result) > 1 or not _TERMS.fullmatch(term):
            raise NeverFits(f"equation {equation[:80]!r} is none; it has letters, ... and commas, and one -> at most")


def _group_norm(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    groups, shape = node.attrs["num_groups"], shapes[0]
    if shape is None:
        return
    if len(shape) < 2:
        raise NeverFits(f"input X has shape {list(shape)}; it must have channels, along axis 1")
    if shape[1] % groups:
        raise TypeFault(f"{shape[1]} channels can't be divided into {groups} groups of equal size (num_groups)")
    wanted = (shape[1],) if node.version >= 21 else (groups,)
    for name, given in (("scale", shapes[1]), ("bias", shapes[2])):
        if given is not None and given != wanted:
            whose = "channel" if node.version >= 21 else "group"
            raise TypeFault(f"input {name} has shape {list(given)}; it must be {list(wanted)}, one value a {whose}")


def _per_sample(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    """BatchNormalization before opset 9 could normalise each element of a sample for itself."""
    if node.attrs.get("spatial", 1):
        return
    if len(node.outputs) > 1 or None in shapes:
        raise NeverFits("spatial = 0 is supported for inference alone, and for inputs of known shape")


def _recurrent_activations(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    given = node.attrs.get("activations")
    wanted = ACTIVATIONS[node.op] * (2 if node.attrs.get("direction") == "bidirectional" else 1)
    if given and len(given) < wanted:  # the default of RNN is for two directions, whatever there are
        raise NeverFits(f"attribute activations names {len(given)}; {wanted} are needed")


def _cropped(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    if node.attrs.get("coordinate_transformation_mode") != CROPPED:
        return
    count = 2 * len(node.attrs.get("axes") or range(rank or 0))
    shape = shapes[1] if len(shapes) > 1 and node.inputs[1] else (0,)
    if shape is not None and count and prod(shape) != count:
        raise TypeFault(
            f"{CROPPED} needs the input roi with {count} values, all starts, then all ends; it has {prod(shape)}"
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
        raise NeverFits("inputs image_shape and block_shape must have one dimension each")
    size, count = prod(block.tolist()), len(block)
    if size < 1 or shape[1] % size:
        raise TypeFault(f"{shape[1]} rows of columns can't be divided by the {size} elements of a block")
    pads, strides, dilations = (
        node.attrs.get(name) or (default,) * n * count
        for name, default, n in (("pads", 0, 2), ("strides", 1, 1), ("dilations", 1, 1))
    )
    if not len(image) == len(strides) == len(dilations) == len(pads) // 2 == count:
        raise NeverFits(f"image_shape, pads, strides and dilations are not for the {count} dimensions of block_shape")
    spans = zip(image.tolist(), reaches(block.tolist(), dilations), strides, strict=True)
    blocks = prod((n + pads[i] + pads[count + i] - reach) // stride + 1 for i, (n, reach, stride) in enumerate(spans))
    if shape[2] != blocks:
        raise TypeFault(f"{shape[2]} columns where the image has room for {blocks} blocks")


def _compress(node: Node, rank: int | None, shapes: Shapes, values: Values) -> None:
    if shapes[1] is not None and len(shapes[1]) != 1:
        raise NeverFits(f"input condition has shape {list(shapes[1])}; it must have one dimension")


_BEFORE: Mapping[str, Callable[[Node, int | None, Shapes, Values], None]] = {
    "BatchNormalization": _per_sample,
    "Col2Im": _col2im,
    "Compress": _compress,
    "Einsum": _einsum,
    "GroupNormalization": _group_norm,
    "Pad": _pad,
    "Range": _range,
    "Resize": _cropped,
    "Split": _split,
    **dict.fromkeys(GATES, _recurrent_activations),
    **dict.fromkeys(_WINDOWS, _windows),
}


def check_after(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> None:
    """`inputs` and `outputs` are the shapes, all of them known; those of absent operands are empty."""
    check = _AFTER.get(node.op) if not node.domain else None
    if check is not None:
        reason = check(node, inputs, outputs)
        if reason:
            shapes = ", ".join(str(list(shape)) for shape in inputs)
            raise TypeFault(f"{reason} (operands {shapes})")


Check = Callable[[Node, Sequence[Shape], Sequence[Shape]], str]
"""Says what is wrong, or nothing."""


def _same_size(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    given, made = prod(inputs[0]), prod(outputs[0])
    return "" if given == made else f"{given:,} elements can't be laid out as {list(outputs[0])}"


def _broadcast(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    try:
        fits = np.broadcast_shapes(*inputs) == outputs[0]
    except ValueError:
        fits = False
    return "" if fits else "operands don't broadcast against each other"


def _into_first(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    return (
        "" if outputs[0] == inputs[0] and _fits_into(inputs[1], inputs[0]) else "the second operand doesn't broadcast"
    )


def _fits_into(given: Shape, whole: Shape) -> bool:
    """Whether a shape broadcasts to `whole`."""
    padded = (1,) * (len(whole) - len(given)) + given
    return len(given) <= len(whole) and all(a in (1, b) for a, b in zip(padded, whole, strict=True))


def _conv(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    weight, bias = _WEIGHT_AND_BIAS[node.op]
    x, w = inputs[0], inputs[weight]
    group, kernel = node.attrs.get("group", 1), node.attrs.get("kernel_shape")
    if len(x) != len(w) or len(x) < 3:
        return f"an input of {len(x)} dimensions and a weight of {len(w)}; both need the same number, 3 or more"
    is_transposed = node.op == "ConvTranspose"
    wanted, features = (w[0], w[1] * group) if is_transposed else (w[1] * group, w[0])
    if x[1] != wanted:
        return f"the input has {x[1]} channels, and the weight is for {wanted} ({group} group{'s' * (group > 1)})"
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


def _scaled(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    """A scale, and a zero point, for all, for each place of an axis, or for each block along it."""
    x, scale, *zero = inputs
    axis = node.attrs.get("axis", 1)
    along = (x[axis],) if -len(x) <= axis < len(x) else ()
    if prod(scale) != 1 and scale != along and not (node.attrs.get("block_size", 0) and len(scale) == len(x)):
        return f"{list(scale)} is no scale for each place of axis {axis}"
    return "" if not zero or not node.inputs[2] or prod(zero[0]) == prod(scale) else "as many zero points as scales"


def _pool(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    x, y = inputs[0], outputs[0]
    return "" if len(x) == len(y) > 2 and x[:2] == y[:2] else "not a batch of channels of images"


def _per_channel(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    channels = inputs[0][1] if len(inputs[0]) > 1 else 1
    wanted = (channels,) if node.attrs.get("spatial", 1) else inputs[0][1:]
    fits = all(shape == wanted for shape in inputs[1:])
    return "" if fits else f"all operands but the first must have shape {list(wanted)}"


def _regions(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    x, regions, batch = inputs
    fits = len(x) == 4 and regions[1:] == (4,) and batch == regions[:1]
    return "" if fits else "it takes a batch of images [N, C, H, W], regions [R, 4] and the images they are of [R]"


def _scatter_elements(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    data, indices, updates = inputs
    if len(data) != len(indices):
        return f"data of {len(data)} dimensions and indices of {len(indices)}; both need the same number"
    return "" if indices == updates else "indices and updates have different shapes"


def _scatter_nd(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    data, indices, updates = inputs
    if not indices or indices[-1] > len(data):
        return f"indices of {indices[-1] if indices else 0} numbers each for data of {len(data)} dimensions"
    wanted = (*indices[:-1], *data[indices[-1] :])
    return "" if updates == wanted else f"updates must have shape {list(wanted)}"


def _rows(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    axis = node.attrs.get("axis", -1) % len(inputs[0]) if inputs[0] else 0
    fits = all(_fits_into(shape, inputs[0][axis:]) for shape in inputs[1:])
    return "" if fits else "scale or bias don't have the shape of what is normalised"


def _gemm(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    fits = len(inputs) < 3 or _fits_into(inputs[2], outputs[0])
    return "" if fits else "the third operand doesn't broadcast to the result"


def _mat_mul(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    a, b = inputs[:2]
    return "" if a and b and a[-1] == b[max(len(b) - 2, 0)] else "inner extents differ"


def _gather_elements(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    data, indices = inputs
    axis = node.attrs.get("axis", 0) % max(len(data), 1)
    fits = len(data) == len(indices) and all(
        a <= b or k == axis for k, (a, b) in enumerate(zip(indices, data, strict=False))
    )
    return "" if fits and outputs[0] == indices else "indices reach beyond the data"


def _split_sizes(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    axis = node.attrs.get("axis", 0) % max(len(inputs[0]), 1)
    total = sum(shape[axis] for shape, name in zip(outputs, node.outputs, strict=True) if name)
    whole = all(node.outputs)
    fits = total == inputs[0][axis] if whole else total <= inputs[0][axis]
    return "" if fits else f"parts of {total} in all along an extent of {inputs[0][axis]}"


def _concat(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    axis = node.attrs["axis"] % max(len(outputs[0]), 1)
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in inputs}
    fits = len(rest) == 1 and sum(shape[axis] for shape in inputs) == outputs[0][axis]
    return "" if fits else "parts don't fit together"


def _expand(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    return "" if _fits_into(inputs[0], outputs[0]) else "the operand doesn't broadcast to the result"


def _transpose(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    perm = node.attrs.get("perm", range(len(inputs[0]))[::-1])
    return "" if sorted(perm) == list(range(len(inputs[0]))) else "perm is no permutation of the axes"


def _blocks(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    if len(inputs[0]) != 4 or prod(inputs[0]) != prod(outputs[0]):
        return "blocks don't divide the extents"
    return ""


def _one_hot(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    return "" if inputs[2] == (2,) and prod(inputs[1]) == 1 else "depth is no number or values no pair"


def _recurrent(node: Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    """W `[D, G * H, I]`, R `[D, G * H, H]`, B `[D, 2 * G * H]`: kernels take them apart by these extents alone."""
    x, w, r, *rest = inputs
    gates = GATES[node.op]
    directions = 2 if node.attrs.get("direction", "forward") == "bidirectional" else 1
    hidden = node.attrs.get("hidden_size", r[-1] if r else 0)
    batch = x[0 if node.attrs.get("layout", 0) else 1] if len(x) == 3 else 0
    state = (batch, directions, hidden) if node.attrs.get("layout", 0) else (directions, batch, hidden)
    wanted = [(directions, 2 * gates * hidden), (batch,), state, state, (directions, 3 * hidden)]
    given = [rest[k] if name else None for k, name in enumerate(node.inputs[3:])]
    fits = len(x) == 3 and w == (directions, gates * hidden, x[2]) and r == (directions, gates * hidden, hidden)
    fits = fits and all(shape in (None, want) for shape, want in zip(given, wanted, strict=False))
    return "" if fits else f"weights don't have the shapes of {directions} direction(s) of hidden size {hidden}"


_ARITHMETIC = """
Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul
Or Pow Sub Sum Where Xor
"""

_AFTER: Mapping[str, Check] = {
    **dict.fromkeys(_ARITHMETIC.split(), _broadcast),
    **dict.fromkeys(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _same_size),
    **dict.fromkeys(_WEIGHT_AND_BIAS, _conv),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _per_channel),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _rows),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _scaled),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
    "Concat": _concat,
    "Expand": _expand,
    "GatherElements": _gather_elements,
    "Gemm": _gemm,
    **dict.fromkeys(("MatMul", "MatMulInteger"), _mat_mul),
    "OneHot": _one_hot,
    "PRelu": _into_first,
    **dict.fromkeys(GATES, _recurrent),
    "RoiAlign": _regions,
    **dict.fromkeys(("Scatter", "ScatterElements"), _scatter_elements),
    "ScatterND": _scatter_nd,
    "Split": _split_sizes,
    "Transpose": _transpose,
}
