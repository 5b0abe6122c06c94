"""Tensors as arrays and back, without copies where that can be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

DTYPES = frozenset({
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
})  # fmt: skip
"""Element types that sessions take."""


def as_array(tensor: Any) -> Any:
    """The elements row by row: a view of the tensor's memory where they lie so."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype == torch.bfloat16:  # which numpy has not
        return plain.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def as_tensor(array: Any) -> Any:
    """A tensor in the memory of the array."""
    array = np.asarray(array)
    if not array.flags.writeable:  # PyTorch has no such tensors
        array = array.copy()
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def is_plain(value: Any) -> bool:
    """Whether it is a dense tensor in the processor's memory, of a type that sessions take."""
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and value.dtype in DTYPES
    )


def memory_order(value: Any) -> tuple[int, ...] | None:
    """The axes of a dense tensor, the outermost in memory first; None where they lie in order, or it has gaps.

    Of sizes that only a run tells the example counts.
    """
    sizes, strides = ([_example(number) for number in numbers] for numbers in (value.shape, value.stride()))
    if None in sizes or None in strides:
        return None
    order = sorted(range(len(sizes)), key=lambda axis: (-strides[axis], axis))
    step = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != step:
            return None
        step *= sizes[axis]
    moved = [axis for axis in order if sizes[axis] != 1]
    return tuple(order) if moved != sorted(moved) else None


def _example(number: Any) -> Any:
    """A size or stride as it was when the graph was captured; None where that is not known."""
    return number if isinstance(number, int) else number.node.hint
