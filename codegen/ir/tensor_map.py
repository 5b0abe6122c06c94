"""TensorMap: how the copy engine of Hopper sees a tensor in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..expr.dtype import DType


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The view that Hopper's copy engine has of a global buffer: a dense tensor of which it copies boxes.

    `strides` are in elements, the last one 1. A box has as many dimensions as the tensor; what of it lies outside of
    the tensor is zero. Of a box with `steps` only every so many elements along each dimension are copied. See "Tensors"
    in "PTX ISA", release 9.0, 5.5, and cuTensorMapEncodeTiled in "CUDA Driver API".
    """

    tensor: str  # the buffer's name
    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]  # what is copied
    steps: tuple[int, ...] = ()  # (): neighbours

    @property
    def all_steps(self) -> tuple[int, ...]:
        """The step along each dimension."""
        return self.steps or (1,) * len(self.box)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        numbers = {name: list(getattr(self, name)) for name in ("extents", "strides", "box")}
        return {"tensor": self.tensor, "dtype": self.dtype.value, **numbers, "steps": list(self.all_steps)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TensorMap:
        """Raises KeyError, TypeError or ValueError on data that `to_json` can't have written."""
        extents, strides, box = (tuple(map(int, data[name])) for name in ("extents", "strides", "box"))
        steps = tuple(map(int, data.get("steps", ())))
        is_plain = all(step == 1 for step in steps)
        return TensorMap(str(data["tensor"]), DType(data["dtype"]), extents, strides, box, () if is_plain else steps)

    def __str__(self) -> str:
        text = f"{self.tensor} as {list(self.extents)} by {list(self.strides)} in boxes {list(self.box)}"
        return f"{text} of every {list(self.steps)}" if self.steps else text
