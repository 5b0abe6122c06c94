"""An image as plain data: JSON, and the code of its kernels. `to_form` and its inverse. Light to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.artifact import Artifact, Phase, objects_sha256
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.ir.ir import Buffer
from tunewright.codegen.runtime.control import Control, ControlKind, Move
from tunewright.graph.ir import TensorType

from .image import Area, ControlCall, Image, ImagePort, KernelCall, Location, TensorValue


def to_form(image: Image) -> tuple[dict[str, Any], list[bytes]] | None:
    """The image without its constants: JSON, and object code.

    None where it runs nodes that have no kernel, or runs on a GPU: these are not kept yet.
    """
    numbers: dict[str, int] = {}
    artifacts: list[Artifact] = []
    steps: list[Sequence[Any]] = []
    for step in image.steps:
        if isinstance(step, Control):
            steps.append(astuple(step))
            continue
        if image.kept or not isinstance(step, KernelCall) or not isinstance(step.artifact, Artifact):
            return None
        artifact = step.artifact
        key = f"{artifact.sha256} {artifact.phases} {artifact.params} {artifact.scratch}"
        if numbers.setdefault(key, len(artifacts)) == len(artifacts):
            artifacts.append(artifact)
        steps.append([numbers[key], [astuple(location) for location in step.locations]])
    objects: dict[bytes, int] = {}
    for code in (code for artifact in artifacts for code in artifact.objects):
        objects.setdefault(code, len(objects))
    header = {
        "inputs": [astuple(port) for port in image.inputs],
        "outputs": [astuple(port) for port in image.outputs],
        "rooms": [[number, astuple(kind)] for number, kind in image.output_types.items()],
        "arena_bytes": image.arena_bytes,
        "artifacts": [
            {
                "objects": [objects[code] for code in artifact.objects],
                "phases": [astuple(phase) for phase in artifact.phases],
                "params": [(buffer.name, buffer.shape, buffer.dtype) for buffer in artifact.params],
                "scratch": [(buffer.name, buffer.shape, buffer.dtype) for buffer in artifact.scratch],
            }
            for artifact in artifacts
        ],
        "steps": steps,
    }
    return header, list(objects)


def from_form(header: Mapping[str, Any], objects: Sequence[bytes], constants: NDArray[np.uint8]) -> Image:
    """The inverse of `to_form`. Raises LookupError, TypeError or ValueError on other data."""
    artifacts = [_artifact(form, objects) for form in header["artifacts"]]
    return Image(
        inputs=tuple(_port(form) for form in header["inputs"]),
        outputs=tuple(_port(form) for form in header["outputs"]),
        output_types={number: _kind(form) for number, form in header["rooms"]},
        steps=tuple(_step(form, artifacts) for form in header["steps"]),
        arena_bytes=header["arena_bytes"],
        constants=constants,
        kept=(),
    )


def _step(form: Sequence[Any], artifacts: Sequence[Artifact]) -> KernelCall | ControlCall:
    if len(form) == 2:
        number, locations = form
        return KernelCall(artifacts[number], tuple(map(_location, locations)))
    kind, operands, loop, size, note, numbers = form
    located = tuple(None if operand is None else _location(operand) for operand in operands)
    return Control(ControlKind(kind), located, loop, size, note, tuple(numbers))


def _artifact(form: Mapping[str, Any], objects: Sequence[bytes]) -> Artifact:
    """The artifact but for its packings: constants are packed by now."""
    own = tuple(objects[number] for number in form["objects"])
    return Artifact(
        objects=own,
        sha256=objects_sha256(own),
        phases=tuple(Phase(symbol, iterations) for symbol, iterations in form["phases"]),
        params=tuple(_buffer(each) for each in form["params"]),
        scratch=tuple(_buffer(each) for each in form["scratch"]),
        packings={},
    )


def _buffer(form: Sequence[Any]) -> Buffer:
    name, shape, dtype = form
    return Buffer(name, tuple(shape), DType(dtype))


def _port(form: Sequence[Any]) -> ImagePort:
    label, tensor, (kind, location), keys, sizes = form
    cuts = tuple((axis, _location(size)) for axis, size in sizes)
    return ImagePort(label, tensor, TensorValue(_kind(kind), _location(location)), tuple(keys), cuts)


def _kind(form: Sequence[Any]) -> TensorType:
    dtype, shape = form
    return TensorType(dtype, None if shape is None else tuple(shape))


def _location(form: Sequence[Any]) -> Location:
    area, offset_bytes, number, moves = form
    return Location(Area(area), offset_bytes, number, tuple(Move(*move) for move in moves))
