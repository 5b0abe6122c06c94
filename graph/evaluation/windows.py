"""Windows: explicit attributes of convolutions and pools, extents of their results, and corrections of such ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ..ir import Array
from .corrections import Correction, OnnxCall, computed_wide

Ints = tuple[int, ...]


def window_attributes(attrs: Mapping[str, Any], extents: Sequence[int], kernel: Sequence[int]) -> dict[str, Ints]:
    """Explicit strides, dilations and pads of a convolution or pooling over spatial `extents`."""
    count = len(kernel)
    strides = tuple(attrs.get("strides") or (1,) * count)
    dilations = tuple(attrs.get("dilations") or (1,) * count)
    pads = tuple(attrs.get("pads") or (0,) * 2 * count)
    mode = attrs.get("auto_pad") or "NOTSET"
    if mode.startswith("SAME"):
        totals = [
            max((-(-extent // stride) - 1) * stride + reach - extent, 0)
            for extent, stride, reach in zip(extents, strides, dilated_kernel(kernel, dilations), strict=True)
        ]
        pads = _split_pads(totals, more_at_end=mode == "SAME_UPPER")
    elif mode == "VALID":
        pads = (0,) * 2 * count
    return {"kernel_shape": tuple(kernel), "strides": strides, "dilations": dilations, "pads": pads}


def transposed_window_attributes(
    attrs: Mapping[str, Any], extents: Sequence[int], kernel: Sequence[int]
) -> dict[str, Ints]:
    """As `window_attributes`, for a ConvTranspose, with its `output_padding`."""
    windows = window_attributes({**attrs, "auto_pad": "NOTSET"}, extents, kernel)
    extra = list(attrs.get("output_padding") or (0,) * len(kernel))
    mode = attrs.get("auto_pad") or "NOTSET"
    output_shape = tuple(attrs.get("output_shape") or ())[-len(kernel) :]
    target_extents = output_shape or tuple(
        extent * stride for extent, stride in zip(extents, windows["strides"], strict=True)
    )
    if output_shape or mode.startswith("SAME"):
        totals = []
        for i, whole in enumerate(unpadded_extents(windows, extents, extra)):
            total = whole - target_extents[i]
            if output_shape:  # what SAME asks for can't be more than there is
                extra[i] += max(-total, 0)
            totals.append(max(total, 0))
        windows["pads"] = _split_pads(totals, more_at_end=mode == "SAME_UPPER")
    elif mode == "VALID":
        windows["pads"] = (0,) * 2 * len(kernel)
    return {**windows, "output_padding": tuple(extra)}


def _split_pads(totals: Sequence[int], *, more_at_end: bool) -> Ints:
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (*less, *more) if more_at_end else (*more, *less)


def dilated_kernel(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """The extent of one dilated window along each axis."""
    return [(k - 1) * dilation + 1 for k, dilation in zip(kernel, dilations, strict=True)]


def unpadded_extents(windows: Mapping[str, Ints], extents: Sequence[int], extra: Sequence[int]) -> list[int]:
    """The extents of a ConvTranspose's result before its pads are cut off."""
    spans = zip(
        extents, windows["strides"], dilated_kernel(windows["kernel_shape"], windows["dilations"]), extra, strict=True
    )
    return [(extent - 1) * stride + reach + more for extent, stride, reach, more in spans]


