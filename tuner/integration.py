"""Integration: another runtime that runs our kernels inside, as commands know it. Light to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tunewright.graph.numerics import Precision

from .errors import Refused
from .text import printable

ENTRY_POINTS = "tunewright.integrations"
"""Under which packages list theirs in their metadata."""


@dataclass(frozen=True, slots=True)
class CompiledFiles:
    """A model in a runtime's own format, with its code beside it."""

    model: str  # the label of what it was made of
    target: str
    file: Path  # which the runtime opens
    library: Path
    original: Path  # the model itself, for processors that the code does not suit
    size_bytes: int  # of the library
    notes: tuple[str, ...]  # what people should know, a line each


class Integration(Protocol):
    """A runtime that leaves nodes of a model to us. A module will do, with these functions."""

    def models_of_groups(self, model: Path | str | bytes, dims: Mapping[str, int]) -> Sequence[Path | str | bytes]:
        """The model of each group of nodes that runs on our kernels there, with `dims` bound.

        Where one group is all of the model it is the model itself, in which nothing is bound.
        """
        ...

    def compile_model(
        self,
        model: Path | str,
        output: Path | str,
        *,
        dims: Mapping[str, int] | None,
        threads: int | None,
        db: str | None,
        server: str | None,
        precision: Precision,
    ) -> CompiledFiles:
        """Write a model in the runtime's own format, which it opens at once."""
        ...


def find_integration(name: str) -> Integration:
    """The integration of this name. Raises Refused where no package has it."""
    from importlib.metadata import entry_points  # takes a while to import

    for point in entry_points(group=ENTRY_POINTS, name=name):
        integration: Integration = point.load()
        return integration
    known = ", ".join(sorted(printable(point.name) for point in entry_points(group=ENTRY_POINTS)))
    raise Refused(f"no runtime {printable(name)!r} is known; there is {known}" if known else "no runtimes are known")
