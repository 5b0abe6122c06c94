"""How kernels slide over an input and how far results extend, worked out of the attributes that ONNX has for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Ints = tuple[int, ...]


def explicit(attrs: Mapping[str, Any], extents: Sequence[int], kernel: Sequence[int]) -> dict[str, Ints]:
    """Explicit strides, dilations and pads of a convolution or pooling over spatial `extents`."""
    count = len(kernel)
    strides = tuple(attrs.get("strides") or (1,) * count)
    dilations = tuple(attrs.get("dilations") or (1,) * count)
    pads = tuple(attrs.get("pads") or (0,) * 2 * count)
    mode = attrs.get("auto_pad") or "NOTSET"
    if mode.startswith("SAME"):
        totals = [
            max((-(-extent // stride) - 1) * stride + reach - extent, 0)
            for extent, stride, reach in zip(extents, strides, reaches(kernel, dilations), strict=True)
        ]
        pads = _shared_out(totals, more_at_end=mode == "SAME_UPPER")
    elif mode == "VALID":
        pads = (0,) * 2 * count
    return {"kernel_shape": tuple(kernel), "strides": strides, "dilations": dilations, "pads": pads}


def explicit_transposed(attrs: Mapping[str, Any], extents: Sequence[int], kernel: Sequence[int]) -> dict[str, Ints]:
    """The same of a ConvTranspose, and its `output_padding`."""
    windows = explicit({**attrs, "auto_pad": "NOTSET"}, extents, kernel)
    extra = list(attrs.get("output_padding") or (0,) * len(kernel))
    mode = attrs.get("auto_pad") or "NOTSET"
    asked = tuple(attrs.get("output_shape") or ())[-len(kernel) :]
    wanted = asked or tuple(extent * stride for extent, stride in zip(extents, windows["strides"], strict=True))
    if asked or mode.startswith("SAME"):
        totals = []
        for i, whole in enumerate(unpadded(windows, extents, extra)):
            total = whole - wanted[i]
            if asked:  # what SAME asks for can't be more than there is
                extra[i] += max(-total, 0)
            totals.append(max(total, 0))
        windows["pads"] = _shared_out(totals, more_at_end=mode == "SAME_UPPER")
    elif mode == "VALID":
        windows["pads"] = (0,) * 2 * len(kernel)
    return {**windows, "output_padding": tuple(extra)}


def _shared_out(totals: Sequence[int], *, more_at_end: bool) -> Ints:
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (*less, *more) if more_at_end else (*more, *less)


def reaches(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """How far one window extends, along each axis."""
    return [(k - 1) * dilation + 1 for k, dilation in zip(kernel, dilations, strict=True)]


def unpadded(windows: Mapping[str, Ints], extents: Sequence[int], extra: Sequence[int]) -> list[int]:
    """How far the result of a ConvTranspose extends before its pads are cut off."""
    spans = zip(extents, windows["strides"], reaches(windows["kernel_shape"], windows["dilations"]), extra, strict=True)
    return [(extent - 1) * stride + reach + more for extent, stride, reach, more in spans]


def places(windows: Mapping[str, Ints], extents: Sequence[int], *, ceil: bool) -> list[int]:
    """How many windows there are along each axis. With `ceil` one may hang over the end, but not begin behind it."""
    counts = []
    count = len(extents)
    for i, reach in enumerate(reaches(windows["kernel_shape"], windows["dilations"])):
        before, after, stride = windows["pads"][i], windows["pads"][count + i], windows["strides"][i]
        room = extents[i] + before + after - reach
        most = (-(-room // stride) if ceil else room // stride) + 1
        if ceil and (most - 1) * stride >= extents[i] + before:
            most -= 1
        counts.append(max(most, 0))
    return counts
