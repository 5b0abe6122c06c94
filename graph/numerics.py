"""Numerics: in what numbers a model is computed, beside those that it is written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """What a user lets products be computed in. All but AS_GIVEN round more than the model says."""

    AS_GIVEN = "as given"
    BF16 = "bf16"
    """Operands of products with known weights are rounded to bfloat16; sums are float32. Where a machine does not
    multiply such numbers, the weights alone are rounded, to half the memory."""
    INT8_ACTIVATIONS = "int8 activations"
    """What meets quantised weights in a product is rounded to bytes: by block where weights are, else by tensor."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """What the graph is rewritten for: what the machine computes in, and what the user allows."""

    widen: bool = True
    """Narrow floats are computed, and kept meanwhile, in float32, and what bytes stand for is multiplied as floats: so
    processors do it. Else both are multiplied as they are."""
    dots: bool = False
    """But bytes are multiplied as such where that is faster: see `Target.has_dots`."""
    bf16: bool = False
    """bfloat16 is multiplied as such: see `Target.has_bf16`."""
    precision: Precision = Precision.AS_GIVEN


PROCESSOR = Numerics()
"""Those of any processor, for a model as it is given."""
