"""ONNX's Attention (opset 23 on), with caches, masks, windows and caps.

Words and letters as in `attention`. A key that a query may not see has -infinity added to its score; a query that sees
no key at all has zeros for a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from onnx import TensorProto, helper

from tunewright.graph.ir import Array

from ..rounding import NARROW_FLOATS
from .attention import Scores, ScoreStages, attend, merge_heads, split_heads, with_past
from .call import ContribCall, Unsupported, standard_op


@standard_op("Attention")
def _attention(call: ContribCall) -> Sequence[str]:
    """The result, the keys and values with those of the past, and scores, as far as these are wanted."""
    _check_ranks(call)
    q, k, v = _heads(call)
    k, v = with_past(call, call.operand("past_key"), k), with_past(call, call.operand("past_value"), v)
    (heads, length), (kv_heads, total) = call.shape(q)[1:3], call.shape(k)[1:3]
    if heads % kv_heads or call.shape(v)[1] != kv_heads or 0 in (*call.shape(q), *call.shape(k), *call.shape(v)):
        raise Unsupported("heads that don't divide, or no elements")
    visibility = _Visibility.of(call, length, total)
    is_causal = visibility.is_causal and call.kind(q).dtype in NARROW_FLOATS  # where kernels leave keys out
    bias = "" if is_causal else visibility.bias(call, call.kind(q).dtype)
    scale = call.attr("scale", 1 / sqrt(call.shape(q)[3]))
    if scale < 0:
        raise Unsupported("a scale without a root")  # by which queries and keys are multiplied
    kind = call.attr("softmax_precision")
    past = visibility.past if is_causal else None
    scores = Scores(scale, call.attr("softcap"), (bias,) if bias else (), past, dtype=_dtype(kind) if kind else "")
    result, stages = attend(call, q, k, v, scores)
    hidden = visibility.hidden_rows(call, bias)
    result = _without(call, result, hidden)
    if len(call.shape(call.operand("Q"))) == 3:
        result = merge_heads(call, result)
    return result, k, v, _scores(call, stages, hidden) if call.wants("qk_matmul_output") else ""


def _scores(call: ContribCall, stages: ScoreStages, hidden: str) -> str:
    """The scores that are a result."""
    mode = call.attr("qk_matmul_output_mode")
    if mode not in range(4):
        raise Unsupported(f"scores of mode {mode}")
    shown = (stages.product, stages.capped, stages.biased, stages.weights)[mode]
    return _without(call, shown, hidden) if shown == stages.weights else shown


def _check_ranks(call: ContribCall) -> None:
    ranks = {len(call.shape(call.operand(name))) for name in "QKV"}
    masks = [len(call.shape(name)) for name in (call.operand("attn_mask"),) if name]
    lengths = [len(call.shape(name)) for name in (call.operand("nonpad_kv_seqlen"),) if name]
    if ranks not in ({3}, {4}) or not all(1 <= rank <= 4 for rank in masks) or lengths not in ([], [1]):
        raise Unsupported("operands of other ranks")


def _dtype(kind: int) -> str:
    if kind not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16):
        raise Unsupported("a softmax of other types")
    return str(helper.tensor_dtype_to_np_dtype(kind))


def _heads(call: ContribCall) -> tuple[str, str, str]:
    """Queries, keys and values by heads."""
    names = [call.operand(name) for name in "QKV"]
    if len(call.shape(names[0])) == 4:
        q, k, v = names
    else:
        counts = [call.count(name) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        q, k, v = (split_heads(call, name, count) for name, count in zip(names, counts, strict=True))
    return q, k, v


def _without(call: ContribCall, x: str, hidden: str) -> str:
    """Zeros in the rows of queries that see nothing."""
    return call.emit("Where", hidden, call.like(x, 0), x) if hidden else x


@dataclass(frozen=True, slots=True)
class _Visibility:
    """Which keys which queries see."""

    length: int  # of queries
    total: int  # of keys
    mask: str  # given: bools, or numbers to add
    lengths: str  # [B]: keys in use of a cache that is longer; may be absent
    past: int  # keys before the first query; where there are lengths, those tell it
    left: int  # how far a query sees back, and ahead; negative: as far as there is something
    right: int

    @classmethod
    def of(cls, call: ContribCall, length: int, total: int) -> _Visibility:
        past = call.operand("past_key")
        left, right = (call.attr(f"{side}_window_size", -1) for side in ("left", "right"))
        if call.attr("is_causal"):
            right = 0
        mask, lengths = call.operand("attn_mask"), call.operand("nonpad_kv_seqlen")
        if past and lengths:
            raise Unsupported("a past and lengths of what is not padding")
        return cls(length, total, mask, lengths, call.shape(past)[2] if past else 0, left, right)

    @property
    def is_causal(self) -> bool:
        """Whether queries see all keys but those after them, which there are, and nothing else matters."""
        return self.right == 0 and self.left < 0 and not self.mask and not self.lengths and bool(self._outside().any())

    def bias(self, call: ContribCall, dtype: str) -> str:
        """What is added to scores; broadcasts to `[B, N, S, T]`. Empty where nothing is."""
        hidden = self._hidden_in_caches(call) if self.lengths else ""
        terms = [call.emit("Where", hidden, *self._minus_infinity_or_zero(call, dtype))] if hidden else []
        outside = self._outside()
        if not self.lengths and outside.any():
            terms.append(call.constant(np.where(outside, -inf, 0), dtype))
        if self.mask:
            terms.append(self._mask(call, dtype))
        return call.sum(*terms) if terms else ""

    def hidden_rows(self, call: ContribCall, bias: str) -> str:
        """Where a query sees no key; broadcasts to `[B, N, S, 1]`. Empty where every query sees one."""
        if not (self.mask or self.lengths or self._outside().all(axis=1).any()):
            return ""
        rank = len(call.shape(bias))
        best = call.emit("ReduceMax", bias, call.constant([rank - 1], "int64"), keepdims=1)
        return call.emit("Equal", best, call.like(best, -inf))

    def _minus_infinity_or_zero(self, call: ContribCall, dtype: str) -> tuple[str, str]:
        return call.constant(-inf, dtype), call.constant(0, dtype)

    def _outside(self) -> Array:
        """`[S, T]`: keys outside of the window of a query, where that is known."""
        ahead = np.arange(self.total) - np.arange(self.length)[:, None] - self.past
        far_back = (ahead < -self.left) & (self.left >= 0)
        far_ahead = (ahead > self.right) & (self.right >= 0)
        return far_back | far_ahead

    def _hidden_in_caches(self, call: ContribCall) -> str:
        """`[B, 1, 1, T]` or `[B, 1, S, T]`: keys that are padding, or outside of a window that a run tells."""
        lengths = call.unsqueeze(self.lengths, 1, 2, 3)
        hidden = call.emit("GreaterOrEqual", call.constant(np.arange(self.total), "int64"), lengths)
        if self.left < 0 and self.right < 0:
            return hidden
        steps = np.arange(self.total) - np.arange(self.length)[:, None] + self.length
        ahead = call.emit("Sub", call.constant(steps, "int64"), lengths)
        for op, bound, limit in (("Less", self.left, -self.left), ("Greater", self.right, self.right)):
            if bound >= 0:
                hidden = call.emit("Or", hidden, call.emit(op, ahead, call.constant(limit, "int64")))
        return hidden

    def _mask(self, call: ContribCall, dtype: str) -> str:
        """What a mask adds. Keys beyond its end are hidden."""
        mask = self.mask
        if call.kind(mask).dtype == "bool":
            lowest, zero = self._minus_infinity_or_zero(call, dtype)
            mask = call.emit("Where", mask, zero, lowest)
        shape = call.shape(mask)
        if len(shape) == 3:
            mask = call.unsqueeze(mask, 0)
        missing = self.total - shape[-1]
        if missing > 0:
            pads = [0] * len(call.shape(mask))
            ends = [*pads[:-1], missing]
            mask = call.emit("Pad", mask, call.constant([*pads, *ends], "int64"), call.constant(-inf, dtype))
        return mask
