"""Argument: memory that a kernel is given a pointer to, as other programs are told of it. Light to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .ir.ir import Buffer, Packing

MOST_CODE_BYTES = 2 << 20
"""Most bytes of machine code that other programs are given, and of text."""


class Role(StrEnum):
    """The use of an argument's memory."""

    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"  # passed from one function to the next; undefined before and after them


@dataclass(frozen=True, slots=True)
class Argument:
    """Memory that every function of a kernel is given a pointer to: dense and row-major.

    A constant may have to be packed first, once for all: `shape` is what it has then.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    packing: Packing | None = None

    @staticmethod
    def of(buffer: Buffer, role: Role, packing: Packing | None = None) -> Argument:
        return Argument(buffer.name, role, buffer.dtype.value, buffer.shape, buffer.size_bytes, packing)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        data = {name: getattr(self, name) for name in ("name", "role", "dtype", "size_bytes")}
        return data | {"shape": list(self.shape), "packing": self.packing and self.packing.to_json()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Argument:
        """Raises KeyError, TypeError or ValueError on data that `to_json` can't have written."""
        packing_data = data.get("packing")
        packing = None if packing_data is None else Packing.from_json(packing_data)
        shape, size_bytes = tuple(map(int, data["shape"])), int(data["size_bytes"])
        return Argument(str(data["name"]), Role(data["role"]), str(data["dtype"]), shape, size_bytes, packing)


def arguments(
    params: Sequence[Buffer], scratch: Sequence[Buffer], inputs: int, packings: Mapping[str, Packing]
) -> tuple[Argument, ...]:
    """Those of a kernel, the first so many of whose params are inputs."""
    groups = (Role.INPUT, params[:inputs]), (Role.OUTPUT, params[inputs:]), (Role.SCRATCH, scratch)
    return tuple(Argument.of(buffer, role, packings.get(buffer.name)) for role, buffers in groups for buffer in buffers)


def check_sizes(**size_bytes: int) -> None:
    """Raise ValueError where something of a kernel, by its name, is larger than what other programs are given."""
    for name, size in size_bytes.items():
        if size > MOST_CODE_BYTES:
            raise ValueError(f"{size:,} bytes of {name.replace('_', ' ')}: {MOST_CODE_BYTES:,} are the most")
