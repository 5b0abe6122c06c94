"""The types of ops: which operands each takes, of how many lanes, and what its result is."""

from __future__ import annotations

from collections.abc import Mapping

from .dtype import FLOATS, INTEGERS, NARROW, DType
from .expr import COMPARISONS, HORIZONTAL, OF_WORDS, TRANSCENDENTAL, ZIPS, Expr, Op, arity
from .math import has_expansion
from .nodes import fact
from .semantics import OPS

NUMBERS = frozenset((*FLOATS, *INTEGERS))
BOOLS = frozenset({DType.BOOL})

OPERAND_TYPES: Mapping[str, frozenset[DType]] = {
    **dict.fromkeys(("sqrt", "floor", "ceil", "round", *TRANSCENDENTAL - {"pow"}), frozenset(FLOATS)),
    **dict.fromkeys(("floordiv", "mod", "shl", "shr", "bitand", "bitor", "bitxor"), frozenset(INTEGERS)),
    **dict.fromkeys(("and", "or", "not"), BOOLS),
    **dict.fromkeys(OF_WORDS, frozenset({DType.I32})),
    "widen_bytes": frozenset({DType.I16}),
    **dict.fromkeys(("eq", "ne", "min", "max"), NUMBERS | BOOLS),
    **dict.fromkeys(("select", "cast", *ZIPS), NUMBERS | BOOLS | NARROW),
}
"""Types of the operands of an op; all other ops take NUMBERS."""


@fact
def op_fault(node: Expr) -> str:
    """The error of an op that does not depend on its context; empty if there is none."""
    if not isinstance(node, Op):
        return ""
    kinds: list[DType] = [a.dtype for a in node.args]
    if node.name not in OPS or len(kinds) != arity(node.name):
        return f"no op {node.name} of {len(kinds)} arguments"
    counts = [a.lanes for a in node.args]
    lanes = max(counts)
    if lanes > 1 and not {1, lanes}.issuperset(counts):
        return f"arguments of {counts} lanes"
    if node.name in HORIZONTAL and lanes == 1:
        return "there are no lanes to join"
    if node.name in ZIPS and (lanes == 1 or lanes % 2):
        return f"there are no halves of {lanes} lanes"
    if not _has_valid_types(node.name, kinds, node.dtype):
        return f"{node.name} of {', '.join(kinds)} to {node.dtype}"
    if node.name in TRANSCENDENTAL and not has_expansion(node):
        return f"{node.name} of {node.dtype} has no expansion"
    return ""


def _has_valid_types(name: str, kinds: list[DType], result: DType) -> bool:
    """Whether an op takes these dtypes to that one."""
    allowed = OPERAND_TYPES.get(name, NUMBERS)
    if name == "bitcast":
        return kinds[0].size_bytes == result.size_bytes and not {DType.BOOL, *NARROW} & {kinds[0], result}
    if name == "select":
        return kinds[0] is DType.BOOL and kinds[1] is kinds[2] is result
    if name == "dot2_bf16":
        return (*kinds, result) == (DType.I32, DType.I32, DType.F32, DType.F32)
    if any(kind is not kinds[0] for kind in kinds) or kinds[0] not in allowed:
        return False
    if name == "widen_bytes":
        return result is DType.I32
    if name == "cast":
        return NARROW.isdisjoint((kinds[0], result)) or DType.F32 in (kinds[0], result)
    return result is (DType.BOOL if name in COMPARISONS else kinds[0])
