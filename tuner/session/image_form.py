"""An image as plain data: JSON, and the code of its kernels. `to_form` and its inverse. Light to import."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.artifact import Artifact, Phase, objects_sha256
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.ir.ir import Buffer
from tunewright.codegen.runtime.control import Control, ControlKind, Move
from tunewright.graph.ir import MapInput, TensorType

from .image import Area, ControlCall, Copy, Image, ImagePort, KernelCall, KernelCode, Location, TensorValue

if TYPE_CHECKING:  # what a processor's sessions start without
    from tunewright.codegen.cuda.build import GpuArtifact

LAUNCHES = "launches"
"""Of the form of an artifact for a GPU; one for a processor has phases."""


def to_form(image: Image) -> tuple[dict[str, Any], list[bytes]] | None:
    """The image without its constants: JSON, and code: objects of a processor, cubins of a GPU.

    None where it runs nodes that have no kernel, or has constants as the model has them: these are not kept yet.
    """
    if image.kept:
        return None
    numbers: dict[str, int] = {}
    artifacts: list[KernelCode] = []
    steps: list[Sequence[Any]] = []
    for step in image.steps:
        match step:
            case Control() | Copy():
                steps.append(astuple(step))
            case KernelCall(artifact, locations):
                if numbers.setdefault(_identity(artifact), len(artifacts)) == len(artifacts):
                    artifacts.append(artifact)
                steps.append([numbers[_identity(artifact)], [astuple(location) for location in locations]])
            case _:
                return None
    objects: dict[bytes, int] = {}
    for code in (code for artifact in artifacts for code in _codes(artifact)):
        objects.setdefault(code, len(objects))
    header = {
        "inputs": [astuple(port) for port in image.inputs],
        "outputs": [astuple(port) for port in image.outputs],
        "rooms": [[number, astuple(kind)] for number, kind in image.output_types.items()],
        "arena_bytes": image.arena_bytes,
        "artifacts": [_artifact_form(artifact, objects) for artifact in artifacts],
        "steps": steps,
    }
    return header, list(objects)


def _identity(artifact: KernelCode) -> str:
    """All that tells an artifact from others, but for its packings."""
    runs = artifact.phases if isinstance(artifact, Artifact) else artifact.launches
    numbers = artifact.numbers if isinstance(artifact, Artifact) else ()
    return f"{artifact.sha256} {runs} {artifact.params} {artifact.scratch} {numbers}"


def _codes(artifact: KernelCode) -> tuple[bytes, ...]:
    return artifact.objects if isinstance(artifact, Artifact) else (artifact.code,)


def _artifact_form(artifact: KernelCode, objects: Mapping[bytes, int]) -> dict[str, Any]:
    runs: dict[str, Any] = (
        {"phases": [astuple(phase) for phase in artifact.phases], "numbers": artifact.numbers}
        if isinstance(artifact, Artifact)
        else {LAUNCHES: [launch.to_json() for launch in artifact.launches]}
    )
    buffers = {
        name: [(buffer.name, buffer.shape, buffer.dtype) for buffer in group]
        for name, group in (("params", artifact.params), ("scratch", artifact.scratch))
    }
    return {"objects": [objects[code] for code in _codes(artifact)], **runs, **buffers}


def from_form(header: Mapping[str, Any], objects: Sequence[bytes], constants: Sequence[NDArray[np.uint8]]) -> Image:
    """The inverse of `to_form`. Raises LookupError, TypeError or ValueError on other data."""
    artifacts = [_artifact(form, objects) for form in header["artifacts"]]
    return Image(
        inputs=tuple(_port(form) for form in header["inputs"]),
        outputs=tuple(_port(form) for form in header["outputs"]),
        output_types={number: _kind(form) for number, form in header["rooms"]},
        steps=tuple(_step(form, artifacts) for form in header["steps"]),
        arena_bytes=header["arena_bytes"],
        constants=tuple(constants),
        kept=(),
    )


def _step(form: Sequence[Any], artifacts: Sequence[KernelCode]) -> KernelCall | Copy | ControlCall:
    match form:
        case [number, locations]:
            return KernelCall(artifacts[number], tuple(map(_location, locations)))
        case [source, to, size_bytes]:
            return Copy(_location(source), _location(to), size_bytes)
    kind, operands, loop, size, note, numbers = form
    located = tuple(None if operand is None else _location(operand) for operand in operands)
    return Control(ControlKind(kind), located, loop, size, note, tuple(numbers))


def _artifact(form: Mapping[str, Any], objects: Sequence[bytes]) -> KernelCode:
    """The artifact but for its packings: constants are packed by now."""
    own = tuple(objects[number] for number in form["objects"])
    params, scratch = (tuple(map(_buffer, form[name])) for name in ("params", "scratch"))
    if LAUNCHES in form:
        return _gpu_artifact(form[LAUNCHES], own, params, scratch)
    return Artifact(
        objects=own,
        sha256=objects_sha256(own),
        phases=tuple(Phase(symbol, iterations) for symbol, iterations in form["phases"]),
        params=params,
        scratch=scratch,
        packings={},
        numbers=tuple(form["numbers"]),
    )


def _gpu_artifact(
    launches: Sequence[Any], codes: Sequence[bytes], params: tuple[Buffer, ...], scratch: tuple[Buffer, ...]
) -> GpuArtifact:
    """Without what its assembler reported, which no run needs."""
    from tunewright.codegen.cuda.build import GpuArtifact
    from tunewright.codegen.cuda.emit import Launch

    [code] = codes
    sha256 = hashlib.sha256(code).hexdigest()
    return GpuArtifact(code, sha256, tuple(map(Launch.from_json, launches)), {}, params, scratch, packings={})


def _buffer(form: Sequence[Any]) -> Buffer:
    name, shape, dtype = form
    return Buffer(name, tuple(shape), DType(dtype))


def _port(form: Sequence[Any]) -> ImagePort:
    label, tensor, (kind, location), keys, sizes, given = form
    cuts = tuple((axis, _location(size)) for axis, size in sizes)
    return ImagePort(label, tensor, TensorValue(_kind(kind), _location(location)), tuple(keys), cuts, _map(given))


def _map(form: Sequence[Any] | None) -> MapInput | None:
    if form is None:
        return None
    key, value, keys, absent = form
    return MapInput(key, value, None if keys is None else tuple(keys), absent)


def _kind(form: Sequence[Any]) -> TensorType:
    dtype, shape = form
    return TensorType(dtype, None if shape is None else tuple(shape))


def _location(form: Sequence[Any]) -> Location:
    area, offset_bytes, number, moves = form
    return Location(Area(area), offset_bytes, number, tuple(Move(*move) for move in moves))
