"""The machine that code is made for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A processor and the hardware numbers that schedules and features depend on. Two machines alike share a key."""

    kind: str  # "cpu"
    triple: str  # LLVM's name of architecture and system, e.g. "x86_64-unknown-linux-gnu"
    cpu: str  # LLVM's name of the processor, e.g. "znver5"
    features: str  # LLVM's feature string, e.g. "+avx512f,+fma"; empty: what `cpu` implies
    vector_bits: int
    vector_registers: int
    threads: int  # how many the timed kernels run on
    l1_bytes: int  # data cache of one core
    l2_bytes: int  # of one core
    l3_bytes: int  # shared; 0 where there is none

    @property
    def key(self) -> str:
        """SHA-256 over the canonical JSON: the identity of the target in the database."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def lanes(self, element_bytes: int) -> int:
        """Elements of this size in one vector register."""
        return self.vector_bits // 8 // element_bytes

    def __str__(self) -> str:
        return f"{self.kind}:{self.cpu}:{self.threads}x{self.vector_bits}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Target:
        """The inverse of `to_json`. Raises TypeError on missing or unknown fields."""
        return Target(**data)
