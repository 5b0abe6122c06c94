"""Discrete Fourier transforms as products with matrices of sines and cosines. Definitions: ONNX's of DFT and STFT."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Node

Floats = NDArray[np.float64]

DIRECT_ELEMENTS = 1 << 16
"""Largest matrix of a transform in one step; longer ones take two, of factors of the length."""

MAX_ELEMENTS = 1 << 20
"""Largest matrix of a transform in one step whose length has no factors, or whose result is real."""

MAX_FACTOR_ELEMENTS = 1 << 22
"""Largest matrices of a transform in two steps; others are left to those who have a fast transform."""


MIN_INVERSE = 256
"""Fewest numbers of a whole inverse transform of float32: where those of a short one are 0, ONNX's conformance cases
want the rounding errors of numpy's single precision, which are larger than ours."""


def dft(draft: Draft, node: Node) -> str | None:
    """Add what a DFT of known length and axis comes to; returns the result. None for those that are left.

    Inverse ones are computed in float64, for results to be 0 where they should.

    Before: `y = DFT(x) axis=1`, x `[2, 8, 1]`. After: `y = Reshape(MatMul(Reshape(x), w))`, w `[8, 16]`, y `[2, 8, 2]`.
    """
    x = node.inputs[0]
    shape, dtype = draft.shape(x) or (), draft.types[x].dtype
    axis, length = _axis(draft, node, len(shape)), _number(draft, node, 1)
    if axis is None or not 0 <= axis < len(shape) - 1 or (node.input(1) and length is None):
        return None
    count, parts = shape[axis], shape[-1]
    is_half, is_inverse = bool(node.attrs.get("onesided", 0)), bool(node.attrs.get("inverse", 0))
    if length is None:
        length = 2 * (count - 1) if is_half and is_inverse else count
    if 0 in shape or length < 1 or dtype not in ("float32", "float64") or parts not in (1, 2):
        return None
    if is_half and parts != (2 if is_inverse else 1):
        return None
    if is_inverse and not is_half and dtype == "float32" and 2 * length * prod(shape) // (count * parts) < MIN_INVERSE:
        return None
    most = length // 2 + 1 if is_half and is_inverse else length
    if count > most:
        x = draft.emit("Slice", x, starts=(0,), ends=(most,), axes=(axis,), steps=(1,))
    others = tuple(k for k in range(len(shape) - 1) if k != axis)
    order = (*others, axis, len(shape) - 1)
    x = draft.emit("Transpose", x, perm=order)
    result = _transform(draft, draft.cast(x, "float64") if is_inverse else x, length, is_half, is_inverse)
    if result is None:
        return None
    result = draft.emit("Transpose", result, perm=tuple(map(order.index, range(len(shape)))))
    return draft.cast(result, dtype) if is_inverse else result


def stft(draft: Draft, node: Node) -> str | None:
    """Add what an STFT of known step and length comes to; returns the result. None for those that are left.

    Before: `y = STFT(x, step, window)`, x `[2, 32, 1]`, step 8, window `[16]`.
    After: `f = Reshape(Gather(x, i)); y = Reshape(MatMul(f * window, w))`, i `[3, 16]`, w `[16, 18]`, y `[2, 3, 9, 2]`.
    """
    x, window = node.inputs[0], node.input(2)
    shape, step, length = draft.shape(x) or (), _number(draft, node, 1), _number(draft, node, 3)
    if length is None and window and not node.input(3):
        (length,) = draft.shape(window) or (0,)
    if len(shape) == 2:  # real numbers, of which some exporters leave that out
        shape = (*shape, 1)
        x = draft.emit("Reshape", x, shape=shape)
    if len(shape) != 3 or not step or not length or step < 0 or not 0 < length <= shape[1]:
        return None
    batch, extent, parts = shape
    is_half = bool(node.attrs.get("onesided", 1))
    if batch == 0 or parts not in (1, 2) or (is_half and parts != 1):
        return None
    if (window and draft.shape(window) != (length,)) or draft.types[x].dtype not in ("float32", "float64"):
        return None
    starts = np.arange((extent - length) // step + 1) * step
    frames = draft.emit("Gather", x, draft.constant(starts[:, None] + np.arange(length)), axis=1)
    if window:
        frames = draft.emit("Mul", frames, draft.emit("Reshape", window, shape=(length, 1)))
    return _transform(draft, frames, length, is_half, False)


def _axis(draft: Draft, node: Node, rank: int) -> int | None:
    if node.version < 20:
        axis: int | None = int(node.attrs.get("axis", 1))
    else:
        axis = _number(draft, node, 2) if node.input(2) else -2
    return None if axis is None else axis + rank if axis < 0 else axis


def _number(draft: Draft, node: Node, position: int) -> int | None:
    """The value of an operand of one element, if it is there and known."""
    array = draft.array(node.inputs[position]) if node.input(position) else None
    return int(array.item()) if array is not None and array.size == 1 else None


def _transform(draft: Draft, x: str, length: int, is_half: bool, is_inverse: bool) -> str | None:
    """The transform of x `[..., count, parts]`, of which there may be fewer than the length: `[..., results, 2]`.

    The inverse of a half one is real: `[..., length, 1]`.
    """
    *outer, count, parts = draft.shape(x) or ()
    results = length // 2 + 1 if is_half and not is_inverse else length
    elements, is_real = count * parts * results * 2, is_half and is_inverse
    if not is_real and elements > DIRECT_ELEMENTS:
        result = _in_two_steps(draft, x, length, results, is_inverse)
        if result is not None:
            return result
    if elements > MAX_ELEMENTS:
        return None
    if is_real:
        matrix = draft.constant(_real_inverse(count, length).astype(draft.types[x].dtype))
    else:
        turns = np.outer(np.arange(count), np.arange(results)) % length / length  # exact; a large angle is not
        matrix = _step(draft, x, _pairs(turns, is_inverse) / (length if is_inverse else 1), parts)
    rows = draft.emit("Reshape", x, shape=(*outer, count * parts))
    product = draft.emit("MatMul", rows, matrix)
    return draft.emit("Reshape", product, shape=(*outer, results, 1 if is_real else 2))


def _pairs(turns: Floats, is_inverse: bool) -> Floats:
    """What multiplies pairs of real and imaginary part by a rotation: `[n, m]` turns give `[n, 2, m, 2]`."""
    angles = turns * (2 * np.pi * (-1 if is_inverse else 1))
    real, imaginary = np.cos(angles), -np.sin(angles)
    return np.stack([np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)], 1)


