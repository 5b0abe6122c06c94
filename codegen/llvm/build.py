"""Kernel -> object code. Read `build` first.

The text is explicit (vectors, unrolling, hoisting are the schedule's), so of LLVM's passes only SROA runs, which
promotes register buffers, and machine code generation does the rest. Vectorisers never run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ..artifact import Artifact, Phase, SymbolicArtifact, objects_sha256
from ..expr.symbolic import Trace
from ..ir.ir import For, Kernel, LoopKind
from ..private_folder import PrivateFolder
from ..target import Target
from ..verify import verify
from .emit import emit
from .function import MICROKERNEL, LlvmSource

BUILD_VERSION = 1
"""Raised when the same text would be built into other code: pass pipeline, options."""


class Pipeline(NamedTuple):
    """The passes that LLVM runs."""

    level: int  # effort of machine code generation, of 0 to 3
    is_full: bool = False  # all passes that belong to a level, vectorisers too, instead of SROA alone


PIPELINE = Pipeline(2)
"""The default. `./dev bench pipeline` compares it with the full one, which takes longer and gives no faster code."""

CACHE_BYTES = 1 << 30
"""Object code that a cache keeps; an object has some 10 KiB."""

PUTS = 500
"""Objects put between two looks at the size of a cache that is open for long."""

PLACEHOLDER = "kernel"
"""The symbol while the text, which decides the symbol, is written."""

_ir_log, _llvm_log, _assembly_log = (logging.getLogger(f"tunewright.{name}") for name in ("ir", "llvm", "assembly"))


class BuildError(Exception):
    """A compiler, LLVM or NVRTC, refused a kernel. One line."""


class ObjectCache:
    """Object code on disk, for this user alone. A file that was cut short, changed or exchanged counts as absent.

    Where it exceeds `limit_bytes`, what was not used for longest goes. Several processes may use it at once.
    Raises as `PrivateFolder`.
    """

    def __init__(self, folder: Path, limit_bytes: int = CACHE_BYTES) -> None:
        self._files = PrivateFolder(folder)
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._puts = 0
        self._tidy()

    def path(self, key: str) -> Path:
        """The file of a key, named by the digest of the key."""
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.o"

    def get(self, key: str) -> bytes | None:
        """The object code of a key, if it is there and whole."""
        path = self.path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):
            os.utime(path)  # it is in use
        digest, code = content[:32], content[32:]
        return code if _seal(key, code) == digest else None

    def put(self, key: str, code: bytes) -> None:
        """Keep object code, in one step for readers. A full disk is no error: the cache only saves time."""
        with suppress(OSError):
            self._files.write(self.path(key), [_seal(key, code), code])
        self._puts += 1
        if self._puts % PUTS == 0:
            self._tidy()

    def _tidy(self) -> None:
        self._files.tidy(self._limit_bytes, "*.o")


def _seal(key: str, code: bytes) -> bytes:
    """A digest of a key and its code, so that a file with the code of another key counts as damaged."""
    return hashlib.sha256(key.encode() + code).digest()


def build(kernel: Kernel, target: Target, cache: ObjectCache | None = None, pipeline: Pipeline = PIPELINE) -> Artifact:
    """Compile a kernel for a target, or take its objects from the cache.

    The symbols come from the content, so that the same kernel always gives the same objects, and objects that kernels
    share have one name. Only kernels that pass `verify` are compiled; texts in the cache have passed it. Raises
    BuildError if LLVM refuses; VerifyError, and as `emit`, on a bug in the sketch of the kernel.
    """
    return _Builder(target, cache, pipeline).start(kernel)()


def build_all(kernels: Iterable[Kernel], target: Target, cache: ObjectCache | None = None) -> list[Artifact]:
    """Build kernels in order, as `build`. A thread of its own compiles, while the text of the next is written.

    One thread is enough: LLVM, which runs without Python's lock, has one of its own for all threads.
    """
    with ThreadPoolExecutor(1, "tunewright-llvm") as thread:
        builder = _Builder(target, cache, thread=thread)
        return [finish() for finish in [builder.start(kernel) for kernel in kernels]]


def build_symbolic(kernel: Kernel, trace: Trace, target: Target, cache: ObjectCache | None = None) -> SymbolicArtifact:
    """Compile a kernel with numbers of a trace, as `build`. It was verified, and the trace has what that took."""
    builder = _Builder(target, cache)
    finish, names = builder.write(kernel)
    numbers: Any = tuple(trace.by_name(name) for name in names)
    return SymbolicArtifact(replace(finish(), numbers=numbers), trace)


class _Builder:
    """Builds kernels for one target; each text is compiled once, in `thread` where there is one."""

    def __init__(
        self, target: Target, cache: ObjectCache | None, pipeline: Pipeline = PIPELINE, thread: Executor | None = None
    ) -> None:
        self._target, self._cache, self._pipeline, self._thread = target, cache, pipeline, thread
        self._options = _options(target, pipeline)
        self._objects: dict[str, bytes | Future[bytes]] = {}  # by text

    def start(self, kernel: Kernel) -> Callable[[], Artifact]:
        """Write the text of a kernel, begin to compile what is not cached, and return a function that waits for it."""
        finish, _ = self.write(kernel, verify)
        return finish

    def write(
        self, kernel: Kernel, check: Callable[[Kernel], None] | None = None
    ) -> tuple[Callable[[], Artifact], tuple[str, ...]]:
        """As `start`, with the names of the symbolic numbers that the text reads. `check` is for what is compiled."""
        symbol, functions = _source(kernel, self._target, self._pipeline)
        _ir_log.debug("%s\n%s", symbol, kernel)
        _llvm_log.debug("%s", functions)
        if _assembly_log.isEnabledFor(logging.DEBUG):
            _assembly_log.debug("%s", assembly(kernel, self._target, self._pipeline))
        contents = {text: self._cached(text) for text in functions.modules}
        if check is not None and None in contents.values():
            check(kernel)
        objects = [self._compile(text) if content is None else content for text, content in contents.items()]
        return lambda: _artifact(kernel, symbol, [_result(item) for item in objects]), functions.numbers

    def _key(self, text: str) -> str:
        return f"{self._options}\n{text}"

    def _cached(self, text: str) -> bytes | None:
        return self._cache.get(self._key(text)) if self._cache else None

    def _compile(self, text: str) -> bytes | Future[bytes]:
        if text not in self._objects:
            compile_now = partial(self._compile_now, text)
            self._objects[text] = self._thread.submit(compile_now) if self._thread else compile_now()
        return self._objects[text]

    def _compile_now(self, text: str) -> bytes:
        code = compile_text(text, self._target, self._pipeline)
        if self._cache:
            self._cache.put(self._key(text), code)
        return code


def _result(code: bytes | Future[bytes]) -> bytes:
    return code if isinstance(code, bytes) else code.result()


def _artifact(kernel: Kernel, symbol: str, objects: Sequence[bytes]) -> Artifact:
    return Artifact(
        objects=tuple(objects),
        sha256=objects_sha256(objects),
        phases=tuple(
            Phase(
                f"{symbol}_p{n}",
                phase.extent if isinstance(phase, For) and phase.kind is LoopKind.PARALLEL else 1,
            )
            for n, phase in enumerate(kernel.body.body)
        ),
        params=kernel.params,
        scratch=kernel.scratch,
        packings=dict(kernel.packings),
    )


def compile_text(text: str, target: Target, pipeline: Pipeline = PIPELINE) -> bytes:
    """LLVM IR as object code. Raises BuildError if LLVM refuses."""
    code: bytes = _compile(text, target, lambda machine, module: machine.emit_object(module), pipeline)
    return code


def assembly(kernel: Kernel, target: Target, pipeline: Pipeline = PIPELINE) -> str:
    """The assembly of the code that `build` compiles, as one file. Raises as `build`."""
    text = source(kernel, target, pipeline)
    result: str = _compile(text, target, lambda machine, module: machine.emit_assembly(module), pipeline)
    return result


def source(kernel: Kernel, target: Target, pipeline: Pipeline = PIPELINE) -> str:
    """The text that `build` compiles, as one module. Raises as `emit`."""
    return str(_source(kernel, target, pipeline)[1])


def _source(kernel: Kernel, target: Target, pipeline: Pipeline = PIPELINE) -> tuple[str, LlvmSource]:
    """The symbol of a kernel, and its functions under names that come from their content."""
    options = _options(target, pipeline)
    draft = emit(kernel, target, PLACEHOLDER)
    plain = {function.name: str(function._replace(name=MICROKERNEL)) for function in draft.microkernels}
    llvm_source = draft.rename({name: f"m{_digest(options, text)}" for name, text in plain.items()})
    symbol = f"k{_digest(options, llvm_source.modules[0])}"
    phases = {phase.name: phase.name.replace(PLACEHOLDER, symbol) for phase in llvm_source.phases}
    return symbol, llvm_source.rename(phases)


def _digest(options: str, text: str) -> str:
    """The digest of a text and its compiler options, for symbols."""
    return hashlib.sha256(f"{options}\n{text}".encode()).hexdigest()[:24]


def _options(target: Target, pipeline: Pipeline = PIPELINE) -> str:
    """The compiler options that decide the object code besides the text."""
    import llvmlite.binding as llvm

    versions = f"{BUILD_VERSION} llvm={'.'.join(map(str, llvm.llvm_version_info))} level={pipeline.level}"
    versions += " full" if pipeline.is_full else ""
    return f"{versions} triple={target.triple} cpu={target.cpu} features={target.features}"


@cache
def _llvm() -> Any:
    """llvmlite's binding, able to write code for every processor it knows."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


