"""LibraryModel: a model on the best schedules known, ready to be written as a shared library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tunewright.codegen.target import Target
from tunewright.graph.numerics import Precision

from ..lookup.source import ScheduleSource
from .caches import object_cache
from .executable import executable_of_results
from .image import Image
from .shared_library import description, shared_library


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """A compiled model, and what people should know of it."""

    label: str
    sha256: str  # of the model
    target: Target
    image: Image
    notes: tuple[str, ...]  # a line each

    @staticmethod
    def compile(
        source: ScheduleSource,
        model: Path,
        dims: Mapping[str, int] | None,
        threads: int | None,
        precision: Precision = Precision.AS_GIVEN,
    ) -> LibraryModel:
        """A model for this machine's processor. Raises as `ScheduleSource.prepare`, and BuildError."""
        prepared = source.prepare(model, dims, threads, "cpu", precision=precision)
        executable = executable_of_results(prepared.model, prepared.target, prepared.results, object_cache())
        notes = list(prepared.notes)
        if prepared.vendor is not None:
            notes.append(f"the model's last job took {prepared.vendor.name}; a library has our kernels alone")
        label, model_sha256 = prepared.model.label, prepared.model.sha256
        return LibraryModel(label, model_sha256, prepared.target, executable.image, tuple(notes))

    def library(self, prefix: str) -> bytearray:
        """The library. Raises Refused as `shared_library`."""
        return shared_library(self.image, self.target, prefix, self.sha256)

    @property
    def description(self) -> str:
        """What the library says of itself."""
        return description(self.image, self.target, self.sha256)
