"""Texts of a schedule, from loop IR to assembly, and their differences. All of bounded length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.build import source as cuda_source
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.llvm.build import assembly, source
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower

from ..text import counted, printable_lines

PARTS = ("ir", "llvm", "assembly")
"""Kinds of text for a processor."""

GPU_PARTS = ("ir", "cuda", "ptx")
"""Kinds of text for a GPU."""

MOST_LETTERS = 120_000
"""Letters of a text: its page stays below 300 kB. Assembly of most kernels has a third of that."""

MOST_LINE_LETTERS = 400
"""Letters of a line."""

MOST_COMPARED = 4_000
"""Lines of each text that are compared: the time it takes grows with their square."""

MOST_DIFFERENCES = 1_000
"""Lines of a difference."""

CONTEXT = 3
"""Lines shown before and behind those that differ."""

_SYMBOL = re.compile(r"\b(?:k[0-9a-f]{24}(?=_p\d)|m[0-9a-f]{24}\b)")
"""Names of functions follow from all that is in them, see `build`."""


class DiffKind(StrEnum):
    """The kind of a line in a difference."""

    SAME = "same"
    REMOVED = "removed"
    ADDED = "added"
    SKIPPED = "skipped"  # says how many lines are left out, or that the comparison ends there


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of what two texts have in common, or one of them alone."""

    kind: DiffKind
    text: str


def text_of(kernel: Kernel, target: Target, part: str) -> str:
    """A kernel as one of `parts_of` its target, however long.

    Raises as `build`, ValueError on another part, and NoCompiler where PTX is wanted and nothing makes it.
    """
    match part, target.gpu is not None:
        case "ir", _:
            return str(kernel)
        case "llvm", False:
            return source(kernel, target)
        case "assembly", False:
            return assembly(kernel, target)
        case "cuda", True:
            return cuda_source(kernel, target).text
        case "ptx", True:
            return nvrtc.ptx(cuda_source(kernel, target).text, target.cpu)
    raise ValueError(f"{part!r} is none of {', '.join(parts_of(target))}")


def parts_of(target: Target) -> tuple[str, ...]:
    """The kinds of text for a target."""
    return PARTS if target.gpu is None else GPU_PARTS


def texts(task: Task, target: Target, schedule: Schedule, part: str) -> str:
    """A schedule as one of PARTS, of MOST_LETTERS at most; a last line says what was left out.

    Raises Illegal, and as `text_of`. With tasks of strangers it may take any time and memory: see `describer`.
    """
    return cut(readable(text_of(lower(Candidate(task, target, schedule)), target, part)))


def readable(text: str) -> str:
    """The text without tabs and unprintable characters."""
    return printable_lines(text.replace("\t", "    "))


def cut(text: str, most_letters: int = MOST_LETTERS) -> str:
    """The text in whole lines, as many as fit; long ones are cut, and a last line says how many there are more."""
    lines = text.removesuffix("\n").split("\n")
    text_lines = _first_lines(map(_cut_line, lines), most_letters)
    if len(text_lines) < len(lines):
        text_lines.append(f"... {counted(len(lines) - len(text_lines), 'more line')} of {counted(len(lines), 'line')}")
    return "\n".join(text_lines) + "\n"


def _first_lines(lines: Iterable[str], most_letters: int) -> list[str]:
    """The first lines that have together no more than so many letters."""
    letters = 0
    first_lines: list[str] = []
    for line in lines:
        letters += len(line) + 1
        if letters > most_letters:
            break
        first_lines.append(line)
    return first_lines


def difference(a: str, b: str) -> list[DiffLine]:
    """The difference from one text to another, with a few lines around each change. Empty where they are alike.

    Of long texts the first MOST_COMPARED lines are compared; MOST_DIFFERENCES lines of MOST_LETTERS are given at most.
    """
    before, after = (_SYMBOL.sub("kernel", text).removesuffix("\n").split("\n") for text in (a, b))
    rest = max(len(before), len(after)) - MOST_COMPARED
    lines = list(_difference_lines(before[:MOST_COMPARED], after[:MOST_COMPARED]))
    count = len(_first_lines((line.text for line in lines[:MOST_DIFFERENCES]), MOST_LETTERS))
    if more := len(lines) - count:
        lines = [*lines[:count], DiffLine(DiffKind.SKIPPED, f"... {counted(more, 'more line')} of the difference")]
    elif rest > 0 and before != after:
        lines.append(DiffLine(DiffKind.SKIPPED, f"... {counted(rest, 'more line')} that nobody compared"))
    return lines


def _difference_lines(before: Sequence[str], after: Sequence[str]) -> Iterator[DiffLine]:
    """The lines of all groups of differences, and between them how many are alike."""
    done = 0
    for group in SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT):
        if group[0][1] > done:
            yield DiffLine(DiffKind.SKIPPED, f"... {counted(group[0][1] - done, 'line')} alike")
        done = group[-1][2]
        for tag, first, stop, first_after, stop_after in group:
            if tag == "equal":
                yield from _lines(DiffKind.SAME, before[first:stop])
            else:
                yield from _lines(DiffKind.REMOVED, before[first:stop])
                yield from _lines(DiffKind.ADDED, after[first_after:stop_after])
    if 0 < done < len(before):
        yield DiffLine(DiffKind.SKIPPED, f"... {counted(len(before) - done, 'line')} alike")


def _lines(kind: DiffKind, lines: Sequence[str]) -> Iterator[DiffLine]:
    return (DiffLine(kind, _cut_line(line)) for line in lines)


def _cut_line(line: str) -> str:
    return line if len(line) <= MOST_LINE_LETTERS else f"{line[: MOST_LINE_LETTERS - 4]} ..."
