from __future__ import annotations

import os
import pickle
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Ramp, Var, const, op
from tunewright.codegen.ir.ir import Block, Buffer, For, Kernel, LoopKind, Packing, Store
from tunewright.codegen.llvm import build as building
from tunewright.codegen.llvm.build import BuildError, ObjectCache, assembly, build, build_all, source
from tunewright.codegen.llvm.function import Function, LlvmSource
from tunewright.codegen.private_folder import DRAFT_S
from tunewright.codegen.runtime.library import Library
from tunewright.codegen.target import Target

F32 = DType.F32
X86 = Target("cpu", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 256, 16, 1, 32 << 10, 1 << 20, 0)
NEON = replace(X86, triple="aarch64-unknown-linux-gnu", cpu="neoverse-n1", vector_bits=128, vector_registers=32)


def scaled(factor: float, rows: int = 8, **more) -> Kernel:
    """y = factor * x, row by row in parallel, then a serial phase."""
    at = (Var("i"), Ramp(const(0), 8))
    body = Store("y", at, Load("x", at, F32) * factor)
    last = Store("y", (const(0), const(0)), const(7.0))
    params = (Buffer("x", (rows, 8), F32), Buffer("y", (rows, 8), F32))
    return Kernel(params, (Buffer("t", (3,), F32),), Block((For("i", rows, body, LoopKind.PARALLEL), last)), **more)


def test_an_artifact_says_what_runs():
    packing = {"x": Packing((0, 1), (8, 8), ((8,), (8,)), (0, 1))}
    kernel = scaled(2.0, packings=packing)
    artifact = build(kernel, X86)
    first, second = artifact.phases
    assert (first.iterations, second.iterations) == (8, 1)
    assert first.symbol.endswith("_p0") and second.symbol.endswith("_p1")
    assert first.symbol[:-3] == second.symbol[:-3] and len(first.symbol) == 1 + 24 + 3
    assert (artifact.params, artifact.scratch, artifact.packings) == (kernel.params, kernel.scratch, packing)
    for part in (artifact.sha256[:12], first.symbol, "x: float32[8, 8]", "scratch t"):
        assert part in str(artifact)
    assert str(artifact.objects) not in repr(artifact)
    assert pickle.loads(pickle.dumps(artifact)) == artifact  # noqa: S301 - its own bytes


def test_the_same_kernel_gives_the_same_object():
    assert build(scaled(2.0), X86) == build(scaled(2.0), X86)


def test_kernels_built_together_are_those_built_alone(tmp_path):
    kernels = [scaled(2.0), scaled(3.0), scaled(2.0)]
    alone = [build(kernel, X86) for kernel in kernels]
    cache = ObjectCache(tmp_path / "objects")
    assert build_all(kernels, X86) == build_all(kernels, X86, cache) == alone
    assert build_all(iter(kernels), X86, cache) == alone
    assert build_all([], X86) == []


def test_a_text_that_kernels_share_is_compiled_once(monkeypatch):
    texts = []
    compile_text = building.compile_text

    def note(text: str, *more) -> bytes:
        texts.append(text)
        return compile_text(text, *more)

    monkeypatch.setattr(building, "compile_text", note)
    build_all([scaled(2.0), scaled(3.0), scaled(2.0)], X86)
    assert len(texts) == len(set(texts)) == 2


def test_what_llvm_refuses_is_told_where_kernels_are_built_together(monkeypatch):
    monkeypatch.setattr(building, "compile_text", lambda *_: (_ for _ in ()).throw(BuildError("no")))
    with pytest.raises(BuildError, match="no"):
        build_all([scaled(2.0), scaled(3.0)], X86)


def test_what_was_built_before_changes_no_object():
    with ThreadPoolExecutor(1) as pool:  # a thread that has built nothing
        alone = pool.submit(build, scaled(2.0), X86).result()
    for kernel, target in ((scaled(3.0, rows=9), X86), (scaled(2.0), NEON), (scaled(2.0), replace(X86, cpu="znver5"))):
        build(kernel, target, pipeline=building.Pipeline(3, is_full=True))
        build(kernel, target)
    assert build(scaled(2.0), X86) == alone


