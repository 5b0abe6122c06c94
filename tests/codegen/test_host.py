from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunewright.codegen import host
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import const
from tunewright.codegen.ir.ir import Block, Buffer, Kernel, Store
from tunewright.codegen.llvm.build import build
from tunewright.codegen.target import Target


def cpu(root: Path, core: int, caches: list[tuple[str, str, str]]) -> Path:
    """A tree like Linux's, with level, type and size of each cache."""
    for number, (level, kind, size) in enumerate(caches):
        folder = root / f"cpu{core}" / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(level + "\n")
        (folder / "type").write_text(kind + "\n")
        (folder / "size").write_text(size + "\n")
    return root


def test_this_machine_is_a_target_that_code_can_be_built_for():
    target = host.detect()
    assert target.kind == "cpu"
    assert target.threads == len(host.available_cores())
    assert target.vector_bits in (128, 256, 512)
    assert target.vector_registers in (16, 32)
    assert min(target.l1_bytes, target.l2_bytes) > 0
    features = [feature[1:] for feature in target.features.split(",")]
    assert features == sorted(features)
    assert Target.from_json(target.to_json()) == target == host.detect()
    kernel = Kernel((Buffer("x", (1,), DType.F32),), (), Block((Store("x", (const(0),), const(1.0)),)))
    assert build(kernel, target).objects


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all control groups; this process is in "a/b", which has no limits yet."""
    monkeypatch.setattr(host, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(host, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "own").write_text("1:name=old:/elsewhere\n0::/a/b\n")
    (tmp_path / "cgroup" / "a" / "b").mkdir(parents=True)
    (tmp_path / "cpu.max").write_text("100000 100000\n")  # of nobody: it lies outside
    return tmp_path / "cgroup"


@pytest.mark.parametrize(
    ("own", "outer", "cores"),
    [
        ("max 100000", None, [0, 3, 5, 6]),
        ("150000 100000", None, [0, 3]),
        ("20000 100000", "max 100000", [0]),
        ("400000 100000", "300000 100000", [0, 3, 5]),
        ("900000 100000", None, [0, 3, 5, 6]),
        ("", "nonsense", [0, 3, 5, 6]),
    ],
)
def test_a_quota_of_time_takes_cores_away(groups, monkeypatch, own, outer, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 3, 0, 6}, raising=False)
    (groups / "a" / "b" / "cpu.max").write_text(own + "\n")
    if outer:
        (groups / "a" / "cpu.max").write_text(outer + "\n")
    assert host.available_cores() == cores
    assert host.detect().threads == len(cores)


def test_memory_is_what_all_groups_leave(groups):
    whole_bytes = host.available_memory_bytes()
    (groups / "a" / "b" / "memory.max").write_text("max\n")
    assert host.available_memory_bytes() == whole_bytes
    (groups / "a" / "b" / "memory.max").write_text(f"{2 << 20}\n")
    assert host.available_memory_bytes() == 2 << 20
    (groups / "memory.max").write_text(f"{1 << 20}\n")
    assert host.available_memory_bytes() == 1 << 20


def test_a_system_without_groups_has_no_limits(groups):
    (groups.parent / "own").unlink()
    assert host.available_memory_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_threads_are_the_cores_allowed_unless_given(monkeypatch):
    monkeypatch.setattr(host, "OWN_CGROUP", Path("absent"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 3, 0}, raising=False)
    monkeypatch.setattr(host, "read_caches", lambda _, core: host.Caches(core, core, core))
    assert host.available_cores() == [0, 3, 5]
    assert host.detect().threads == 3
    assert host.detect(threads=1).threads == 1


def test_cores_where_the_system_knows_no_affinity(monkeypatch):
    monkeypatch.setattr(host, "OWN_CGROUP", Path("absent"))
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert host.available_cores() == [0, 1, 2]


@pytest.mark.parametrize(
    ("features", "want"),
    [
        ({"sse2", "avx", "avx2", "avx512f"}, (512, 32)),
        ({"sse2", "avx", "avx2"}, (256, 16)),
        ({"sse2", "avx"}, (128, 16)),
        ({"neon", "fp-armv8"}, (128, 32)),
    ],
)
def test_vector_registers(features, want):
    assert host._vectors(features) == want


def test_caches_are_those_of_the_core(tmp_path):
    cpu(tmp_path, 0, [("1", "Data", "32K"), ("2", "Unified", "256K")])
    cpu(
        tmp_path,
        2,
        [("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "1M"), ("3", "Unified", "32M")],
    )
    assert host.read_caches(tmp_path, 2) == (48 << 10, 1 << 20, 32 << 20)
    assert host.read_caches(tmp_path, 0) == (32 << 10, 256 << 10, 0)


def test_unknown_caches_have_stated_sizes(tmp_path):
    assert host.read_caches(tmp_path / "absent", 0) == host.DEFAULT_CACHES
    cpu(tmp_path, 0, [("1", "Data", "?"), ("2", "Unified", "512K")])
    assert host.read_caches(tmp_path, 0) == (host.DEFAULT_CACHES.l1_bytes, 512 << 10, 0)


def test_provenance_names_machine_and_versions(tmp_path):
    about = host.machine()
    assert set(about) == {"tunewright", "processor", "system", "python", "llvmlite", "llvm", "numpy"}
    assert all(about.values())
    assert about["llvm"].count(".") == 2
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n")
    assert host._processor(info) == "Some CPU @ 2 GHz"
    assert host._processor(tmp_path / "absent") == ""
