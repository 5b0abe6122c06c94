"""A proof that a memory plan is right, step by step."""

from __future__ import annotations

from collections.abc import Mapping

from tunewright.codegen.runtime.memory import ALIGN_BYTES
from tunewright.codegen.runtime.plan import ArenaPlan, ArenaProblem
from tunewright.codegen.runtime.plan import _others as others_of


def check(problem: ArenaProblem, arena: ArenaPlan) -> None:
    """Prove that tensors alive in the same step do not overlap, but where one works in place. Raises ValueError if not.

    It looks at the steps one by one and at what is alive in each, not at how the plan was made.
    """
    for name, offset_bytes in arena.offsets.items():
        root, inside_bytes = problem.locate(name)
        if offset_bytes != arena.offsets[root] + inside_bytes or arena.offsets[root] % ALIGN_BYTES:
            raise ValueError(f"{name} is at {offset_bytes}, not where {root} or the alignment wants it")
    spans = problem.lifetimes()
    for number, step in enumerate(problem.steps):
        alive = [root for root, (first, last) in spans.items() if first <= number <= last]
        areas = [(arena.offsets[root], problem.sizes_bytes[root], root) for root in alive]
        scratch = zip(arena.scratch[number], step.scratch_bytes, strict=True)
        areas += [(offset_bytes, size_bytes, "") for offset_bytes, size_bytes in scratch]
        areas = sorted(area for area in areas if area[1])
        for place, (begin, size_bytes, name) in enumerate(areas):
            if begin < 0 or begin + size_bytes > arena.size_bytes:
                raise ValueError(f"step {number}: {name or 'scratch'} is outside the arena")
            for other_begin, _, other in areas[place + 1 :]:
                if other_begin >= begin + size_bytes:
                    break
                same = begin == other_begin
                if not (same and works_in_place(problem, spans, number, {name, other})):
                    raise ValueError(f"step {number}: {name or 'scratch'} and {other or 'scratch'} overlap")


def works_in_place(
    problem: ArenaProblem, spans: Mapping[str, tuple[int, int]], number: int, overlapping: set[str]
) -> bool:
    """Whether step `number` lets the two overlap: one dies in it, read under one name, the other is born there."""
    for write, read in problem.steps[number].in_place:
        root, inside_bytes = problem.locate(read)
        is_last_use = {write, root} == overlapping and spans[root][1] == number == spans[write][0]
        if is_last_use and not inside_bytes and overlapping.isdisjoint(others_of(problem, number, write, read)):
            return True
    return False