def _real_inverse(count: int, length: int) -> Floats:
    """What makes the real numbers of the first half of their transform, `[count * 2, length]`."""
    places = np.arange(count)
    angles = np.outer(places, np.arange(length)) % length * (2 * np.pi / length)
    weights = np.where((places == 0) | (places * 2 == length), 1, 2)[:, None] / length
    return np.stack([weights * np.cos(angles), -weights * np.sin(angles)], 1).reshape(count * 2, length)


def _in_two_steps(draft: Draft, x: str, length: int, results: int, is_inverse: bool) -> str | None:
    """A transform of length n * m: m of length n, of every m-th number each, then n of length m, which rotate too.

    Number a * m + b goes to result c + n * d: the first step sums over a, and the second over b, for every c.
    """
    *outer, count, parts = draft.shape(x) or ()
    factors = [(n, length // n) for n in range(2, length // 2 + 1) if length % n == 0]
    n, m = min(factors, key=lambda pair: _elements(pair[0], pair[1], parts), default=(1, 1))
    if n == 1 or _elements(n, m, parts) > MAX_FACTOR_ELEMENTS:
        return None
    rank, rows = len(outer), prod(outer)
    if count < length:
        pads = (*(0,) * (2 * rank + 2), length - count, 0)
        x = draft.emit("Pad", x, pads=pads, mode="constant", value=0.0)
    x = draft.emit("Reshape", x, shape=(rows, n, m, parts))
    x = draft.emit("Reshape", draft.emit("Transpose", x, perm=(0, 2, 1, 3)), shape=(rows, m, n * parts))
    x = draft.emit(
        "MatMul", x, _step(draft, x, _pairs(np.outer(np.arange(n), np.arange(n)) % n / n, is_inverse), parts)
    )
    x = draft.emit("Reshape", x, shape=(rows, m, n, 2))
    x = draft.emit("Reshape", draft.emit("Transpose", x, perm=(2, 0, 1, 3)), shape=(n, rows, m * 2))
    c, b, d = np.ogrid[:n, :m, :m]
    second = [_pairs(turns, is_inverse) for turns in b * (c + n * d) % length / length]
    x = draft.emit("MatMul", x, _step(draft, x, np.stack(second) / (length if is_inverse else 1)))
    x = draft.emit("Reshape", x, shape=(n, rows, m, 2))
    x = draft.emit("Reshape", draft.emit("Transpose", x, perm=(1, 2, 0, 3)), shape=(*outer, length, 2))
    if results < length:
        x = draft.emit("Slice", x, starts=(0,), ends=(results,), axes=(rank,), steps=(1,))
    return x


def _step(draft: Draft, x: str, pairs: Floats, parts: int = 2) -> str:
    """The matrix of a step, of pairs `[..., n, 2, m, 2]`; without rows for imaginary parts if there are none."""
    *batch, n, _, m, _ = pairs.shape
    matrix = pairs[..., :parts, :, :].reshape(*batch, n * parts, m * 2)
    return draft.constant(matrix.astype(draft.types[x].dtype))


def _elements(n: int, m: int, parts: int) -> int:
    """How large the matrices of two steps are."""
    return 2 * parts * n**2 + 4 * n * m**2
