"""Weight words: weights of few bits as threads of a GPU read them, some words of a column at once."""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.codegen.expr.dtype import WORD_BYTES
from tunewright.codegen.gpu import WIDEST_BYTES
from tunewright.codegen.ir.ir import AxisMatrix, Packing

from .block_matmul import BlockMatMul

WORD_BITS = 8 * WORD_BYTES

WIDEST_WORDS = WIDEST_BYTES // WORD_BYTES
"""Words of the widest access."""


@dataclass(frozen=True, slots=True)
class WeightWords:
    """The weights of a product in whole words. An access is a part of one block, or some blocks that follow each other.

    In a word numbers lie in their order, from the lowest bits on.
    """

    product: BlockMatMul

    @staticmethod
    def of(product: BlockMatMul) -> WeightWords | None:
        """Those of a product by floats; None where a block ends within a word."""
        is_whole = product.numbers.shape[2] * product.bits % WORD_BITS == 0
        return WeightWords(product) if is_whole and product.x_scales is None else None

    @property
    def word_numbers(self) -> int:
        """Numbers of a word."""
        return WORD_BITS // self.product.bits

    @property
    def block_words(self) -> int:
        """Words of a block."""
        return self.product.numbers.shape[2] // self.word_numbers

    @property
    def words(self) -> int:
        """Words of an access."""
        own, total = self.block_words, self.block_words * self.product.blocks
        choices = (n for n in (WIDEST_WORDS, 2) if total % n == 0 and (own % n == 0 or n % own == 0))
        return next(choices, 1)

    @property
    def spans(self) -> int:
        """Blocks of an access."""
        return max(self.words // self.block_words, 1)

    @property
    def parts(self) -> int:
        """Accesses of a block."""
        return max(self.block_words // self.words, 1)

    @property
    def terms(self) -> int:
        """Numbers of an access: terms of the fold."""
        return self.words * self.word_numbers

    def packings(self, lanes: int, wide: int) -> dict[str, Packing]:
        """The layouts of numbers, scales and zero points, for so many threads side by side, of `wide` columns each.

        Numbers are [blocks / spans, parts, stretches of columns, wide, lanes, bytes of an access]: what lanes read at
        once lies side by side, and so does what they read of all their columns. The others are
        [blocks / spans, stretches, lanes, what a thread needs with that].
        """
        product, spans, parts = self.product, self.spans, self.parts
        columns, blocks, size = product.numbers.shape
        stretches = -(-columns // (lanes * wide))
        padded, across, count = stretches * lanes * wide, (stretches, lanes, wide), (blocks // spans, spans)
        block_bytes = size // product.halves
        numbers = Packing(
            order=(1, 2, 0),
            padded=(blocks, block_bytes, padded),
            splits=(count, (parts, block_bytes // parts), across),
            parts=(0, 2, 4, 6, 5, 1, 3),
            maps=((2, _neighbours(size)),) if product.halves > 1 else (),
            joined=2,
        )
        others = Packing((1, 0), (blocks, padded), (count, across), (0, 2, 3, 4, 1), joined=2)
        packings = {product.numbers.name: numbers, product.scales.name: others}
        return packings if isinstance(product.zeros, int) else {**packings, product.zeros.name: others}


def _neighbours(size: int) -> AxisMatrix:
    """How two neighbours become a byte, the first of them its lower half."""
    return tuple(
        tuple({first: 1.0, first + 1: 16.0}.get(number, 0.0) for number in range(size)) for first in range(0, size, 2)
    )
