"""Block product: one term of a product with weights of few bits, of which every block has a scale and a zero point."""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Op, narrow_source

MOST_ROWS, MOST_GPU_ROWS = 16, 8
"""Rows up to which a product reads such weights as they are, on a processor and on a GPU.

With more, arithmetic is taken to last longer than reading, and products of floats are less of it. Of GPUs that was not
measured yet.
"""

LARGEST_ROUNDED = 127
"""The largest rounded activation of a block, in size."""

LARGEST_BYTE = 255

LEAST_BLOCK = 1e-36
"""Blocks of activations that are nowhere larger are rounded to zeros: their scale would have no inverse."""


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """What a term reads: x * (number - zero) * scale, see `graph.ops.blocks`."""

    bits: int  # of a weight, 4 or 8
    x: Load  # float32, a narrow type that is cast, or bytes
    x_scale: Load | None  # where x is rounded to bytes
    number: Load
    zero: Load | Const  # one number where all zero points are
    scale: Load  # float32, or a narrow type that is cast


def match_block_product(body: Expr) -> BlockProduct | None:
    """The term that a body is; None where it is something else."""
    match body:
        case Op("mul", (activation, Op("mul", (Op("cast", (Op("sub", (number, zero), DType.I32),)), factor)))):
            scale = narrow_source(factor)
            if not isinstance(scale, Load):
                return None
            match narrow_source(activation):
                case Load() as x:
                    x_scale = None
                case Op("mul", (Op("cast", (Load(dtype=DType.I8) as x,)), Load() as x_scale)):
                    pass
                case _:
                    return None
            point = _match_zero_point(zero)
            match number:
                case Op("mod", (Op("cast", (Load(dtype=DType.U8) as q,)), Const(16))) if point is not None:
                    return BlockProduct(4, x, x_scale, q, point, scale)
                case Op("cast", (Load(dtype=DType.U8) as q,)) if point is not None:
                    return BlockProduct(8, x, x_scale, q, point, scale)
    return None


def _match_zero_point(zero: Expr) -> Load | Const | None:
    match zero:
        case Const(value) if 0 <= value <= LARGEST_BYTE:
            return zero
        case Op("cast", (Load(dtype=DType.U8) as load,)):
            return load
    return None
