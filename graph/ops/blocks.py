"""Products with weights of few bits in blocks along the reduction, and activations rounded to bytes in these blocks.

Both are ops of this package alone; `rewrites.block_matmul` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nan, prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, const, op

from ..block_product import LARGEST_ROUNDED, LEAST_BLOCK
from ..task import Index, load
from .definition import Definition, OpDef

F32 = DType.F32


def block_matmul(d: Definition) -> None:
    """Matrix product with weights of four or eight bits in blocks: the sum of x * (number - zero point) * scale.

    `x` is floats, or bytes with a scale for each block. Where all zero points are one number, it is an attribute.
    """
    x, numbers, scales = d.input(0, F32, DType.I8), d.input(1, DType.U8), d.input(2, F32)
    zeros = d.input(3, DType.U8) if d.has(3) else None
    columns, *blocks = numbers.shape
    rows = prod(x.shape) // prod(blocks)
    x, y = d.reshape(x, (rows, *blocks)), d.reshape(d.output(), (rows, columns))
    x_scales = d.reshape(d.input(4, F32), (rows, blocks[0])) if d.has(4) else None

    def activation(row: Expr, r: Index) -> Expr:
        value = load(x, [row, *r])
        return value if x_scales is None else op("cast", value, dtype=F32) * load(x_scales, [row, r[0]])

    def zero(column: Expr, block: Expr) -> Expr:
        if zeros is None:
            return const(d.attr("zero"), DType.I32)
        return op("cast", load(zeros, [column, block]), dtype=DType.I32)

    def product(i: Index, r: Index) -> Expr:
        (row, column), block = i, r[0]
        number = op("cast", load(numbers, [column, *r]), dtype=DType.I32)
        if d.attr("bits") == 4:  # says that there are no larger ones
            number = op("mod", number, 1 << 4)
        weight = op("cast", number - zero(column, block), dtype=F32)
        return activation(row, r) * (weight * load(scales, [column, block]))

    d.fold(y, "sum", blocks, product)


def block_quantize(d: Definition) -> None:
    """Signed bytes, up to LARGEST_ROUNDED in size, of the nearest multiples of a scale, and the scale of each block.

    A block with an infinity has NaN for a scale.
    """
    x, size = d.input(0, F32), int(d.attr("size"))
    rows, blocks = prod(x.shape[:-1]), x.shape[-1] // size
    x = d.reshape(x, (rows, blocks, size))
    numbers, scales = d.reshape(d.output(0), (rows, blocks, size)), d.reshape(d.output(1), (rows, blocks))
    largest = d.temporary((rows, blocks), F32)
    d.fold(largest, "max", [size], lambda i, r: op("abs", load(x, [*i, *r])))

    def scale(i: Index) -> Expr:
        size = load(largest, i)
        return op("select", op("lt", size, inf), op("div", size, float(LARGEST_ROUNDED)), nan)

    def number(i: Index) -> Expr:
        size = load(largest, i[:2])
        is_plain = op("and", op("lt", LEAST_BLOCK, size), op("lt", size, inf))
        factor = op("select", is_plain, op("div", 1.0, load(scales, i[:2])), 0.0)
        value = op("select", is_plain, load(x, i), 0.0)
        return op("cast", op("round", value * factor), dtype=DType.I8)

    d.write(scales, scale)
    d.write(numbers, number)


BLOCKS: Mapping[str, OpDef] = {"BlockMatMul": block_matmul, "BlockQuantize": block_quantize}
