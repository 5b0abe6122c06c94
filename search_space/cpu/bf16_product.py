"""Product of bfloat16: pairs by known pairs, two at a time, as a register-tiled loop nest. Sums are float32.

See `byte_product`. Source: VDPBF16PS in "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2; BFDOT
in "Arm Architecture Reference Manual for A-profile", C7.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..description import SchedulePoint
from ..patterns.dot import match_bf16_dot
from ..patterns.product import Product
from .packed_dot import BF16_PAIRS, DotSketch, if_wide


class Bf16ProductSketch(DotSketch):
    """A register-tiled loop nest of one product of bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.version = "bf16_product", 1

    def recognise(self, task: Task, target: Target) -> Product | None:
        return if_wide(match_bf16_dot(task), target) if 0 < target.vector_bits <= target.bf16_bits else None

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from super().describe(point)
        yield f"{BF16_PAIRS}."