def test_symbols_come_from_all_that_decides_the_code():
    kernels = [scaled(2.0), scaled(3.0), scaled(2.0, rows=9)]
    targets = [X86, NEON, replace(X86, cpu="znver5"), replace(X86, features="+avx512f")]
    symbols = {build(k, t).phases[0].symbol for k in kernels for t in targets}
    assert len(symbols) == len(kernels) * len(targets)


def test_every_machine_has_code_for_functions():
    for lanes in (1, 4, 8, 16, 32):
        place = Ramp(const(0), lanes) if lanes > 1 else const(0)
        x = Load("x", (place,), F32)
        value = op("max", op("exp", x), op("tanh", x)) + op("pow", x, x) * op("sigmoid", x)
        kernel = Kernel((Buffer("x", (32,), F32), Buffer("y", (32,), F32)), (), Block((Store("y", (place,), value),)))
        for target in (
            X86,
            NEON,
            replace(X86, cpu="x86-64-v4", vector_bits=512),
            replace(X86, cpu="x86-64", vector_bits=128),
        ):
            assert build(kernel, target).objects


def test_objects_of_many_kernels_live_in_one_process(host):
    artifacts = [build(scaled(float(n)), host) for n in range(4)]
    library = Library([(a.objects, [p.symbol for p in a.phases]) for a in artifacts])
    addresses = [library.addresses[n][a.phases[0].symbol] for n, a in enumerate(artifacts)]
    assert len(set(addresses)) == 4
    library.close()


def test_building_in_threads(host):
    with ThreadPoolExecutor(4) as pool:
        artifacts = list(pool.map(lambda n: build(scaled(float(n % 4)), host), range(16)))
    assert artifacts == [build(scaled(float(n % 4)), host) for n in range(16)]


def test_code_for_another_processor():
    text = assembly(scaled(2.0), NEON)
    assert "fmul\tv" in text or "fadd\tv" in text
    assert "%ymm" not in text
    [code] = build(scaled(2.0), NEON).objects
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == 183  # AArch64, from the ELF specification
    assert "%ymm" in assembly(scaled(2.0), X86)
    with_features = replace(X86, cpu="x86-64", features="+avx512f,+avx512vl")
    assert "%ymm" in assembly(scaled(2.0), with_features)


def test_source_is_what_is_compiled():
    artifact = build(scaled(2.0), X86)
    for phase in artifact.phases:
        assert f"define void @{phase.symbol}(" in source(scaled(2.0), X86)


def test_an_unknown_target_is_a_build_error():
    with pytest.raises(BuildError) as caught:
        build(scaled(2.0), replace(X86, triple="pdp11-unknown-unknown"))
    assert "\n" not in str(caught.value) and str(caught.value)


def test_llvm_refusing_the_text_is_a_build_error_of_one_line(monkeypatch):
    monkeypatch.setattr(
        building, "emit", lambda *_: LlvmSource(X86.triple, (Function("kernel_p0", "", "  ret i32 %nothing"),), ())
    )
    with pytest.raises(BuildError) as caught:
        build(scaled(2.0), X86)
    assert "\n" not in str(caught.value)
    assert "nothing" in str(caught.value)


# The cache.


