"""The normal form: one way to write each op, whatever opset and exporter a model comes from.

Where the shapes of a node's operands and results are known, the node is brought to this form; otherwise it stays as
ONNX has it (only running it tells, so it has no native kernel anyway).

- Every attribute that has a default is present. Axes are counted from the front. Parameters that ONNX takes as tensors
  and that are known are attributes, as listed in `onnx_form.PARAMETERS`; a node with an unknown one stays as it is.
- `Conv`, `ConvTranspose`, `MaxPool`, `AveragePool`, `LpPool`: `kernel_shape strides dilations pads` are explicit, there
  is no `auto_pad`, no `output_shape` (`output_padding` is explicit), and no `ceil_mode`: pads at the end grow instead
  (where an AveragePool counts some of its pads, those are a Pad before it).
- `Reshape(shape)`: the whole shape, no 0 or -1 with a meaning. `Squeeze`, `Unsqueeze` and `Flatten` are Reshapes.
- `Expand(shape)`: the shape of the result. `Tile(repeats)`. `Transpose(perm)`. `Concat(axis)`. `Gather(axis)`.
- `Slice(starts, ends, axes, steps)`: all explicit and within bounds; with a negative step an end of -extent - 1 means
  down to the first element. `Split(axis, split)`: the size of every part.
- `Pad(pads, mode, value)`: pads for all axes (all beginnings, then all ends), none negative (a Slice crops before);
  `value` only with mode "constant".
- `Reduce*(axes, keepdims)`: sorted axes, all of them where ONNX has none given.
- `Clip(min, max)`: a limit that there is not is absent.
- `Softmax`, `LogSoftmax`, `Hardmax`: over one axis, as since opset 13; the older flattening is done by Reshapes.
- `TopK(k, axis, largest, sorted)`, `CumSum` and `CumProd(axis, exclusive, reverse)`, `Trilu(k, upper)`.
- `Resize`: either `scales` (of every axis) or `sizes` (the shape of the result; a scale is then result / extent).
  `Upsample` and the Resize of opset 10 are Resizes with "asymmetric" coordinates and "floor", or "ceil" to shrink.
- `BatchNormalization(epsilon)` is the one of inference. `Dropout` is an Identity. `Swish` is `Silu`: x * sigmoid(x).
  `CastLike` is a `Cast`. `LayerNormalization(axis, epsilon)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Array, Node, TensorType

from ..evaluation.images import CROP_AND_RESIZE, aspect_scale, scaled_extent, whole_roi
from ..evaluation.onnx_form import NORMAL_VERSION, REDUCTIONS, cast_version, element_type
from ..evaluation.windows import dilated_kernel, transposed_window_attributes, window_attributes

Normaliser = Callable[[Draft, Node], Node | None]


class _Unknown(Exception):
    """A parameter that only running the model tells."""


def normal(draft: Draft, node: Node) -> Node:
    """The node in the normal form; nodes that it needs are added to the draft."""
    if node.domain or node.op not in _NORMALISERS:
        return node
    known = (draft.types[name].shape is not None for name in (*node.inputs, *node.outputs) if name)
    if node.op not in ("Cast", "CastLike", "Dropout") and not all(known):
        return node
    try:
        return _NORMALISERS[node.op](draft, node) or node
    except _Unknown:
        return node


def _node(node: Node, attrs: Mapping[str, Any], op: str = "", inputs: tuple[str, ...] | None = None) -> Node:
    inputs = node.inputs if inputs is None else inputs
    version = max(NORMAL_VERSION, node.version)
    return replace(node, op=op or node.op, inputs=inputs, attrs=dict(attrs), version=version)


def _shape(draft: Draft, name: str) -> tuple[int, ...]:
    shape = draft.shape(name)
    assert shape is not None
    return shape


def _integers(draft: Draft, node: Node, position: int, attr: str) -> tuple[int, ...] | None:
    """A parameter that is an attribute in old opsets and an input in new ones; None if it is absent.

    Raises _Unknown if it is given and not known.
    """
    if attr in node.attrs:
        value = node.attrs[attr]
        return (value,) if isinstance(value, int) else tuple(map(int, value))
    name = node.input(position)
    if not name:
        return None
    array = draft.array(name)
    if array is None:
        raise _Unknown
    return tuple(map(int, array.reshape(-1)))


def _conv(draft: Draft, node: Node) -> Node:
    kernel = _shape(draft, node.inputs[3 if node.op == "QLinearConv" else 1])[2:]
    windows = window_attributes(node.attrs, _shape(draft, node.inputs[0])[2:], kernel)
    return _node(node, {**windows, "group": node.attrs["group"]})


def _conv_transpose(draft: Draft, node: Node) -> Node:
    extents = _shape(draft, node.inputs[0])[2:]
    kernel = _shape(draft, node.inputs[1])[2:]
    return _node(node, {**transposed_window_attributes(node.attrs, extents, kernel), "group": node.attrs["group"]})


def _pool(draft: Draft, node: Node) -> Node:
    extents, results = (_shape(draft, name)[2:] for name in (node.inputs[0], node.outputs[0]))
    kernel = tuple(node.attrs["kernel_shape"])
    windows = window_attributes(node.attrs, extents, kernel)
    attrs: dict[str, Any] = dict(windows)
    if node.op == "LpPool":
        attrs["p"] = node.attrs["p"]
    if len(node.outputs) > 1:
        attrs["storage_order"] = int(node.attrs.get("storage_order", 0))
    count = len(kernel)
    node_pads, pads = windows["pads"], list(windows["pads"])
    spans = zip(extents, results, dilated_kernel(kernel, windows["dilations"]), strict=True)
    for i, (extent, result, reach) in enumerate(spans):
        needed = (result - 1) * windows["strides"][i] + reach - extent - pads[i]
        pads[count + i] = max(pads[count + i], needed)
    source = node.inputs[0]
    if node.op == "AveragePool":
        attrs["count_include_pad"] = int(any(node_pads) and bool(node.attrs.get("count_include_pad", 0)))
        if attrs["count_include_pad"] and tuple(pads) != node_pads:
            # the pads asked for count, the ones from rounding don't
            around = (0, 0, *node_pads[:count], 0, 0, *node_pads[count:])
            source = draft.emit("Pad", source, pads=around, mode="constant", value=0.0)
            pads = [pad - node_pad for pad, node_pad in zip(pads, node_pads, strict=True)]
            attrs["count_include_pad"] = 0
    attrs["pads"] = tuple(pads)
    return _node(node, attrs, inputs=(source,))


def _reshape(draft: Draft, node: Node) -> Node:
    shape = _shape(draft, node.outputs[0])
    return _node(node, {"shape": shape, **({"allowzero": 1} if 0 in shape else {})}, "Reshape", node.inputs[:1])


def _known_reshape(draft: Draft, node: Node) -> Node | None:
    _integers(draft, node, 1, "axes" if node.op in ("Squeeze", "Unsqueeze") else "shape")
    return _reshape(draft, node)


def _expand(draft: Draft, node: Node) -> Node:
    """Only for a known shape operand: one that is computed may not fit what was inferred."""
    _integers(draft, node, 1, "shape")
    return _node(node, {"shape": _shape(draft, node.outputs[0])}, inputs=node.inputs[:1])


def _slice(draft: Draft, node: Node) -> Node | None:
    shape = _shape(draft, node.inputs[0])
    starts, ends = (_integers(draft, node, k, name) or () for k, name in ((1, "starts"), (2, "ends")))
    axes = _integers(draft, node, 3, "axes") or tuple(range(len(starts)))
    steps = _integers(draft, node, 4, "steps") or (1,) * len(starts)
    parts: dict[int, tuple[int, int, int]] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= len(shape)
        extent = shape[axis]
        lowest, highest = (0, extent) if step > 0 else (-1, extent - 1)
        first, last = (place + extent if place < 0 else place for place in (start, end))
        first, last = min(max(first, 0), highest), min(max(last, lowest), highest)
        parts[axis] = first, -extent - 1 if last < 0 else last, step
    order = sorted(parts)
    first_, last_, step_ = zip(*(parts[axis] for axis in order), strict=True) if order else ((), (), ())
    attrs = {"starts": first_, "ends": last_, "axes": tuple(order), "steps": step_}
    return _node(node, attrs, inputs=node.inputs[:1])


def _split(draft: Draft, node: Node) -> Node:
    axis = node.attrs["axis"] % len(_shape(draft, node.inputs[0]))
    sizes = tuple(_shape(draft, name)[axis] if name else 0 for name in node.outputs)
    if not all(node.outputs):
        return node
    return _node(node, {"axis": axis, "split": sizes}, inputs=node.inputs[:1])


def _pad(draft: Draft, node: Node) -> Node | None:
    shape = _shape(draft, node.inputs[0])
    rank = len(shape)
    axis_pads = _integers(draft, node, 1, "pads") or ()
    pad_axes = _integers(draft, node, 3, "axes")
    axes = [axis % rank for axis in (range(rank) if pad_axes is None else pad_axes)]
    mode = node.attrs.get("mode", "constant")
    name = node.input(2)
    value = draft.array(name) if name else np.asarray(node.attrs.get("value", 0))
    if value is None:
        return None
    pads = [0] * 2 * rank
    for k, axis in enumerate(axes):
        pads[axis], pads[rank + axis] = axis_pads[k], axis_pads[len(axes) + k]
    starts = [max(-before, 0) for before in pads[:rank]]
    ends = [extent + min(after, 0) for extent, after in zip(shape, pads[rank:], strict=True)]
    if any(start > end for start, end in zip(starts, ends, strict=True)):
        return None  # what is cut off at one end reaches into the pads at the other
    source = node.inputs[0]
    if min(pads, default=0) < 0:
        source = _cut(draft, source, starts, ends)
    attrs: dict[str, Any] = {"pads": tuple(max(pad, 0) for pad in pads), "mode": mode}
    if mode == "constant":
        attrs["value"] = value.reshape(-1)[0].item()
    return _node(node, attrs, inputs=(source,))


def _cut(draft: Draft, source: str, starts: Sequence[int], ends: Sequence[int]) -> str:
    """A slice from the starts to the ends of all axes."""
    shape = _shape(draft, source)
    axes = [axis for axis, extent in enumerate(shape) if (starts[axis], ends[axis]) != (0, extent)]
    each = {"starts": starts, "ends": ends, "axes": range(len(shape)), "steps": [1] * len(shape)}
    parts: dict[str, Any] = {name: tuple(values[axis] for axis in axes) for name, values in each.items()}
    return draft.emit("Slice", source, **parts)


def _reduce(draft: Draft, node: Node) -> Node | None:
    rank = len(_shape(draft, node.inputs[0]))
    axes = _integers(draft, node, 1, "axes")
    if not axes and node.attrs.get("noop_with_empty_axes", 0):
        return _reduce_singles(draft, node)
    fold_axes = tuple(sorted({axis % rank for axis in axes})) if axes and rank else tuple(range(rank))
    return _node(node, {"axes": fold_axes, "keepdims": node.attrs["keepdims"]}, inputs=node.inputs[:1])


_SINGLES: Mapping[str, str] = {
    **dict.fromkeys(("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), "Identity"),
    "ReduceL1": "Abs",
    "ReduceL2": "Abs",
    "ReduceLogSum": "Log",
    "ReduceSumSquare": "Mul",
}
"""What folds compute of each element alone."""


def _reduce_singles(draft: Draft, node: Node) -> Node | None:
    x, op = node.inputs[0], _SINGLES[node.op]
    if op == "Log" and "float" not in draft.types[x].dtype:
        return None
    return _node(node, {}, op, (x, x) if op == "Mul" else (x,))


def _clip(draft: Draft, node: Node) -> Node | None:
    limits: dict[str, Any] = {}
    for position, name in ((1, "min"), (2, "max")):
        if name in node.attrs:
            limits[name] = node.attrs[name]
        elif node.input(position):
            array = draft.array(node.inputs[position])
            if array is None or array.size != 1:
                return None
            limits[name] = array.item()
    return _node(node, limits, inputs=node.inputs[:1])


def _softmax(draft: Draft, node: Node) -> Node:
    shape = _shape(draft, node.inputs[0])
    axis = node.attrs["axis"] % max(len(shape), 1)
    if node.version >= 13 or int(np.prod(shape[axis + 1 :])) == 1 or 0 in shape:
        return _node(node, {"axis": axis})
    rows, columns = (int(np.prod(part)) for part in (shape[:axis], shape[axis:]))
    flat = draft.emit("Reshape", node.inputs[0], shape=(rows, columns))
    result = draft.emit(node.op, flat, axis=1)
    return _node(node, {"shape": shape}, "Reshape", (result,))


def _top_k(draft: Draft, node: Node) -> Node | None:
    k = _integers(draft, node, 1, "k")
    rank = len(_shape(draft, node.inputs[0]))
    attrs = {"k": k, "axis": node.attrs["axis"] % rank}
    attrs |= {name: node.attrs.get(name, 1) for name in ("largest", "sorted")}
    return _node(node, attrs, inputs=node.inputs[:1])


def _resize(draft: Draft, node: Node) -> Node | None:
    """Upsample (all opsets) and Resize (10 on)."""
    attrs = dict(node.attrs)
    old = node.op == "Upsample" or node.version < 11
    if attrs.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        return None
    shape, result = _shape(draft, node.inputs[0]), _shape(draft, node.outputs[0])
    place = node.input(1 if old else 2)
    scale_values = np.asarray(attrs.pop("scales")) if "scales" in attrs else draft.array(place) if place else None
    if place and scale_values is None:
        return None
    axes = [axis % len(shape) for axis in attrs.pop("axes", None) or range(len(shape))]
    if 0 in shape or 0 in result:
        return None
    if not old and attrs.get("coordinate_transformation_mode") == CROP_AND_RESIZE:
        attrs["roi"] = tuple(whole_roi(_known(draft, node.inputs[1]), axes, len(shape)))
    if attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch" and node.input(3):
        scale_values = _common_scale(draft, node, axes)
    scales = [1.0] * len(shape)
    if scale_values is not None and scale_values.size:
        for axis, scale in zip(axes, scale_values.reshape(-1), strict=True):
            scales[axis] = float(scale)
    inferred = tuple(int(extent * scale) for extent, scale in zip(shape, scales, strict=True))
    attrs |= {"scales": tuple(scales)} if inferred == result else {"sizes": result}
    if old:
        if attrs["mode"] == "nearest" and min(scales) < 1 < max(scales):
            return None  # rounds one way along some axes, and the other way along others
        rounding = "ceil" if min(scales) < 1 else "floor"
        attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
    attrs = {"antialias": 0, "cubic_coeff_a": -0.75, "exclude_outside": 0, "extrapolation_value": 0.0, **attrs}
    attrs.pop("keep_aspect_ratio_policy", None)
    return _node(node, attrs, "Resize", node.inputs[:1])


def _common_scale(draft: Draft, node: Node, axes: Sequence[int]) -> Array:
    """The scale of all axes where the aspect ratio is kept. Raises _Unknown where the result has other extents."""
    shape, result = _shape(draft, node.inputs[0]), _shape(draft, node.outputs[0])
    sizes = _known(draft, node.inputs[3]).tolist()
    scale = aspect_scale(node.attrs["keep_aspect_ratio_policy"], shape, axes, sizes)
    if any(not result[axis] == scaled_extent(shape[axis], scale) == int(shape[axis] * scale) for axis in axes):
        raise _Unknown
    return np.full(len(axes), scale)


def _known(draft: Draft, name: str) -> Array:
    """The value of a tensor. Raises _Unknown if only a run tells."""
    array = draft.array(name)
    if array is None:
        raise _Unknown
    return array


def _batch_norm(draft: Draft, node: Node) -> Node | None:
    if node.attrs.get("training_mode", 0) or len(node.outputs) > 1:
        return None
    if not node.attrs.get("spatial", 1):
        return _norm_per_sample(draft, node)
    return _node(node, {"epsilon": node.attrs["epsilon"]})


def _norm_per_sample(draft: Draft, node: Node) -> Node:
    """Each element of a sample with its own parameters, all of the shape of a sample."""
    x, scale, bias, mean, variance = node.inputs
    deviation = draft.emit("Sqrt", draft.emit("Add", variance, draft.scalar_like(variance, node.attrs["epsilon"])))
    relative = draft.emit("Div", draft.emit("Sub", x, mean), deviation)
    return _node(node, {}, "Add", (draft.emit("Mul", relative, scale), bias))


def _eye_like(draft: Draft, node: Node) -> Node | None:
    """A constant: the input has but its shape to say."""
    shape, dtype = _shape(draft, node.outputs[0]), draft.types[node.outputs[0]].dtype
    if int(np.prod(shape)) > MAX_CONSTANT:
        return None
    eye = np.eye(shape[0], shape[1], k=int(node.attrs.get("k", 0))).astype(dtype)
    return _node(node, {}, "Identity", (draft.constant(eye),))


MAX_CONSTANT = 1 << 22
"""Most elements of a constant that no other constant gives."""


def _dropout(draft: Draft, node: Node) -> Node | None:
    training, ratio = (draft.array(name) if name else None for name in (node.input(2), node.input(1)))
    if node.input(2) and (training is None or (training.any() and node.input(1) and ratio is None)):
        return None
    share = 0.5 if ratio is None else float(ratio.item())
    if training is not None and training.any() and share:
        return _draw_dropout(draft, node, share)
    if len(node.outputs) > 1:  # a mask of ones
        shape = draft.shape(node.inputs[0])
        if shape is None:
            return None
        kind = TensorType(draft.types[node.outputs[1]].dtype, shape)
        draft.types[node.outputs[1]] = kind
        draft.constants[node.outputs[1]] = np.broadcast_to(np.ones((), kind.dtype), shape)
    return Node("Identity", node.inputs[:1], node.outputs[:1], {}, version=NORMAL_VERSION)


def _draw_dropout(draft: Draft, node: Node, ratio: float) -> Node | None:
    """With a seed each run keeps the same elements: those that numpy's generator draws, as in ONNX's evaluator."""
    shape, dtype, seed = draft.shape(node.inputs[0]), draft.types[node.inputs[0]].dtype, node.attrs.get("seed")
    if seed is None or not 0 <= seed < 1 << 32 or ratio >= 1 or shape is None or int(np.prod(shape)) > MAX_CONSTANT:
        return None
    mask = np.random.RandomState(seed).uniform(0, 1.0, shape) >= ratio
    if len(node.outputs) > 1:
        draft.types[node.outputs[1]] = TensorType(draft.types[node.outputs[1]].dtype, shape)
        draft.constants[node.outputs[1]] = mask
    factors = draft.constant((mask * (1.0 / (1.0 - ratio))).astype(dtype))
    return Node("Mul", (node.inputs[0], factors), node.outputs[:1], {}, version=NORMAL_VERSION)


def _cast(draft: Draft, node: Node) -> Node:
    """Newer opsets add attributes for element types that don't occur here."""
    source, target = draft.types[node.inputs[0]].dtype, draft.types[node.outputs[0]].dtype
    attrs = {"to": element_type(target)}
    return replace(node, op="Cast", inputs=node.inputs[:1], attrs=attrs, version=cast_version(source, target))


