"""SentModel: a model as it is sent to a server, whole or as its structure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tunewright.tuner.errors import Refused

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SentModel:
    """The bytes of a model that are sent, in pieces."""

    sha256: str
    size_bytes: int
    pieces: Callable[[], Iterator[bytes]]

    @staticmethod
    def of(data: bytes) -> SentModel:
        """The model that is all of these bytes."""
        view = memoryview(data)

        def pieces() -> Iterator[bytes]:
            for start in range(0, len(data), PIECE_BYTES):
                yield bytes(view[start : start + PIECE_BYTES])

        return SentModel(hashlib.sha256(data).hexdigest(), len(data), pieces)


def read_model(model: Path | str | bytes, with_weights: bool) -> SentModel:
    """A model as it is, or its structure alone. Raises ModelError, OSError, and Refused where it is not in one file."""
    from tunewright.graph.onnx_import import faults_named

    with faults_named(model):
        return _whole(model) if with_weights else _structure(model)


def _structure(model: Path | str | bytes) -> SentModel:
    from tunewright.graph.onnx_import.structure import strip

    return SentModel.of(strip(model).data)


def _whole(model: Path | str | bytes) -> SentModel:
    """A model as it is. Raises Refused for one that is not whole in its file."""
    from tunewright.graph.onnx_import.outline import outline

    if outline(model).has_external_data:
        raise Refused("the model's weights lie in files of their own, which are not sent; submit it without weights")
    if isinstance(model, bytes):
        return SentModel.of(model)
    path = Path(model)

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    digest, size_bytes = hashlib.sha256(), 0
    for piece in pieces():
        digest.update(piece)
        size_bytes += len(piece)
    return SentModel(digest.hexdigest(), size_bytes, pieces)
