"""ONNX bytes or file to `Graph`: checked, shapes known, constants folded, nodes in the normal form.

Read first: `load`, then the docstring of `normal`. The order of the work: `check` (structure and limits), `plain`
(functions, sparse tensors), `weights` (constants, external data), `dimensions` and `bound_inputs` (what is open is
bound), `walk` (types, folding), `inlining`, `normal`. A node has to pass `signature` (counts and types of operands,
attributes) and `shapes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from tunewright.graph.ir import Graph

from .check import check_structure, foreign_format
from .open_inputs import open_signature
from .plain import make_plain
from .protobuf import ModelError, OpenDimensionsError, faults_named, forget_negative_extents, quote
from .walk import Walk
from .weights import MAX_LEFT_OUT_BYTES, RawData, Weights

__all__ = [
    "MAX_LEFT_OUT_BYTES", "MAX_MODEL_BYTES", "ModelError", "OpenDimensionsError", "faults_named", "load",
    "make_plain", "open_signature", "quote", "read_model",
]  # fmt: skip

MAX_MODEL_BYTES = 2**31 - 1
"""Largest protobuf that exists; larger models keep their weights in external files."""


def load(
    source: bytes | str | Path,
    dims: Mapping[str, int] | None = None,
    most_left_out_bytes: int = MAX_LEFT_OUT_BYTES,
    weight_inputs: Collection[str] = (),
) -> Graph:
    """The graph of an ONNX model, given as its bytes or as a path.

    `dims` binds open dimensions, by name or as "input:axis", and inputs of one number, as "input=". External data is
    read for a path only, and only from plain files inside the model's folder. A model whose weights were left out
    (`structure.strip`) has made-up ones of at most `most_left_out_bytes` in all. Weights that are inputs of the model
    too are constants with an entry in `defaults`, but for those named in `weight_inputs`, which are inputs.

    Raises ModelError (one line for people) for whatever can't be used, OpenDimensionsError among others where
    dimensions stay open, and OSError for a path that can't be read. Hostile models belong into a process with limits:
    parsing, inference and folding run here.
    """
    place = source if isinstance(source, bytes) else _path(source)
    with closing(RawData(place)) as raw:
        model = _parse(raw.rest())
        check_structure(model)
        folder = None if isinstance(place, bytes) else place.parent
        weights = Weights(folder, most_left_out_bytes, raw)
        make_plain(model, weights)
        return Walk(weights).graph(model, dims or {}, weight_inputs)


def read_model(source: bytes | str | Path) -> tuple[ModelProto, Path | None]:
    """A parsed model with checked structure, and the folder of its external data.

    Raises ModelError, and OSError for a path that can't be read.
    """
    if isinstance(source, bytes):
        data, folder = source, None
    else:
        path = _path(source)
        data, folder = path.read_bytes(), path.parent
    model = _parse(data)
    check_structure(model)
    return model, folder


def _path(source: str | Path) -> Path:
    """The path of a model. Raises ModelError for a file that is too large, and OSError."""
    path = Path(source)
    size_bytes = path.stat().st_size
    if size_bytes > MAX_MODEL_BYTES:
        raise ModelError(
            f"the file has {size_bytes:,} bytes, more than the {MAX_MODEL_BYTES:,} that a protobuf can have; "
            "save the model with its weights in external files"
        )
    return path


def _parse(data: bytes) -> ModelProto:
    if not data:
        raise ModelError("the model is empty (0 bytes)")
    if other := foreign_format(data):
        raise ModelError(other)
    if len(data) > MAX_MODEL_BYTES:
        raise ModelError(f"{len(data):,} bytes are more than the {MAX_MODEL_BYTES:,} that a protobuf can have")
    try:
        model: ModelProto = ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(
            f"not an ONNX model, or cut short: {len(data):,} bytes don't parse as a protobuf; "
            "name an .onnx file, and if it is one, make or copy it anew"
        ) from error
    forget_negative_extents(model)
    return model
