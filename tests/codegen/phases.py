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


# Counts iterations in args[0], as COUNT does. args[1] has: 0 the calling thread; 1 iterations done; 2 those done by
# workers; 3 whether a worker has begun, for which the caller waits if 4 is not zero; 5 and 6 turns that a call of the
# caller, and of a worker, takes at least. A worker's call ends as the last one of the phase if 4 is not zero.
LATE = """
declare i64 @pthread_self()
define void @late(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %counts = load ptr, ptr %args
  %state.at = getelementptr ptr, ptr %args, i64 1
  %state = load ptr, ptr %state.at
  %done.at = getelementptr i64, ptr %state, i64 1
  %others.at = getelementptr i64, ptr %state, i64 2
  %begun.at = getelementptr i64, ptr %state, i64 3
  %meets.at = getelementptr i64, ptr %state, i64 4
  %meets = load i64, ptr %meets.at
  %apart = icmp eq i64 %meets, 0
  %number = sub i64 %end, %begin
  %rest = sub i64 64, %number
  %caller = load i64, ptr %state
  %self = call i64 @pthread_self()
  %is.caller = icmp eq i64 %self, %caller
  %goal = select i1 %is.caller, i64 1, i64 %rest
  %word = select i1 %is.caller, ptr %begun.at, ptr %done.at
  %turns.place = select i1 %is.caller, i64 5, i64 6
  %turns.at = getelementptr i64, ptr %state, i64 %turns.place
  br i1 %is.caller, label %ready, label %worker
worker:
  store atomic i64 1, ptr %begun.at release, align 8
  %by.others = atomicrmw add ptr %others.at, i64 %number monotonic
  br label %ready
ready:
  br i1 %apart, label %turn, label %wait
wait:
  %value = load atomic i64, ptr %word acquire, align 8
  %there = icmp sge i64 %value, %goal
  br i1 %there, label %turn, label %wait
turn:
  %n = phi i64 [ 0, %ready ], [ 0, %wait ], [ %n.next, %turn ]
  %turns = load volatile i64, ptr %turns.at
  %n.next = add i64 %n, 1
  %more.turns = icmp slt i64 %n, %turns
  br i1 %more.turns, label %turn, label %count
count:
  %i = phi i64 [ %begin, %turn ], [ %i.next, %count ]
  %at = getelementptr i64, ptr %counts, i64 %i
  %x = load i64, ptr %at
  %y = add i64 %x, 1
  store i64 %y, ptr %at
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %end
  br i1 %more, label %count, label %over
over:
  %before = atomicrmw add ptr %done.at, i64 %number release
  ret void
}
"""


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
