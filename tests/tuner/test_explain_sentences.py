"""A schedule in words: short sentences, true of the kernel that it becomes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, const
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Stage, Task, Tensor, canonical
from tunewright.search_space.cpu import contraction, generic
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import SKETCHES, lower, sketch
from tunewright.tuner.explain import sentences
from tunewright.tuner.explain.sentences import MOST_LETTERS, MOST_SENTENCES, describe

from ..search_space.oracle import DOTS, GPU, MATRICES, NARROW, WIDE
from ..search_space.test_sketches import MODELS, tasks_of

ROOT = Path(__file__).resolve().parents[2]

LARGE, SMALL = {"a": 56, "b": 28, "c": 64, "d": 32}, {"a": 13, "b": 7, "c": 37, "d": 3}
EVEN = {"a": 256, "b": 64, "c": 256, "d": 4}


def allocated(stmt: Stmt) -> Iterator[Buffer]:
    match stmt:
        case Block(body):
            for part in body:
                yield from allocated(part)
        case For(_, _, body) | If(_, body):
            yield from allocated(body)
        case Alloc(buffer, body):
            yield buffer
            yield from allocated(body)


def phases(kernel: Kernel) -> list[int]:
    return [p.extent if isinstance(p, For) and p.kind is LoopKind.PARALLEL else 1 for p in kernel.body.body]


def numbers(pattern: str, text: str) -> list[int]:
    """The numbers that a pattern finds."""
    return [int(found.replace(",", "")) for found in re.findall(pattern, text)]


def drawn(task: Task, target: Target, name: str, seed: int) -> Schedule:
    space = sketch(name).space(task, target)
    [row] = space.sample(1, np.random.default_rng(seed))
    return space.schedule(row)


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=2)
@given(large=st.booleans(), target=st.sampled_from((WIDE, NARROW)), seed=st.integers(0, 2**31))
def test_what_is_said_is_true_of_the_kernel(name: str, large: bool, target: Target, seed: int) -> None:
    for task in tasks_of(MODELS[name], LARGE if large else SMALL):
        for one in SKETCHES:
            if find_space(one, task, target):
                schedule = drawn(task, target, one.name, seed)
                check(task, target, schedule, lower(Candidate(task, target, schedule)))


def check(task: Task, target: Target, schedule: Schedule, kernel: Kernel) -> None:
    found = describe(task, target, schedule, kernel)
    assert 4 <= len(found) <= MOST_SENTENCES
    for line in found:
        assert line.isprintable()
        assert line.endswith(".")
        assert len(line) <= MOST_LETTERS
    text = "\n".join(found)
    counts = phases(kernel)
    if len(counts) > 8:
        assert numbers(r"phases, of up to ([\d,]+) chunks", text) == [max(counts)]
    elif len(counts) > 1:
        [said] = re.findall(r"phases, of (.*) chunks", text)
        assert numbers(r"([\d,]+\d|\d)", said.replace(", ", " ")) == counts
    else:
        assert numbers(r"\n([\d,]+) chunks? for", text) == counts or (counts == [1] and "one thread" in text)
    check_chunks(text, counts)
    check_packing(text, kernel)
    CHECKS.get(schedule.sketch, lambda *_: None)(text, task, target, schedule, kernel)


def check_chunks(text: str, counts: list[int]) -> None:
    """As many chunks as there are, of what is said to be in one, cover the whole."""
    for line in re.findall(r"^A chunk.* has (.*)(?:, and all of the rest)?\.$", text, re.M):
        if "rows" in line or "planes" in line or "block" in line or "memory" in line:
            continue
        cut = re.findall(r"\w+ ([\d,]+) of ([\d,]+\d|\d)", line)
        assert cut
        sizes = [(int(n.replace(",", "")), int(whole.replace(",", ""))) for n, whole in cut]
        assert all(0 < n < whole for n, whole in sizes)
        assert any(count >= prod(-(-whole // n) for n, whole in sizes) for count in counts)


def check_packing(text: str, kernel: Kernel) -> None:
    lines = re.findall(r"^((?:t\d+(?:, | and )?)+) (?:is|are) (?:transformed and )?packed when", text, re.M)
    assert sorted(re.findall(r"t\d+", " ".join(lines))) == sorted(kernel.packings)


def registers(text: str) -> tuple[dict[str, int], int]:
    """The sides of the register tile that is told of, and its vectors."""
    [(sides, vectors)] = re.findall(r"Register tiles of (.*): ([\d,]+) vectors? of", text)
    return {axis: int(n.replace(",", "")) for axis, n in (side.split() for side in sides.split(" by "))}, int(vectors)


def check_products(text: str, task: Task, target: Target, schedule: Schedule, kernel: Kernel) -> None:
    """The largest accumulators of a kernel are the tile that is told of."""
    _, vectors = registers(text)
    lanes = target.lanes(4)
    tiles = [b for b in allocated(kernel.body) if b.name.startswith(".acc")]
    copies = len({b.name for b in tiles}) if schedule.sketch == "joint" else 1
    assert vectors * lanes in {copies * prod(b.shape) for b in tiles}
    assert vectors <= target.vector_registers


def check_nest(text: str, task: Task, target: Target, schedule: Schedule, kernel: Kernel) -> None:
    """Chunks and tiles are those of the nest that is lowered."""
    if schedule.sketch == "generic":
        nest = generic._nest(generic.generic_layout(task, target.lanes(4)), dict(schedule.values), target)
    else:
        found = contraction.ContractionSketch(flipped=schedule.sketch == "flipped").pattern(task, target)
        nest = contraction.nest_of(found, schedule, target)
    if "Register tiles" in text:
        sides, _ = registers(text)
        assert all(nest.tile_extent(axis) == n for axis, n in sides.items())
    for line in re.findall(r"^A chunk(?: of phase \d+)? has (\w+ \d.*)\.$", text, re.M):
        for axis, n in re.findall(r"(\w+) ([\d,]+) of [\d,]+", line):
            sizes = [run.size for run in nest.runs(axis) for _ in range(run.count)]
            each = nest.tile_axis(axis).tiles_per_chunk
            assert max(sum(sizes[k : k + each]) for k in range(0, len(sizes), each)) == int(n.replace(",", ""))


def check_all(text: str, task: Task, target: Target, schedule: Schedule, kernel: Kernel) -> None:
    check_products(text, task, target, schedule, kernel)
    check_nest(text, task, target, schedule, kernel)


CHECKS: dict[str, Callable[[str, Task, Target, Schedule, Kernel], None]] = {
    "contraction": check_all,
    "flipped": check_all,
    "joint": check_products,
    "generic": check_nest,
}


def first(name: str) -> tuple[Task, Target, Schedule]:
    """A task that a sketch applies to, a target that it is for, and a schedule that is not its default."""
    one = sketch(name)
    tasks = (task for sizes in (LARGE, SMALL, EVEN) for text in MODELS.values() for task in tasks_of(text, sizes))
    task, target = next(
        (task, target) for task in tasks for target in (WIDE, DOTS, MATRICES, GPU) if find_space(one, task, target)
    )
    return task, target, drawn(task, target, name, 3)


@pytest.mark.slow
def test_the_words_of_every_sketch(golden: Callable[[str, str], None]) -> None:
    lines: list[str] = []
    for one in SKETCHES:
        task, target, schedule = first(one.name)
        lines += [f"{task.op}: {schedule}", *(f"  {line}" for line in describe(task, target, schedule)), ""]
    golden("words.txt", "\n".join(lines))


FOLDERS = ("api", "codegen", "costmodel", "db", "graph", "tuner", "workers")
AMBIGUOUS = {"split", "rows", "window", "plane", "chain", "joint", "elements", "generic"}
"""Names of sketches that are names of other things too, such as of loops, attributes and roles of segments."""


@pytest.mark.slow
def test_nothing_outside_the_search_space_names_a_sketch() -> None:
    names = {one.name for one in SKETCHES} - AMBIGUOUS
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    # the example of a record in the documentation of the API
    assert [name.rpartition(":")[0] for name in named] == ["api/http/schemas/records.py"]


def test_a_schedule_outside_the_space_is_illegal() -> None:
    task, target, schedule = first("contraction")
    with pytest.raises(Illegal):
        describe(task, target, Schedule(schedule.sketch, schedule.version + 1, schedule.values))


def test_a_task_without_axes_has_words() -> None:
    tensors = [Tensor(name, (1,), DType.F32) for name in ("a", "b")]
    stage = Stage("b", (), Load("a", (const(0),), DType.F32) * 2.0, index=(const(0),))
    task = canonical("Double", tensors[:1], tensors[1:], (), [stage])
    assert describe(task, WIDE, sketch("generic").space(task, WIDE).default)[1:] == [
        "Most of the work: t1[0] = t0[0] * 2.",
        "One chunk: it runs on one thread.",
        "Nothing lies along the lanes: it is computed element by element.",
    ]


def test_too_many_words_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "MOST_SENTENCES", 5)
    task, _, schedule = first("chain")
    found = describe(task, WIDE, schedule)
    assert len(found) == 5
    assert re.fullmatch(r"There are \d+ more things to say\.", found[-1])
