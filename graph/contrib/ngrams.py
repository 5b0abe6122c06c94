"""TfIdfVectorizer: how often the n-grams of a pool occur in rows of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from tunewright.graph.ir import Array

from .call import ContribCall, Unsupported, standard_op

MAX_COMPARISONS = 1 << 22
"""Most comparisons of a row: every place is compared with every n-gram. Larger pools are left to who has a table."""


@standard_op("TfIdfVectorizer")
def _tf_idf_vectorizer(call: ContribCall) -> str:
    x = call.operand("X")
    shape = call.shape(x)
    if len(shape) not in (1, 2) or 0 in shape or call.kind(x).dtype not in ("int32", "int64"):
        raise Unsupported("what is not rows of integers")
    pool, numbers = np.asarray(call.attr("pool_int64s", ()), np.int64), call.attr("ngram_indexes")
    if len(set(numbers)) < len(numbers) or not pool.size or np.any(pool.astype(call.kind(x).dtype) != pool):
        raise Unsupported("n-grams of other numbers, or two in one place")
    found, counts = [], []
    for grams, first in _grams(call, pool):
        if grams.shape[1] <= shape[-1] and len(grams):
            counts.append(_count(call, x, grams))
            found += numbers[first : first + len(grams)]
    nothing = call.constant(np.zeros((*shape[:-1], 1)), "float32")
    columns = call.emit("Concat", *counts, nothing, axis=-1)
    order = [found.index(place) if place in found else len(found) for place in range(max(numbers) + 1)]
    return _weighted(call, call.emit("Gather", columns, call.constant(order, "int64"), axis=-1))


def _grams(call: ContribCall, pool: Array) -> Iterator[tuple[Array, int]]:
    """The n-grams of each length that counts, `[count, n]`, and the number of the first of them."""
    starts, first = [*call.attr("ngram_counts"), len(pool)], 0
    lengths = range(call.attr("min_gram_length"), call.attr("max_gram_length") + 1)
    for n, (start, end) in enumerate(pairwise(starts), start=1):
        grams = pool[start : start + (end - start) // n * n].reshape(-1, n)
        if len(np.unique(grams, axis=0)) < len(grams):
            raise Unsupported("an n-gram that is there twice")
        if n in lengths:
            yield grams, first
        first += len(grams)


def _count(call: ContribCall, x: str, grams: Array) -> str:
    """How often each n-gram is in each row, `[..., grams]` of float32, with all skips between its numbers."""
    extent, n = call.shape(x)[-1], grams.shape[1]
    steps = range(1, (1 if n == 1 else call.attr("max_skip_count") + 1) + 1)
    starts = [(start, step) for step in steps for start in range(extent - (n - 1) * step)]
    if len(starts) * grams.size > MAX_COMPARISONS:
        raise Unsupported(f"more than {MAX_COMPARISONS:,} comparisons")
    same = ""
    for k in range(n):
        places = call.constant([[start + k * step] for start, step in starts], "int64")
        numbers = call.constant(grams[:, k], call.kind(x).dtype)
        equal = call.emit("Equal", call.emit("Gather", x, places, axis=-1), numbers)
        same = call.emit("And", same, equal) if same else equal
    return call.emit("ReduceSum", call.cast(same, "float32"), call.constant([-2], "int64"), keepdims=0)


def _weighted(call: ContribCall, counts: str) -> str:
    """The counts, or whether there are any, times the weights of the n-grams (ONNX's evaluator has those of places)."""
    mode, weights, places = call.attr("mode"), call.attr("weights"), call.attr("ngram_indexes")
    if mode == "IDF":
        counts = call.cast(call.emit("Greater", counts, call.like(counts, 0)), "float32")
    if mode == "TF" or not weights:
        return counts
    if len(weights) != len(places):
        raise Unsupported("weights of another number")
    by_place = np.zeros(call.shape(counts)[-1], np.float32)
    by_place[list(places)] = weights
    return call.emit("Mul", counts, call.constant(by_place, "float32"))
