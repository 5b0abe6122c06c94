"""Images as JSON, beside object code and constants, which stay bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.artifact import Artifact, Phase, objects_sha256
from tunewright.codegen.dtype import DType
from tunewright.codegen.ir import Buffer
from tunewright.graph.ir import TensorType

from .image import Area, Image, KernelCall, Port, Spot, Value


def to_form(image: Image) -> tuple[dict[str, Any], list[bytes]] | None:
    """The image without its constants: JSON, and object code.

    None where it runs nodes that have no kernel, or runs on a GPU: these are not kept yet.
    """
    calls = [step for step in image.steps if isinstance(step, KernelCall)]
    if len(calls) < len(image.steps) or image.kept:
        return None
    numbers: dict[str, int] = {}
    artifacts: list[Artifact] = []
    steps = []
    for call in calls:
        artifact = call.artifact
        if not isinstance(artifact, Artifact):
            return None
        key = f"{artifact.sha256} {artifact.phases} {artifact.params} {artifact.scratch}"
        if numbers.setdefault(key, len(artifacts)) == len(artifacts):
            artifacts.append(artifact)
        steps.append([numbers[key], [_spot_form(spot) for spot in call.spots]])
    objects: dict[bytes, int] = {}
    for artifact in artifacts:
        for code in artifact.objects:
            objects.setdefault(code, len(objects))
    header = {
        "inputs": [_port_form(port) for port in image.inputs],
        "outputs": [_port_form(port) for port in image.outputs],
        "rooms": [[number, _kind_form(kind)] for number, kind in image.rooms.items()],
        "arena_bytes": image.arena_bytes,
        "artifacts": [_artifact_form(artifact, objects) for artifact in artifacts],
        "steps": steps,
    }
    return header, list(objects)


def from_form(header: Mapping[str, Any], objects: Sequence[bytes], constants: NDArray[np.uint8]) -> Image:
    """The inverse of `to_form`. Raises LookupError, TypeError or ValueError on other data."""
    artifacts = [_artifact(form, objects) for form in header["artifacts"]]
    return Image(
        inputs=tuple(_port(form) for form in header["inputs"]),
        outputs=tuple(_port(form) for form in header["outputs"]),
        rooms={number: _kind(form) for number, form in header["rooms"]},
        steps=tuple(KernelCall(artifacts[n], tuple(_spot(form) for form in spots)) for n, spots in header["steps"]),
        arena_bytes=header["arena_bytes"],
        constants=constants,
        kept=(),
    )


def _artifact_form(artifact: Artifact, objects: Mapping[bytes, int]) -> dict[str, Any]:
    return {
        "objects": [objects[code] for code in artifact.objects],
        "phases": [[phase.symbol, phase.iterations] for phase in artifact.phases],
        "params": [_buffer_form(buffer) for buffer in artifact.params],
        "scratch": [_buffer_form(buffer) for buffer in artifact.scratch],
    }


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


def _buffer_form(buffer: Buffer) -> list[Any]:
    return [buffer.name, list(buffer.shape), buffer.dtype]


def _buffer(form: Sequence[Any]) -> Buffer:
    name, shape, dtype = form
    return Buffer(name, tuple(shape), DType(dtype))


def _port_form(port: Port) -> list[Any]:
    assert port.value.spot is not None
    return [port.label, port.tensor, _kind_form(port.value.kind), _spot_form(port.value.spot)]


def _port(form: Sequence[Any]) -> Port:
    label, tensor, kind, spot = form
    return Port(label, tensor, Value(_kind(kind), _spot(spot)))


def _kind_form(kind: TensorType) -> list[Any]:
    return [kind.dtype, None if kind.shape is None else list(kind.shape)]


def _kind(form: Sequence[Any]) -> TensorType:
    dtype, shape = form
    return TensorType(dtype, None if shape is None else tuple(shape))


def _spot_form(spot: Spot) -> list[Any]:
    return [spot.area, spot.offset_bytes, spot.number]


def _spot(form: Sequence[Any]) -> Spot:
    area, offset_bytes, number = form
    return Spot(Area(area), offset_bytes, number)
