"""Small phases in LLVM text, and what they are for the tests of the runtime: object code, artifacts, memory."""

from __future__ import annotations

import numpy as np

from tunewright.codegen.artifact import Artifact, Phase, objects_sha256
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.ir.ir import Buffer
from tunewright.codegen.runtime.memory import aligned_empty

LOOP = """
define void @{symbol}(ptr %args, i64 %begin, i64 %end) nounwind {{
entry:
  %a = load ptr, ptr %args
  %b.at = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %b.at
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
{body}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""

# args[1][i] = args[0][(i + 1) % 64] + i: reads what another thread wrote in the phase before.
NEIGHBOUR = """
  %n = add i64 %i, 1
  %m = and i64 %n, 63
  %in = getelementptr i64, ptr {source}, i64 %m
  %x = load i64, ptr %in
  %y = add i64 %x, %i
  %out = getelementptr i64, ptr {target}, i64 %i
  store i64 %y, ptr %out"""

# args[0][0] = args[0][0] * 3 + 1: wrong if two run at once or in another order than the others.
ALONE = """
  %x = load i64, ptr %a
  %t = mul i64 %x, 3
  %y = add i64 %t, 1
  store i64 %y, ptr %a"""

# args[0][i] += 1
COUNT = """
  %at = getelementptr i64, ptr %a, i64 %i
  %x = load i64, ptr %at
  %y = add i64 %x, 1
  store i64 %y, ptr %at"""


def compiled(text: str, triple: str = "") -> bytes:
    """LLVM text as object code, of this machine unless a triple is given."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple or llvm.get_default_triple())
    machine = target.create_target_machine(opt=1, reloc="pic", codemodel="small")
    code: bytes = machine.emit_object(llvm.parse_assembly(text))
    return code


def artifact(
    text: str, phases: list[tuple[str, int]], params: tuple[int, ...] = (64, 64), scratch: tuple[int, ...] = ()
) -> Artifact:
    """Phases, by symbol and iterations, on int64 buffers of these sizes."""
    code = compiled(text)
    return Artifact(
        objects=(code,),
        sha256=objects_sha256([code]),
        phases=tuple(Phase(*phase) for phase in phases),
        params=tuple(Buffer(f"p{n}", (size,), DType.I64) for n, size in enumerate(params)),
        scratch=tuple(Buffer(f"s{n}", (size,), DType.I64) for n, size in enumerate(scratch)),
        packings={},
    )


def integers(size: int = 64, value: int = 0):
    """Memory for a buffer, all of one value."""
    array = aligned_empty((size,), DType.I64)
    array[:] = value
    return array


COUNTING = LOOP.format(symbol="count", body=COUNT)
THERE_AND_BACK = "".join(
    LOOP.format(symbol=symbol, body=NEIGHBOUR.format(source=source, target=target))
    for symbol, source, target in [("there", "%a", "%b"), ("back", "%b", "%a")]
)
MIXED = THERE_AND_BACK + LOOP.format(symbol="alone", body=ALONE)


def there_and_back(values):
    """What the phases `there` and `back` make of 64 values."""
    index = np.arange(64)
    for _ in range(2):
        values = np.roll(values, -1) + index
    return values
