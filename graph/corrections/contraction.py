"""Convolutions and products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .. import windows
from ..ir import Array
from .corrected import Corrected


class ConvTranspose(Corrected):
    """A convolution backwards: each element of the input spread over a window of the output."""

    def _run(self, x: Any, w: Any, bias: Any = None, **_: Any) -> tuple[Array]:
        extents, kernel = x.shape[2:], w.shape[2:]
        attrs = windows.explicit_transposed(self._attrs(), extents, kernel)
        groups = self._attrs().get("group", 1)
        wide = np.result_type(x.dtype, np.float32)
        split = np.reshape(x, (len(x), groups, x.shape[1] // groups, prod(extents))).astype(wide)
        weights = np.reshape(w, (groups, x.shape[1] // groups, w.shape[1], prod(kernel))).astype(wide)
        columns = np.einsum("ngcs,gcmk->ngmks", split, weights, optimize=True)
        columns = columns.reshape(len(x), groups * w.shape[1], *kernel, *extents)
        whole = _spread(columns, attrs, windows.unpadded(attrs, extents, attrs["output_padding"]))
        result = whole if bias is None else whole + bias.reshape(-1, *(1,) * len(kernel))
        return (_cropped(result, attrs["pads"]).astype(x.dtype),)


class Col2Im(Corrected):
    """Columns, each of which was a window of an image, added up where they overlap."""

    def _run(self, x: Any, image: Any, block: Any, **_: Any) -> tuple[Array]:
        kernel = tuple(map(int, block))
        attrs = windows.explicit(self._attrs(), image, kernel)
        counts = windows.places(attrs, [int(extent) for extent in image], ceil=False)
        columns = x.reshape(len(x), x.shape[1] // prod(kernel), *kernel, *counts)
        around = np.reshape(attrs["pads"], (2, -1)).sum(axis=0)
        return (_cropped(_spread(columns, attrs, [int(extent) for extent in image + around]), attrs["pads"]),)


def _spread(columns: Any, attrs: Mapping[str, Any], extents: Sequence[int]) -> Any:
    """`[N, C, *extents]` from `[N, C, *kernel, *places]`: what each place gives to each tap of its window."""
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


def _cropped(x: Any, pads: Sequence[int]) -> Any:
    """Without the pads at the beginnings and ends of the spatial axes."""
    count = len(pads) // 2
    kept = [slice(pads[i], x.shape[2 + i] - pads[count + i]) for i in range(count)]
    return x[(slice(None), slice(None), *kept)]


class Gemm(Corrected):
    """alpha * A B + beta * C; integers are not multiplied by a 1 that is a float."""

    def _run(self, a: Any, b: Any, c: Any = None, **_: Any) -> tuple[Array]:
        given = self._attrs()
        alpha, beta = given.get("alpha", 1.0), given.get("beta", 1.0)
        left, right = (x.T if given.get(name, 0) else x for x, name in ((a, "transA"), (b, "transB")))
        total = left @ right
        if alpha != 1:
            total = total * alpha
        if c is not None and beta != 0:
            total = total + (c if beta == 1 else c * beta)
        return (np.asarray(total).astype(a.dtype),)


class MatMulInteger(Corrected):
    """A product of integers less their zero points."""

    def _run(self, a: Any, b: Any, zero_a: Any = None, zero_b: Any = None, **_: Any) -> tuple[Array]:
        left, right = (np.asarray(values, np.int32) for values in (a, b))
        if zero_a is not None:  # a vector is of rows
            left = left - (zero_a[:, None] if np.ndim(zero_a) == 1 and np.size(zero_a) > 1 else zero_a)
        if zero_b is not None:
            right = right - zero_b
        return (np.asarray(np.matmul(left, right), np.int32),)