@pytest.fixture
def cache(tmp_path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects")


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """The texts that went through LLVM."""
    texts: list[str] = []
    compile_ = building._compile

    def counted(text, target, write, pipeline):
        texts.append(text)
        return compile_(text, target, write, pipeline)

    monkeypatch.setattr(building, "_compile", counted)
    return texts


def files(cache: ObjectCache) -> list[Path]:
    return sorted(cache.folder.iterdir())


def test_what_is_in_the_cache_is_not_built_again(cache, compiled):
    first = build(scaled(2.0), X86, cache)
    again = build(scaled(2.0), X86, ObjectCache(cache.folder))
    assert again == first == build(scaled(2.0), X86)
    assert len(compiled) == 2  # once with the cache, once without


def test_cached_files_belong_to_the_user_alone(cache):
    build(scaled(2.0), X86, cache)
    [file] = files(cache)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert file.suffix == ".o" and len(file.stem) == 64


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "longer", "digest"])
def test_a_damaged_file_is_built_anew(cache, compiled, damage):
    good = build(scaled(2.0), X86, cache)
    [file] = files(cache)
    content = bytearray(file.read_bytes())
    match damage:
        case "cut":
            content = content[:-7]
        case "changed":
            content[len(content) // 2] ^= 1
        case "empty":
            content.clear()
        case "longer":
            content += b"\0"
        case "digest":
            content[3] ^= 1
    file.write_bytes(content)
    assert build(scaled(2.0), X86, cache) == good
    assert len(compiled) == 2
    assert build(scaled(2.0), X86, cache) == good
    assert len(compiled) == 2


def test_files_that_were_exchanged_are_built_anew(cache, compiled):
    kernels = [scaled(2.0), scaled(3.0)]
    good = [build(kernel, X86, cache) for kernel in kernels]
    one, other = files(cache)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    assert [build(kernel, X86, cache) for kernel in kernels] == good
    assert len(compiled) == 4


def test_keys_are_apart(cache):
    for kernel in (scaled(2.0), scaled(3.0)):
        for target in (X86, NEON, replace(X86, features="+avx512f")):
            build(kernel, target, cache)
    assert len(files(cache)) == 6
    assert cache.get("something else") is None


def test_a_new_build_version_ignores_old_objects(cache, compiled, monkeypatch):
    build(scaled(2.0), X86, cache)
    monkeypatch.setattr(building, "BUILD_VERSION", building.BUILD_VERSION + 1)
    build(scaled(2.0), X86, cache)
    assert len(compiled) == 2


def test_a_cache_that_cannot_be_written_is_no_error(cache, monkeypatch):
    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    assert build(scaled(2.0), X86, cache) == build(scaled(2.0), X86)
    assert files(cache) == []


def test_an_interrupted_write_leaves_nothing_behind(cache, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(scaled(2.0), X86, cache)
    assert files(cache) == []


def test_writers_at_once_leave_one_whole_file(cache):
    codes = [bytes([n]) * 50_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda code: cache.put("key", code), codes * 4))
    assert cache.get("key") in codes
    assert len(files(cache)) == 1


def put_aged(cache: ObjectCache, ages_s: dict[str, float], size_bytes: int = 1000) -> None:
    for key, age_s in ages_s.items():
        cache.put(key, b"x" * size_bytes)
        os.utime(cache.path(key), (time.time() - age_s,) * 2)


def test_a_cache_keeps_to_its_size_and_drops_what_was_not_used_for_longest(cache):
    put_aged(cache, {"a": 50, "b": 40, "c": 30, "d": 20})
    assert cache.get("a")
    (cache.folder / "lock").touch()
    smaller = ObjectCache(cache.folder, limit_bytes=2500)
    assert [key for key in "abcd" if smaller.get(key)] == ["a", "d"]
    assert (cache.folder / "lock").exists()


def test_a_cache_that_stays_open_keeps_to_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "PUTS", 5)
    cache = ObjectCache(tmp_path / "objects", limit_bytes=3500)
    put_aged(cache, {str(n): 100 - n for n in range(10)})
    assert [key for key in map(str, range(10)) if cache.get(key)] == ["7", "8", "9"]


def test_drafts_of_processes_that_died_are_dropped(cache):
    for name, age_s in (("old.tmp", 2 * DRAFT_S), ("new.tmp", 0)):
        (cache.folder / name).touch()
        os.utime(cache.folder / name, (time.time() - age_s,) * 2)
    ObjectCache(cache.folder)
    assert [file.name for file in files(cache)] == ["new.tmp"]


def test_a_file_that_another_process_drops_first_is_no_error(cache, monkeypatch):
    put_aged(cache, {"a": 2, "b": 1})
    drop = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: (drop(path), drop(path)))
    ObjectCache(cache.folder, limit_bytes=0)
    assert files(cache) == []


def test_a_folder_that_others_could_write_is_closed(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert stat.S_IMODE(ObjectCache(folder).folder.stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="another user"):
        ObjectCache(tmp_path)


def test_cached_code_runs(host, cache, execute):
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    build(scaled(2.0), host, cache)
    assert build(scaled(2.0), host, cache).objects == build(scaled(2.0), host).objects
    want = 2 * x
    want[0, 0] = 7
    np.testing.assert_array_equal(execute(scaled(2.0), x=x)["y"], want)
