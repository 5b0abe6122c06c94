"""Schedule: one point of a space, as plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunewright.codegen.fields import quote


class Illegal(Exception):
    """The point is not in the space: it never existed. Says which value breaks which limit."""


LARGEST_VERSION = 2**31 - 1
"""The largest version of a sketch."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Knob values for a sketch: at once the database row, the cache key, the feature source and what is replayed."""

    sketch: str
    version: int  # of the sketch: the same values mean the same kernel only within one version
    values: tuple[tuple[str, int], ...]  # in the order of the space's knobs

    def __getitem__(self, knob: str) -> int:
        """The value of a knob. Raises KeyError."""
        return dict(self.values)[knob]

    @property
    def sketch_name(self) -> str:
        """The sketch with its version, e.g. "block_matmul.3"."""
        return f"{self.sketch}.{self.version}"

    @property
    def key(self) -> str:
        """SHA-256 over the canonical JSON."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.sketch_name}({', '.join(f'{name}={value}' for name, value in self.values)})"

    def to_json(self) -> dict[str, Any]:
        return {"sketch": self.sketch, "version": self.version, "values": dict(self.values)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Schedule:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError on other data."""
        numbers = data["values"]
        if not isinstance(numbers, Mapping):
            raise TypeError(f"schedule: values must be an object, not {quote(numbers)}")
        for value in (data["version"], *numbers.values()):
            if type(value) is not int:
                raise TypeError(f"schedule: {quote(value)} is no whole number")
        if abs(data["version"]) > LARGEST_VERSION:
            raise ValueError(f"schedule: {quote(data['version'])} is no version of a sketch")
        return Schedule(str(data["sketch"]), data["version"], tuple((str(name), n) for name, n in numbers.items()))
