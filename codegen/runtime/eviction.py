"""Eviction: memory put out of all caches, as if nobody had read it for long. `evicting` makes kernels that do it."""

from __future__ import annotations

import platform
from functools import cache
from math import ceil
from string import Template

from ..artifact import Artifact, Phase, objects_sha256
from ..ir import Buffer
from .library import ARCHITECTURES, emitted

LINE_BYTES = 64
"""Between two instructions that each evict a line: no processor known here has shorter ones."""

_SYMBOL = "tw_evict"

_TEXT = Template("""
$declarations

define void @$symbol(ptr %buffers, i64 %begin, i64 %end) nounwind $attributes {
entry:
  %memory = load ptr, ptr %buffers
  br label %line
line:
  %n = phi i64 [ %begin, %entry ], [ %next, %line ]
  %offset = mul i64 %n, $line_bytes
  %at = getelementptr i8, ptr %memory, i64 %offset
  $evict
  %next = add i64 %n, 1
  %last = icmp sge i64 %next, %end
  br i1 %last, label %done, label %line
done:
  $fence
  ret void
}
""")
"""Lines begin .. end - 1 of the memory of its one parameter. A fence waits until all are out."""


def evicting(buffer: Buffer) -> Artifact:
    """A kernel that puts the memory of `buffer`, its parameter, out of the caches of all cores, on all threads.

    The memory keeps its content: what was written to it is written back. Raises OSError on a processor that kernels
    don't run on.
    """
    objects = (_object_code(),)
    lines = ceil(buffer.size_bytes / LINE_BYTES)
    return Artifact(objects, objects_sha256(objects), (Phase(_SYMBOL, lines),), (buffer,), (), {})


@cache
def _object_code() -> bytes:
    architecture = ARCHITECTURES.get(platform.machine().lower())
    match architecture:
        case "x86_64":
            parts = _x86_64(_has("clflushopt"))
        case "aarch64":  # by address to the point where all see it, as a program may: Arm ARM, C5.3
            parts = {
                "declarations": "",
                "attributes": "",
                "evict": 'call void asm sideeffect "dc civac, $0", "r,~{memory}"(ptr %at)',
                "fence": 'call void asm sideeffect "dsb ish", "~{memory}"()',
            }
        case _:
            raise OSError(f"memory can't be put out of the caches of {platform.machine()}")
    return emitted(_TEXT.substitute(parts, symbol=_SYMBOL, line_bytes=LINE_BYTES))


def _x86_64(is_unordered: bool) -> dict[str, str]:
    """`clflushopt` evicts several lines at a time, where there is one: Intel SDM, volume 2, CLFLUSHOPT."""
    name = "llvm.x86.clflushopt" if is_unordered else "llvm.x86.sse2.clflush"
    return {
        "declarations": f"declare void @{name}(ptr)\ndeclare void @llvm.x86.sse2.mfence()",
        "attributes": '"target-features"="+clflushopt"' if is_unordered else "",
        "evict": f"call void @{name}(ptr %at)",
        "fence": "call void @llvm.x86.sse2.mfence()",
    }


def _has(feature: str) -> bool:
    """Whether this processor has it, in LLVM's spelling."""
    import llvmlite.binding as llvm

    return bool(llvm.get_host_cpu_features().get(feature))