def _layer_norm(draft: Draft, node: Node) -> Node | None:
    rank = len(_shape(draft, node.inputs[0]))
    if node.attrs.get("stash_type", 1) != 1 or (len(node.outputs) > 1 and any(node.outputs[1:])):
        return None
    attrs = {"axis": node.attrs["axis"] % rank, "epsilon": node.attrs["epsilon"]}
    return replace(_node(node, attrs), outputs=node.outputs[:1])


def _swish(draft: Draft, node: Node) -> Node:
    if node.attrs["alpha"] == 1.0:
        return _node(node, {}, "Silu")
    x = node.inputs[0]
    gate = draft.emit("Sigmoid", draft.emit("Mul", x, draft.scalar_like(x, node.attrs["alpha"])))
    return _node(node, {}, "Mul", (x, gate))


def _along_axis(op: str = "", position: int = 0, **defaults: Any) -> Normaliser:
    """For ops whose axis is one of the tensor at `position` among operands and results."""

    def normalise(draft: Draft, node: Node) -> Node:
        attrs = {"axis": 0, **defaults, **node.attrs}
        rank = len(_shape(draft, (*node.inputs, *node.outputs)[position]))
        return _node(node, {**attrs, "axis": attrs["axis"] % max(rank, 1)}, op)

    return normalise


