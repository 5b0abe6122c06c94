"""AcrossSizes: what a process that compiles one model at several sizes keeps from each for the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..lookup.near_picks import NearPicks
from .kernel_families import KernelFamilies
from .packed_weights import PackedWeights


@dataclass(frozen=True, slots=True)
class AcrossSizes:
    """Picks and kernels that serve several sizes, and weights, which are the same at all."""

    picks: NearPicks = field(default_factory=NearPicks)
    kernels: KernelFamilies = field(default_factory=KernelFamilies)
    weights: PackedWeights = field(default_factory=PackedWeights)