def window_counts(windows: Mapping[str, Ints], extents: Sequence[int], *, ceil: bool) -> list[int]:
    """The number of windows along each axis. With `ceil` one may hang over the end, but not begin behind it."""
    counts = []
    count = len(extents)
    for i, reach in enumerate(dilated_kernel(windows["kernel_shape"], windows["dilations"])):
        before, after, stride = windows["pads"][i], windows["pads"][count + i], windows["strides"][i]
        room = extents[i] + before + after - reach
        most = (-(-room // stride) if ceil else room // stride) + 1
        if ceil and (most - 1) * stride >= extents[i] + before:
            most -= 1
        counts.append(max(most, 0))
    return counts


# Windows that are spread over the result


@computed_wide
def _conv_transpose(call: OnnxCall, x: Any, w: Any, bias: Any = None) -> Any:
    """A convolution backwards: each element of the input spread over a window of the output."""
    extents, kernel = x.shape[2:], w.shape[2:]
    attrs = transposed_window_attributes(call.attrs, extents, kernel)
    groups = call.attrs.get("group", 1)
    split = np.reshape(x, (len(x), groups, x.shape[1] // groups, prod(extents)))
    weights = np.reshape(w, (groups, x.shape[1] // groups, w.shape[1], prod(kernel))).astype(x.dtype)
    columns = np.einsum("ngcs,gcmk->ngmks", split, weights, optimize=True)
    columns = columns.reshape(len(x), groups * w.shape[1], *kernel, *extents)
    whole = _overlap_add(columns, attrs, unpadded_extents(attrs, extents, attrs["output_padding"]))
    return _crop(whole if bias is None else whole + bias.reshape(-1, *(1,) * len(kernel)), attrs["pads"])


def _col2im(call: OnnxCall, x: Any, image: Any, block: Any) -> Any:
    """Columns, each of which was a window of an image, added up where they overlap."""
    kernel = tuple(map(int, block))
    attrs = window_attributes(call.attrs, image, kernel)
    counts = window_counts(attrs, [int(extent) for extent in image], ceil=False)
    columns = x.reshape(len(x), x.shape[1] // prod(kernel), *kernel, *counts)
    around = np.reshape(attrs["pads"], (2, -1)).sum(axis=0)
    return _crop(_overlap_add(columns, attrs, [int(extent) for extent in image + around]), attrs["pads"])


def _overlap_add(columns: Any, attrs: Mapping[str, Any], extents: Sequence[int]) -> Any:
    """Add up columns `[N, C, *kernel, *places]` where their windows overlap, as `[N, C, *extents]`."""
    kernel, strides = attrs["kernel_shape"], attrs["strides"]
    result = np.zeros((*columns.shape[:2], *extents), columns.dtype)
    counts = columns.shape[2 + len(kernel) :]
    if 0 in counts:
        return result
    for tap in np.ndindex(*kernel):
        starts = [t * dilation for t, dilation in zip(tap, attrs["dilations"], strict=True)]
        steps = [
            slice(start, start + (count - 1) * stride + 1, stride)
            for start, count, stride in zip(starts, counts, strides, strict=True)
        ]
        result[(slice(None), slice(None), *steps)] += columns[(slice(None), slice(None), *tap)]
    return result


def _crop(x: Any, pads: Sequence[int]) -> Any:
    """Remove the pads at the beginnings and ends of the spatial axes."""
    count = len(pads) // 2
    slices = [slice(pads[i], x.shape[2 + i] - pads[count + i]) for i in range(count)]
    return x[(slice(None), slice(None), *slices)]


# Pools


def _max_pool(call: OnnxCall, x: Any) -> tuple[Array, ...]:
    """The largest of each window, and where in the tensor it is."""
    attrs, counts, inner = _plan(call.attrs, x)
    lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
    values = _windows(x, attrs, counts, lowest)
    largest = values.max(axis=inner, initial=lowest)
    if call.output_count < 2:
        return (largest,)
    is_largest = values == np.expand_dims(largest, inner)
    is_largest |= values != values  # a NaN is the largest
    is_largest &= _windows(np.ones_like(x, np.bool_), attrs, counts, False)
    first = is_largest.reshape(*largest.shape, prod(attrs["kernel_shape"])).argmax(axis=-1)
    return largest, _flat(first, attrs, x.shape, columns_first=bool(call.attrs.get("storage_order", 0)))


@computed_wide
def _average_pool(call: OnnxCall, x: Any) -> Any:
    """The mean of each window, of the elements in the tensor or, on demand, of those in its padding too."""
    attrs, counts, inner = _plan(call.attrs, x)
    before, after = np.reshape(attrs["pads"], (2, -1)) * int(bool(call.attrs.get("count_include_pad", 0)))
    around = [(0, 0), (0, 0), *zip(before, after, strict=True)]
    counts_as_one = np.pad(np.ones((1, 1, *x.shape[2:]), np.bool_), around, constant_values=True)
    pads = tuple(pad - more for pad, more in zip(attrs["pads"], (*before, *after), strict=True))
    sizes = _windows(counts_as_one, {**attrs, "pads": pads}, counts, False).sum(axis=inner)
    return _windows(x, attrs, counts, 0).sum(axis=inner) / sizes


@computed_wide
def _lp_pool(call: OnnxCall, x: Any) -> Any:
    """The norm of each window."""
    attrs, counts, inner = _plan(call.attrs, x)
    p = call.attrs.get("p", 2)
    return _windows(np.abs(x) ** p, attrs, counts, 0).sum(axis=inner) ** (1 / p)


@computed_wide
def _global_average_pool(_: OnnxCall, x: Any) -> Any:
    return np.sum(x, axis=tuple(range(2, x.ndim)), keepdims=True) / np.float32(prod(x.shape[2:]))


@computed_wide
def _global_lp_pool(call: OnnxCall, x: Any) -> Any:
    p = call.attrs.get("p", 2)
    return np.sum(np.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)


def _plan(node_attrs: Mapping[str, Any], x: Any) -> tuple[dict[str, Any], list[int], tuple[int, ...]]:
    """Explicit attributes of a pool, how many windows there are along each axis, and the axes within a window."""
    extents = x.shape[2:]
    attrs = window_attributes(node_attrs, extents, node_attrs["kernel_shape"])
    counts = window_counts(attrs, extents, ceil=bool(node_attrs.get("ceil_mode", 0)))
    return attrs, counts, tuple(range(2 + len(extents), x.ndim + len(extents)))


def _windows(x: Any, attrs: Mapping[str, Any], counts: Sequence[int], outside: Any) -> Any:
    """`[N, C, *counts, *kernel]`: a view of the input with `outside` around it."""
    reach = dilated_kernel(attrs["kernel_shape"], attrs["dilations"])
    widths = [(0, 0), (0, 0)]
    for extent, before, count, stride, span in zip(
        x.shape[2:], attrs["pads"], counts, attrs["strides"], reach, strict=False
    ):
        widths.append((before, max((count - 1) * stride + span - extent - before, 0)))
    padded = np.pad(x, widths, constant_values=outside)
    if 0 in counts:
        return np.empty((*x.shape[:2], *counts, *attrs["kernel_shape"]), x.dtype)
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, x.ndim)))
    steps = [slice(None, count * stride, stride) for count, stride in zip(counts, attrs["strides"], strict=True)]
    taps = [slice(None, None, dilation) for dilation in attrs["dilations"]]
    return views[(slice(None), slice(None), *steps, *taps)]


def _flat(taps: Any, attrs: Mapping[str, Any], shape: Sequence[int], *, columns_first: bool) -> Array:
    """The index into the flat input of one tap per window, with the spatial axes in order or reversed."""
    places = np.indices(taps.shape, sparse=True)
    offsets = np.unravel_index(taps, attrs["kernel_shape"])
    within = [
        place * stride - before + offset * dilation
        for place, stride, before, offset, dilation in zip(
            places[2:], attrs["strides"], attrs["pads"], offsets, attrs["dilations"], strict=False
        )
    ]
    spatial = list(zip(within, shape[2:], strict=True))
    flat = places[0] * shape[1] + places[1]
    area = 0
    for at, extent in spatial[::-1] if columns_first else spatial:
        area = area * extent + at
    return np.asarray(flat * prod(shape[2:]) + area, np.int64)


WINDOWS: Mapping[str, Correction] = {
    "AveragePool": _average_pool,
    "Col2Im": _col2im,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global_average_pool,
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": lambda _, x: x.max(axis=tuple(range(2, x.ndim)), keepdims=True),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
}
