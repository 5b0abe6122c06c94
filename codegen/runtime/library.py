"""Native code in memory: object code linked into the process, the pool's own functions, and a kernel that evicts."""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import ceil
from string import Template
from typing import Any

from ..artifact import Artifact, Phase, objects_sha256
from ..host import allow_matrix_registers
from ..ir.ir import Buffer

ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
"""The name of the file beside pool.ll for each value of platform.machine()."""

STEP_SYMBOLS = (
    "tw_copy", "tw_loop_start", "tw_loop_next",
    "tw_find_true", "tw_find_largest", "tw_suppress_boxes", "tw_find_unique", "tw_couple_pairs",
    "tw_write_rows",
)  # fmt: skip
"""What control.ll, sizes.ll, unique.ll, coupling.ll and rows.ll have for steps beside kernels that are generated."""


class Library:
    """Objects linked into this process, each group in a namespace of its own: `addresses[i][symbol]` of the i-th.

    Symbols that a group lacks are looked up in the process (memset, expf, ...). Code stays until `close`, or until
    the library is collected; nobody may run it then. At the interpreter's end it stays, as a thread may be in it.

    Raises RuntimeError if an object is damaged, a group lacks a symbol asked for, or needs one that the process lacks.
    That it is for this processor is the caller's word.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[bytes], Sequence[str]]]) -> None:
        import llvmlite.binding as llvm

        # LLJIT, not MCJIT: that one ends the process on damaged objects, gives one object's function for another's
        # of the same name, and 0 for what it can't find. One engine a library: an engine never forgets a namespace.
        engine = llvm.create_lljit_compiler(_machine(), use_jit_link=True)
        parts: list[Any] = []
        self._unload = weakref.finalize(self, _unload, parts, engine)
        self._unload.atexit = False
        self.addresses: list[Mapping[str, int]] = []
        for number, (objects, symbols) in enumerate(groups):
            builder = llvm.JITLibraryBuilder().add_current_process()
            for code in objects:
                builder.add_object_img(code)
            for symbol in symbols:
                builder.export_symbol(symbol)
            part = builder.link(engine, f"group{number}")
            parts.append(part)
            self.addresses.append({symbol: part[symbol] for symbol in symbols})

    def close(self) -> None:
        """Unload the code. Closing twice is harmless."""
        self._unload()
        self.addresses = []


def _unload(parts: list[Any], engine: Any) -> None:
    while parts:
        parts.pop().close()
    engine.close()


def _machine() -> Any:
    """A new TargetMachine of this machine; each engine needs one of its own."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    target = llvm.Target.from_default_triple()
    # Its features too: a virtual machine may hide some that processors of this name have.
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=cpu, features=features, opt=1, reloc="pic", codemodel="small")


@dataclass(frozen=True, slots=True)
class PoolFunctions:
    """The exported functions of pool.ll, which says what they do. Calls release Python's lock."""

    create: Callable[..., int | None]  # threads, spin_ns, patience_ns, idle_ns, stack_bytes, places
    destroy: Callable[[int], None]
    run: Callable[[int | None, int, int, int | None], None]  # pool, steps, count, word
    time: Callable[..., int]  # pool, steps, count, repeats, samples, deadline_ns, out_ns
    run_at: int  # address of `run`, for native callers
    steps: Mapping[str, int]  # STEP_SYMBOLS by symbol: the addresses for steps
    library: Library


_pool_functions: PoolFunctions | None = None
_pool_lock = threading.Lock()


