"""Discrete Fourier transforms as products with matrices of sines and cosines. Definitions: ONNX's of DFT and STFT."""

from __future__ import annotations

import numpy as np

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Array, Node

MAX_ELEMENTS = 1 << 20
"""Largest matrix of a transform; longer ones are left to those who have a fast transform."""


def dft(draft: Draft, node: Node) -> str | None:
    """Add what a DFT of known length and axis comes to; returns the result. None for those that are left.

    Inverse ones are: ONNX's conformance cases want the rounding of a fast transform where the result is 0.

    Before: `y = DFT(x) axis=1`, x `[2, 8, 1]`. After: `y = Reshape(MatMul(Reshape(x), w))`, w `[8, 16]`, y `[2, 8, 2]`.
    """
    x = node.inputs[0]
    shape = draft.shape(x) or ()
    axis, length = _axis(draft, node, len(shape)), _number(draft, node, 1)
    if axis is None or not 0 <= axis < len(shape) - 1 or (node.input(1) and length is None):
        return None
    count, parts = shape[axis], shape[-1]
    length = count if length is None else length
    is_half = bool(node.attrs.get("onesided", 0))
    if 0 in shape or node.attrs.get("inverse", 0) or (is_half and parts != 1):
        return None
    weight = _matrix(draft, x, min(count, length), parts, length, is_half)
    if weight is None:
        return None
    if count > length:
        x = draft.emit("Slice", x, starts=(0,), ends=(length,), axes=(axis,), steps=(1,))
    others = tuple(k for k in range(len(shape) - 1) if k != axis)
    order = (*others, axis, len(shape) - 1)
    x = draft.emit("Transpose", x, perm=order)
    outer = tuple(shape[k] for k in others)
    rows = draft.emit("Reshape", x, shape=(*outer, len(weight)))
    result = draft.emit("MatMul", rows, draft.constant(weight))
    result = draft.emit("Reshape", result, shape=(*outer, weight.shape[1] // 2, 2))
    return draft.emit("Transpose", result, perm=tuple(map(order.index, range(len(shape)))))


def stft(draft: Draft, node: Node) -> str | None:
    """Add what an STFT of known step and length comes to; returns the result. None for those that are left.

    Before: `y = STFT(x, step, window)`, x `[2, 32, 1]`, step 8, window `[16]`.
    After: `f = Reshape(Gather(x, i)); y = Reshape(MatMul(f * window, w))`, i `[3, 16]`, w `[16, 18]`, y `[2, 3, 9, 2]`.
    """
    x, window = node.inputs[0], node.input(2)
    shape, step, length = draft.shape(x) or (), _number(draft, node, 1), _number(draft, node, 3)
    if length is None and window and not node.input(3):
        (length,) = draft.shape(window) or (0,)
    if len(shape) != 3 or not step or not length or step < 0 or not 0 < length <= shape[1]:
        return None
    batch, extent, parts = shape
    is_half = bool(node.attrs.get("onesided", 1))
    weight = _matrix(draft, x, length, parts, length, is_half)
    if weight is None or batch == 0 or (is_half and parts != 1):
        return None
    if window and draft.shape(window) != (length,):
        return None
    starts = np.arange((extent - length) // step + 1) * step
    frames = draft.emit("Gather", x, draft.constant(starts[:, None] + np.arange(length)), axis=1)
    if window:
        frames = draft.emit("Mul", frames, draft.emit("Reshape", window, shape=(length, 1)))
    rows = draft.emit("Reshape", frames, shape=(batch, len(starts), length * parts))
    result = draft.emit("MatMul", rows, draft.constant(weight))
    return draft.emit("Reshape", result, shape=(batch, len(starts), weight.shape[1] // 2, 2))


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


def _matrix(draft: Draft, x: str, count: int, parts: int, length: int, is_half: bool) -> Array | None:
    """What turns rows of `count` numbers, real and imaginary parts side by side, into their transform of `length`."""
    results = length // 2 + 1 if is_half else length
    dtype = draft.types[x].dtype
    if dtype not in ("float32", "float64") or parts not in (1, 2) or length < 1:
        return None
    if count * parts * results * 2 > MAX_ELEMENTS:
        return None
    turns = np.outer(np.arange(count), np.arange(results)) % length  # exact; a large angle is not
    angles = turns * (2 * np.pi / length)
    real, imaginary = np.cos(angles), -np.sin(angles)
    matrix = np.stack([np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)], 1)[:, :parts]
    return matrix.reshape(count * parts, results * 2).astype(dtype)