@cache
def _machine(thread: int, triple: str, cpu: str, features: str, level: int) -> Any:
    """LLVM's target machine, for one thread. A new one and its first use take a tenth of a small kernel's build.

    Raises RuntimeError for a processor that LLVM can't write for.
    """
    family = _llvm().Target.from_triple(triple)
    return family.create_target_machine(cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small")


def _compile(text: str, target: Target, write: Callable[[Any, Any], Any], pipeline: Pipeline = PIPELINE) -> Any:
    """The result of `write` for a target machine and the module after the passes."""
    llvm = _llvm()
    try:
        machine = _machine(threading.get_ident(), target.triple, target.cpu, target.features, pipeline.level)
        module = llvm.parse_assembly(text, llvm.create_context())
        module.data_layout = str(machine.target_data)
        module.verify()
        _run_passes(machine, module, pipeline)
        return write(machine, module)
    except RuntimeError as error:
        raise BuildError(" ".join(str(error).split())) from error


def _run_passes(machine: Any, module: Any, pipeline: Pipeline) -> None:
    llvm = _llvm()
    tuning = llvm.create_pipeline_tuning_options(speed_level=pipeline.level if pipeline.is_full else 0)
    tuning.loop_vectorization = tuning.slp_vectorization = pipeline.is_full
    builder = llvm.create_pass_builder(machine, tuning)
    if pipeline.is_full:
        passes = builder.getModulePassManager()
    else:
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
    passes.run(module, builder)