def _cumulative(draft: Draft, node: Node) -> Node:
    (axis,) = _integers(draft, node, 1, "axis") or (0,)
    rank = len(_shape(draft, node.inputs[0]))
    return _node(node, {**node.attrs, "axis": axis % max(rank, 1)}, inputs=node.inputs[:1])


def _trilu(draft: Draft, node: Node) -> Node:
    (k,) = _integers(draft, node, 1, "k") or (0,)
    return _node(node, {"k": k, "upper": node.attrs["upper"]}, inputs=node.inputs[:1])


def _transpose(draft: Draft, node: Node) -> Node:
    rank = len(_shape(draft, node.inputs[0]))
    return _node(node, {"perm": tuple(node.attrs.get("perm") or range(rank)[::-1])})


_NORMALISERS: Mapping[str, Normaliser] = {
    **dict.fromkeys(("ArgMax", "ArgMin", "Concat", "Gather", "GatherElements"), _along_axis()),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze"), _known_reshape),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("Scatter", "ScatterElements"), _along_axis("ScatterElements", reduction="none")),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(REDUCTIONS, _reduce),
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Conv": _conv,
    "ConvInteger": _conv,
    "ConvTranspose": _conv_transpose,
    "CumProd": _cumulative,
    "CumSum": _cumulative,
    "DepthToSpace": lambda _, node: _node(node, {"mode": "DCR", **node.attrs}),
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _reshape,
    "LayerNormalization": _layer_norm,
    "EyeLike": _eye_like,
    "OneHot": _along_axis(position=-1),
    "Pad": _pad,
    "QLinearConv": _conv,
    "Slice": _slice,
    "Split": _split,
    "Swish": _swish,
    "Tile": lambda draft, node: _node(node, {"repeats": _integers(draft, node, 1, "repeats")}, inputs=node.inputs[:1]),
    "TopK": _top_k,
    "Transpose": _transpose,
    "Trilu": _trilu,
}
