"""Operands that don't fit, and that onnx's shape inference lets pass or aborts the process over.

`check_before` keeps from inference what makes it crash (found by fuzzing onnx 1.23.2); `check_after` compares shapes
where inference doesn't, so that no kernel reads out of bounds. The one raises NeverFits, the other any TypeFault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from tunewright.graph.inference import MAX_RANK, TypeFault
from tunewright.graph.ir import Array, Node
from tunewright.graph.recurrent import GATES

Shape = tuple[int, ...]


class NeverFits(TypeFault):
    """What is wrong whatever the sizes are that the dimensions of a model are bound to."""


_LENIENT_OPS = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Ops that don't look at their axis where one scale serves all."""

_AXES_INPUT = {"CumSum": 1, "Pad": 3, "Slice": 3, "Squeeze": 1, "Unsqueeze": 1}


def check_before(node: Node, ranks: Sequence[int | None], values: Sequence[Array | None]) -> None:
    """`ranks` (None: unknown) and `values` (None: not known) go with the node's inputs."""
    if node.domain:
        return
    rank = ranks[0] if ranks else None
    reach = MAX_RANK if rank is None or node.op in _LENIENT_OPS else rank
    outward = 1 if node.op in ("OneHot", "ConcatFromSequence", "Flatten", "SequenceMap", "SplitToSequence") else 0
    axis = node.attrs.get("axis")
    if isinstance(axis, int) and not -max(reach, 1) - outward <= axis < max(reach, 1) + outward:
        raise NeverFits(f"axis {axis} of {reach} dimensions")
    for name in ("batch_axis", "time_axis", "batch_dims"):
        if not 0 <= node.attrs.get(name, 0) <= MAX_RANK:
            raise NeverFits(f"{name} {node.attrs[name]} is not between 0 and {MAX_RANK}")
    place = _AXES_INPUT.get(node.op, 1 if node.op.startswith("Reduce") else None)
    axes = node.attrs.get("axes")
    if place is not None and place < len(values) and values[place] is not None:
        axes = np.asarray(values[place]).reshape(-1).tolist()
    if axes is not None:
        _check_axes(axes, reach + (len(axes) if node.op == "Unsqueeze" else 0))
    for name in ("strides", "dilations", "kernel_shape"):
        if any(not 1 <= item <= 2**31 for item in node.attrs.get(name, ())):
            raise NeverFits(f"{name} {node.attrs[name]} must be positive")
    if node.attrs.get("group", 1) < 1 or node.attrs.get("blocksize", 1) < 1:
        raise NeverFits("group and blocksize must be positive")
    special = _BEFORE.get(node.op)
    if special is not None:
        special(node, rank, values)


def _check_axes(axes: Sequence[int], rank: int) -> None:
    if len(axes) > 2 * MAX_RANK or any(not -max(rank, 1) <= axis < max(rank, 1) for axis in axes):
        raise NeverFits(f"axes {str(axes[:8])[1:-1]} of {rank} dimensions")


def _split(node: Node, rank: int | None, values: Sequence[Array | None]) -> None:
    parts = node.attrs.get("num_outputs", len(node.outputs))
    sizes = node.attrs.get("split", values[1] if len(values) > 1 else None)
    count = len(node.outputs) if sizes is None else len(np.asarray(sizes).reshape(-1))
    if parts != len(node.outputs) or count != len(node.outputs):
        raise NeverFits(f"{len(node.outputs)} outputs where the attributes say {parts if sizes is None else count}")


def _pad(node: Node, rank: int | None, values: Sequence[Array | None]) -> None:
    pads = node.attrs.get("pads", values[1] if len(values) > 1 else None)
    axes = values[3] if len(values) > 3 else None
    if len(node.inputs) > 3 and axes is None:
        return
    count = rank if axes is None else axes.size
    if pads is not None and count is not None and np.size(pads) != 2 * count:
        raise NeverFits(f"{np.size(pads)} pads for {count} axes")


def _windows(node: Node, rank: int | None, values: Sequence[Array | None]) -> None:
    spatial = len(node.attrs.get("kernel_shape", ())) if rank is None else rank - 2
    for name, count in (("strides", 1), ("dilations", 1), ("kernel_shape", 1), ("pads", 2), ("output_padding", 1)):
        given = node.attrs.get(name)
        if given is not None and len(given) != count * spatial and (spatial or rank is not None):
            raise NeverFits(f"{len(given)} {name} for {spatial} spatial dimensions")
    if any(not 0 <= item <= 2**31 for item in (*node.attrs.get("pads", ()), *node.attrs.get("output_padding", ()))):
        raise NeverFits("pads must not be negative")


_WEIGHT_AND_BIAS = {"Conv": (1, 2), "ConvInteger": (1, None), "ConvTranspose": (1, 2), "QLinearConv": (3, 8)}
"""Which inputs of a convolution these are."""

_WINDOWS = ("AveragePool", *_WEIGHT_AND_BIAS, "LpPool", "MaxPool")


def _einsum(node: Node, rank: int | None, values: Sequence[Array | None]) -> None:
    """Inference never comes back from a term with two ellipses."""
    for term in str(node.attrs.get("equation", "")).replace("->", ",").split(","):
        if term.count("...") > 1:
            raise NeverFits(f"more than one ellipsis in a term of {str(node.attrs['equation'])[:80]!r}")


_BEFORE: Mapping[str, Callable[[Node, int | None, Sequence[Array | None]], None]] = {
    "Einsum": _einsum,
    "Pad": _pad,
    "Split": _split,
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
    group = node.attrs.get("group", 1)
    if len(x) != len(w) or len(x) < 3:
        return "input and weight of different rank"
    if node.op == "ConvTranspose":
        fits, features = x[1] == w[0] and w[0] % group == 0, w[1] * group
    else:
        fits, features = x[1] == w[1] * group and w[0] % group == 0, w[0]
    kernel = node.attrs.get("kernel_shape")
    has_bias = bias is not None and len(node.inputs) > bias and bool(node.inputs[bias])
    if not fits or (kernel and tuple(kernel) != w[2:]) or (has_bias and inputs[bias or 0] != (features,)):
        return f"channels, group {group}, kernel and weight don't agree"
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
    return "" if all(shape == (channels,) for shape in inputs[1:]) else "parameters are not one a channel"


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
    "Split": _split_sizes,
    "Transpose": _transpose,
}
