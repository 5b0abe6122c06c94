"""Rotary embeddings: pairs of features turned by angles that grow with the position (Su et al., arXiv 2104.09864)."""

from __future__ import annotations

import numpy as np

from .call import ContribCall, contrib_op


@contrib_op(
    "RotaryEmbedding(input:T, position_ids:M, cos_cache:T, sin_cache:T) -> output:T",
    {"T": "float float16 bfloat16", "M": "int64"},
    {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0, "scale": 1.0, "is_packed_batching": 0},
)
def _rotary_embedding(call: ContribCall) -> str:
    """Of `[B, S, N * D]` or `[B, N, S, D]`; one position is that of the first, the others follow."""
    x, positions, cos = (call.operand(name) for name in ("input", "position_ids", "cos_cache"))
    shape = call.shape(x)
    batch, length = shape[0], shape[-2]
    if call.shape(positions) == (1,):
        steps = call.constant(np.tile(np.arange(length), (batch, 1)), "int64")
        positions = call.emit("Add", positions, steps)
    heads = 0
    if len(shape) == 3:
        size = 2 * call.shape(cos)[1]
        heads = call.attr("num_heads") or shape[2] // size
        x = call.emit("Transpose", call.reshape(x, batch, length, heads, shape[2] // heads), perm=[0, 2, 1, 3])
    turned = rotate(call, x, positions, cos, call.operand("sin_cache"), call.attr("interleaved"))
    if not heads:
        return turned
    return call.reshape(call.emit("Transpose", turned, perm=[0, 2, 1, 3]), *shape)


def rotate(call: ContribCall, x: str, positions: str, cos: str, sin: str, interleaved: int) -> str:
    """`[B, N, S, D]` turned by the angles of `positions` `[B, S]`; `cos` and `sin` are by position, of half the turned
    features. The features after those stay.
    """
    size, half = call.shape(x)[3], call.shape(cos)[1]
    cos, sin = (call.unsqueeze(call.emit("Gather", table, positions), 1) for table in (cos, sin))
    turned, rest = x, ""
    if 2 * half < size:
        turned, rest = call.slice(x, 3, 0, 2 * half), call.slice(x, 3, 2 * half, size)
    real, imaginary = _halves(call, turned, interleaved)
    new_real = call.emit("Sub", call.emit("Mul", real, cos), call.emit("Mul", imaginary, sin))
    new_imaginary = call.emit("Add", call.emit("Mul", real, sin), call.emit("Mul", imaginary, cos))
    if interleaved:
        pairs = call.emit("Concat", call.unsqueeze(new_real, 4), call.unsqueeze(new_imaginary, 4), axis=4)
        result = call.reshape(pairs, *call.shape(turned))
    else:
        result = call.emit("Concat", new_real, new_imaginary, axis=3)
    return call.emit("Concat", result, rest, axis=3) if rest else result


def _halves(call: ContribCall, x: str, interleaved: int) -> tuple[str, str]:
    """The real and the imaginary parts: every other feature, or the first half and the second."""
    batch, heads, length, size = call.shape(x)
    if not interleaved:
        return call.slice(x, 3, 0, size // 2), call.slice(x, 3, size // 2, size)
    pairs = call.reshape(x, batch, heads, length, size // 2, 2)
    shape = batch, heads, length, size // 2
    return call.reshape(call.slice(pairs, 4, 0, 1), *shape), call.reshape(call.slice(pairs, 4, 1, 2), *shape)
