"""Caches of keys and values in few bits, as GroupQueryAttention may have them: what is written, and what it stands for.

8 bits are int8. Of 4 bits a byte has two, 8 added to each, the first in its lower half. A scale is of a tensor, or of
each feature of each head. Source: ONNX Runtime, docs/ContribOperators.md, and its results.
"""

from __future__ import annotations

from dataclasses import dataclass

from .call import ContribCall, Unsupported

KINDS = ("NONE", "PER_TENSOR", "PER_CHANNEL")


@dataclass(frozen=True, slots=True)
class CacheQuantisation:
    """How the keys or the values of a cache are kept."""

    bits: int = 0  # 0: as they are
    scale: str = ""  # broadcasts to `[B, K, T, D]`
    dtype: str = ""  # of what they stand for

    @classmethod
    def of(cls, call: ContribCall, which: str, heads: int, size: int) -> CacheQuantisation:
        """Of "k" or "v", as attributes and operands say. Raises Unsupported."""
        kind, scale, bits = call.attr(f"{which}_quant_type"), call.operand(f"{which}_scale"), _bits(call)
        is_plain = kind == "NONE" and not scale and not bits
        if not is_plain and (kind not in KINDS[1:] or not scale or bits not in (4, 8)):
            raise Unsupported(f"a cache of {bits} bits, {which}_quant_type {kind} and {'a' if scale else 'no'} scale")
        if is_plain:
            return cls()
        shape = (1, heads, 1, size) if kind == "PER_CHANNEL" else (1, 1, 1, 1)
        return cls(bits, call.reshape(scale, *shape), call.kind(call.operand("query")).dtype)

    def write(self, call: ContribCall, x: str) -> str:
        """What a cache has for new keys or values `[B, K, T, D]`."""
        if not self.bits:
            return x
        limit = 2 ** (self.bits - 1)
        steps = call.emit("Round", call.emit("Div", call.cast(x, "float32"), self.scale))
        bounds = (call.constant(bound, "float32") for bound in (-limit, limit - 1))
        numbers = call.cast(call.emit("Clip", steps, *bounds), "int32")
        if self.bits == 8:
            return call.cast(numbers, "int8")
        numbers = call.emit("Add", numbers, call.constant(limit, "int32"))
        *outer, size = call.shape(numbers)
        pairs = call.reshape(numbers, *outer, size // 2, 2)
        low, high = (call.slice(pairs, 4, half, half + 1) for half in (0, 1))
        both = call.emit("Add", low, call.emit("Mul", high, call.constant(16, "int32")))
        return call.cast(call.reshape(both, *outer, size // 2), "uint8")

    def read(self, call: ContribCall, x: str) -> str:
        """The keys or values that a cache stands for."""
        if not self.bits:
            return x
        if self.bits == 4:
            x = _from_pairs(call, x)
        return call.cast(call.emit("Mul", call.cast(x, "float32"), self.scale), self.dtype)


def _bits(call: ContribCall) -> int:
    """The bits of a number in the cache; 0 where it is as it comes."""
    past = call.operand("past_key")
    if not past or call.kind(past).dtype not in ("int8", "uint8"):
        return 0
    return int(call.attr("kv_cache_bit_width") or 8)


def _from_pairs(call: ContribCall, packed: str) -> str:
    """Two numbers of each byte, along the last axis."""
    *outer, size = call.shape(packed)
    whole, sixteen = call.cast(packed, "int32"), call.constant(16, "int32")
    high = call.emit("Div", whole, sixteen)
    low = call.emit("Sub", whole, call.emit("Mul", high, sixteen))
    pairs = call.emit("Concat", call.unsqueeze(low, 4), call.unsqueeze(high, 4), axis=4)
    return call.emit("Sub", call.reshape(pairs, *outer, 2 * size), call.constant(8, "int32"))
