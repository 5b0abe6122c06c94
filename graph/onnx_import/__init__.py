"""ONNX bytes or file to `Graph`: checked, shapes known, constants folded, nodes in the normal form.

Read first: `load`, then the docstring of `normal`. The order of the work: `check` (structure and limits),
`functions` (calls become nodes), `raw`, `weights` and `sparse` (constants, external data), `dimensions` (open ones are
bound), `walk` (types, folding, inlining), `normal`. A node has to pass `signature` (counts and types of operands),
`attributes` (what they may say) and `guards` (shapes and constants).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from tunewright.graph.ir import Graph

from .check import check_structure
from .errors import ModelError, shown
from .functions import expand_functions
from .mistaken import mistaken
from .raw import RawData
from .sparse import make_dense
from .walk import Walk
from .weights import MAX_LEFT_OUT_BYTES, Weights

__all__ = ["MAX_LEFT_OUT_BYTES", "MAX_MODEL_BYTES", "ModelError", "checked", "load", "make_plain", "shown"]

MAX_MODEL_BYTES = 2**31 - 1
"""Largest protobuf that exists; larger models keep their weights in external files."""


def load(
    source: bytes | str | Path,
    dims: Mapping[str, int] | None = None,
    most_left_out_bytes: int = MAX_LEFT_OUT_BYTES,
    given: Collection[str] = (),
) -> Graph:
    """The graph of an ONNX model, given as its bytes or as a path.

    `dims` binds open dimensions, by name or as "input:axis". External data is read for a path only, and only from plain
    files inside the model's folder. A model whose weights were left out (`structure.strip`) has made-up ones of at most
    `most_left_out_bytes` in all. Weights that are inputs of the model too are constants, told as `defaults`, but for
    those of the names `given`, which are inputs.

    Raises ModelError (one line for people) for whatever can't be used, and OSError for a path that can't be read.
    Hostile models belong into a process with limits: parsing, inference and folding run here.
    """
    place = source if isinstance(source, bytes) else _path(source)
    with closing(RawData(place)) as raw:
        model = _parsed(raw.rest())
        check_structure(model)
        folder = None if isinstance(place, bytes) else place.parent
        weights = Weights(folder, most_left_out_bytes, raw)
        make_plain(model, weights)
        return Walk(weights).graph(model, dims or {}, given)


def checked(source: bytes | str | Path) -> tuple[ModelProto, Path | None]:
    """A model as it is written, its structure checked, and the folder that its external data may lie in.

    Raises ModelError, and OSError for a path that can't be read.
    """
    if isinstance(source, bytes):
        data, folder = source, None
    else:
        path = _path(source)
        data, folder = path.read_bytes(), path.parent
    model = _parsed(data)
    check_structure(model)
    return model, folder


def _path(source: str | Path) -> Path:
    """Where a model is that is not too large. Raises ModelError and OSError."""
    path = Path(source)
    size_bytes = path.stat().st_size
    if size_bytes > MAX_MODEL_BYTES:
        raise ModelError(
            f"the file has {size_bytes:,} bytes, more than the {MAX_MODEL_BYTES:,} that a protobuf can have; "
            "save the model with its weights in external files"
        )
    return path


def _parsed(data: bytes) -> ModelProto:
    if not data:
        raise ModelError("the model is empty (0 bytes)")
    if other := mistaken(data):
        raise ModelError(other)
    if len(data) > MAX_MODEL_BYTES:
        raise ModelError(f"{len(data):,} bytes are more than the {MAX_MODEL_BYTES:,} that a protobuf can have")
    try:
        model: ModelProto = ModelProto.FromString(data)
        return model
    except DecodeError as error:
        raise ModelError(f"not an ONNX model, or cut short: {len(data):,} bytes don't parse as a protobuf") from error


def make_plain(model: ModelProto, weights: Weights) -> None:
    """Write functions and sparse tensors out, so that there are none. Raises ModelError."""
    if model.functions:
        expand_functions(model)
    make_dense(model.graph, weights)