def pool_functions(code: bytes | None = None) -> PoolFunctions:
    """The native side of the pool, loaded at the first call.

    `code` is what `pool_object` gave in another process on this machine; without it, the pool is compiled. Raises
    OSError where it can't run, RuntimeError if `code` is damaged.
    """
    global _pool_functions
    with _pool_lock:
        if _pool_functions is None:
            allow_matrix_registers()  # for all threads of the process, before one of them runs a kernel
            symbols = ["tw_pool_create", "tw_pool_destroy", "tw_run", "tw_time"]
            library = Library([([pool_object() if code is None else code], [*symbols, *STEP_SYMBOLS])])
            create, destroy, run, time = (library.addresses[0][symbol] for symbol in symbols)
            pointer, number = ctypes.c_void_p, ctypes.c_int64
            _pool_functions = PoolFunctions(
                ctypes.CFUNCTYPE(pointer, *[number] * 5, pointer)(create),
                ctypes.CFUNCTYPE(None, pointer)(destroy),
                ctypes.CFUNCTYPE(None, pointer, pointer, number, pointer)(run),
                ctypes.CFUNCTYPE(number, pointer, pointer, *[number] * 4, pointer)(time),
                run,
                {symbol: library.addresses[0][symbol] for symbol in STEP_SYMBOLS},
                library,
            )
        return _pool_functions


@cache
def pool_object() -> bytes:
    """The pool as object code for this machine: 20 ms of work. Raises OSError where it can't run."""
    architecture = ARCHITECTURES.get(platform.machine().lower())
    if architecture is None or not sys.platform.startswith("linux"):
        raise OSError(f"kernels run on Linux on x86-64 and AArch64, not on {sys.platform} on {platform.machine()}")
    return emit_object(pool_text(architecture))


def emit_object(text: str) -> bytes:
    """LLVM IR as object code for this machine."""
    import llvmlite.binding as llvm

    machine = _machine()
    with llvm.parse_assembly(text) as module:
        module.verify()
        # More passes, or level 2 of the code generator, make a shared step no faster but cost each process 40 ms.
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0)))
        code: bytes = machine.emit_object(module)
    return code


def pool_text(architecture: str) -> str:
    """The LLVM IR of the pool for "x86_64" or "aarch64"."""
    folder = resources.files(__package__)
    return "\n".join(
        (folder / f"{name}.ll").read_text(encoding="utf-8")
        for name in (architecture, "pool", "shares", "workers", "control", "sizes", "unique", "coupling", "rows")
    )


def instance_text(architecture: str) -> str:
    """The LLVM IR of the pool with the instances of a program that is linked into a shared object."""
    own = (resources.files(__package__) / "instance.ll").read_text(encoding="utf-8")
    return f"{pool_text(architecture)}\n{own}"


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


def eviction_kernel(buffer: Buffer) -> Artifact:
    """A kernel that puts the memory of `buffer`, its parameter, out of the caches of all cores, on all threads.

    The memory keeps its content: what was written to it is written back. Raises OSError on a processor that kernels
    don't run on.
    """
    objects = (_object_code(),)
    lines = ceil(buffer.size_bytes / LINE_BYTES)
    return Artifact(objects, objects_sha256(objects), (Phase(_SYMBOL, lines),), (buffer,), (), {})


@cache
def _object_code() -> bytes:
    import llvmlite.binding as llvm

    match ARCHITECTURES.get(platform.machine().lower()):
        case "x86_64":
            parts = _x86_64(bool(llvm.get_host_cpu_features().get("clflushopt")))
        case "aarch64":  # by address to the point where all see it, as a program may: Arm ARM, C5.3
            parts = {
                "declarations": "",
                "attributes": "",
                "evict": 'call void asm sideeffect "dc civac, $0", "r,~{memory}"(ptr %at)',
                "fence": 'call void asm sideeffect "dsb ish", "~{memory}"()',
            }
        case _:
            raise OSError(f"memory can't be put out of the caches of {platform.machine()}")
    return emit_object(_TEXT.substitute(parts, symbol=_SYMBOL, line_bytes=LINE_BYTES))


def _x86_64(is_unordered: bool) -> dict[str, str]:
    """`clflushopt` evicts several lines at a time, where there is one: Intel SDM, volume 2, CLFLUSHOPT."""
    name = "llvm.x86.clflushopt" if is_unordered else "llvm.x86.sse2.clflush"
    return {
        "declarations": f"declare void @{name}(ptr)\ndeclare void @llvm.x86.sse2.mfence()",
        "attributes": '"target-features"="+clflushopt"' if is_unordered else "",
        "evict": f"call void @{name}(ptr %at)",
        "fence": "call void @llvm.x86.sse2.mfence()",
    }
