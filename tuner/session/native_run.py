"""NativeRun: a run of a compiled model as native code does it, such as that of a program which we are plugged into.

Light to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunewright.codegen.runtime.memory import address_of
from tunewright.codegen.runtime.native import Program

from .image import Array, Image, ImagePort

Cell = tuple[int, int]
"""Address of a word that is to hold the address of a tensor, and an offset to be added to that."""


@dataclass(frozen=True, slots=True)
class NativePort:
    """An input or output: its tensor is copied from or to `fixed_at`, or, where that is 0, used where it lies.

    `label` is the model's name for it.
    """

    label: str
    shape: tuple[int, ...]
    size_bytes: int
    fixed_at: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class NativeRun:
    """Copy or bind the inputs, bind the outputs, call `tw_run` of pool.ll, copy the other outputs."""

    inputs: tuple[NativePort, ...]
    outputs: tuple[NativePort, ...]
    program: Program


def native_run(
    parts: Sequence[Any],
    feeds: Sequence[tuple[int, str, Array | None]],
    results: Sequence[Array | str | None],
    image: Image,
) -> NativeRun | None:
    """The run of a model of these parts, which takes the feeds and gives the results.

    None where nodes have no kernel, a stop may come, outputs share memory, or only a run tells an output's size.
    """
    program = parts[0] if len(parts) == 1 else None
    names = [result for result in results if isinstance(result, str)]
    if not isinstance(program, Program) or program.may_stop or len(set(names)) < len(names):
        return None
    memories = (name if block is None else block for _, name, block in feeds)
    inputs = [_port(program, port, memory) for port, memory in zip(image.inputs, memories, strict=True)]
    outputs = [
        None if result is None or port.sizes or port.keys else _port(program, port, result)
        for port, result in zip(image.outputs, results, strict=True)
    ]
    if None in inputs or None in outputs:
        return None
    return NativeRun(tuple(filter(None, inputs)), tuple(filter(None, outputs)), program)


def _port(program: Program, port: ImagePort, memory: Array | str) -> NativePort | None:
    """None where kernels don't know the type."""
    shape, of_bytes = port.kind.shape, port.kind.size_bytes
    if shape is None or (not of_bytes and 0 not in shape):
        return None
    if isinstance(memory, str):
        cells = tuple(program.cells(memory)) if memory in program.names else ()
        return NativePort(port.label, shape, of_bytes, 0, cells)
    return NativePort(port.label, shape, of_bytes, address_of(memory), ())
