"""`./dev bench gpu` where something fails: a case, the device, PyTorch or one of its compilers."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunewright.bench import gpu
from tunewright.bench.gpus import cublaslt, torch_peers
from tunewright.bench.gpus.search import NoWorkingSchedule, TaskSearch
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.driver import DeviceFault
from tunewright.codegen.target import Target
from tunewright.tuner.errors import Refused
from tunewright.tuner.peers.runtimes import PeerFailed
from tunewright.workers.pool import PoolError, ReferenceFailed

GOOD = {"ratios": {"torch": 2.0}}

DRIVER: Any = None
"""Nobody asks it for anything."""


class Replaced(Exception):
    """In the place of a process that goes on as another program."""


@pytest.fixture
def command(monkeypatch, tmp_path):
    """`command(arguments, {name: entry or error})`: the exit code, and what of the part kernels was measured."""
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "CASES", {"kernels": ["gemm float16 1", "gemm float16 2", "softmax 3"]})
    monkeypatch.setattr(gpu, "_require_part", lambda part: None)
    monkeypatch.setattr(gpu.GpuBench, "settings", lambda self, part: {"code": "this"})
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))

    def run(arguments, entries):
        names = []

        def measure(self, part, name):
            names.append(name)
            if isinstance(entries[name], Exception):
                raise entries[name]
            return dict(entries[name])

        monkeypatch.setattr(gpu.GpuBench, "measure", measure)
        monkeypatch.setattr(sys, "argv", ["gpu", "kernels", *arguments])
        return gpu.main(), names

    return run


@pytest.mark.parametrize(
    "failure", [NoWorkingSchedule("none"), PoolError("none is there"), ReferenceFailed("key", "too long")]
)
def test_a_case_that_fails_leaves_the_others(command, tmp_path, failure):
    entries = {"gemm float16 1": failure, "gemm float16 2": GOOD, "softmax 3": {"ratios": {"copy": 1.0}}}
    assert command([], entries) == (1, list(entries))
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results["cases"]["kernels: gemm float16 1"]["1"] == {"error": str(failure), "code": "this"}
    assert results["summary"]["ratios"]["narrow products to cuBLAS"] == 2.0
    entries["gemm float16 1"] = GOOD
    assert command([], entries) == (0, ["gemm float16 1"])


def test_a_fresh_process_goes_on_where_the_device_failed(command, monkeypatch):
    replacements = []

    def replace(path, arguments):
        replacements.append((path, arguments))
        raise Replaced

    monkeypatch.setattr(os, "execv", replace)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "tunewright.bench.gpu", "kernels", "--again"])
    entries = {"gemm float16 1": GOOD, "gemm float16 2": DeviceFault("an illegal\naddress"), "softmax 3": GOOD}
    with pytest.raises(Replaced):
        command(["--again", "--within", "100"], entries)
    [(path, arguments)] = replacements
    assert path == sys.executable
    assert arguments[1:-1] == [*sys.orig_argv[1:], "--after", "kernels: gemm float16 2", "--within"]
    assert 0 < float(arguments[-1]) < 100
    entries["softmax 3"] = {"ratios": {"copy": 1.0}}
    assert command(arguments[4:], entries) == (1, ["softmax 3"])


def test_after_its_time_no_case_begins_and_the_next_run_goes_on(command, capsys):
    entries = {"gemm float16 1": GOOD, "gemm float16 2": GOOD, "softmax 3": {"ratios": {"copy": 1.0}}}
    assert command(["--within", "0"], entries) == (0, [])
    assert capsys.readouterr().err == (
        "the time is over before kernels: gemm float16 1: the same command goes on there\n"
    )
    assert command(["--within", "100"], entries) == (0, list(entries))


def test_the_best_of_nothing():
    with pytest.raises(NoWorkingSchedule, match="none of 0 schedules"):
        assert TaskSearch([]).best


def test_a_search_with_faults_takes_no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(gpu, "Driver", lambda: SimpleNamespace(name="a GPU"))
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(gpu, "local_target", lambda name: Target)
    with ExitStack() as stack:
        settings = gpu.GpuBench(200, stack).settings("faults")
    assert settings["gpu"] == "a GPU" and "peers" not in settings
    assert gpu._select_parts("faults") == ["faults"]


@pytest.mark.parametrize(("has_torch", "why"), [(False, "PyTorch, to compare with"), (True, "2.13.0.cpu finds no GPU")])
def test_without_a_fit_torch_nothing_is_searched(monkeypatch, capsys, has_torch, why):
    torch = SimpleNamespace(__version__="2.13.0+cpu", cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch if has_torch else None)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(gpu, "local_target", lambda name: Target)
    parts = ("rates", "kernels", "compilers", "models")
    for part in parts:
        with pytest.raises(Refused, match=why):
            gpu._select_parts(part)
    assert gpu._select_parts("all") == ["builds", "faults"]
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [f"no {part}" for part in parts]


class Torch(ModuleType):
    """PyTorch, as far as it is asked; `refused` is the one of `COMPILED` that its compiler refuses."""

    def __init__(self, refused: str, fault: Exception) -> None:
        super().__init__("torch")
        self.did: list[str] = []
        self.nn = SimpleNamespace(functional=None)
        self.compiler = SimpleNamespace(reset=lambda: self.did.append("reset"))
        self._dynamo = SimpleNamespace(config=SimpleNamespace(fail_on_recompile_limit_hit=False))
        self._int_mm: Any = None
        self._refused, self._fault = refused, fault

    def matmul(self, left, right):
        return left @ right

    def compile(self, program, *, dynamic, options):
        assert dynamic is False and self._dynamo.config.fail_on_recompile_limit_hit
        name = next(name for name, known_options in torch_peers.COMPILE_OPTIONS.items() if known_options == options)
        self.did.append(name)

        def run(*operands):
            if name == self._refused:
                raise self._fault
            return program(*operands)

        return run

    def empty_like(self, tensor):
        return SimpleNamespace(copy_=np.copy)


def without_cublaslt(left, right, driver, *, is_right_transposed):
    raise PeerFailed("there is no library")


class TritonError(Exception):
    """As Triton's own, which is no RuntimeError."""


@pytest.mark.parametrize("fault", [OSError, TritonError])
def test_a_compiler_that_fails_is_a_missing_peer(fault, monkeypatch):
    """And nothing that was compiled is there when the next one compiles."""
    torch = Torch("triton", fault("no C compiler\nis here"))
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.errors", SimpleNamespace(TritonError=TritonError))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn", torch.nn)
    monkeypatch.setattr(torch_peers, "to_device", lambda torch, array: array)
    monkeypatch.setattr(torch_peers, "_sample", lambda torch, driver, run: (run(), lambda: 1.0)[1])
    monkeypatch.setattr(cublaslt, "product", without_cublaslt)
    operands = [np.ones((2, 2), np.float32)] * 2
    peers = torch_peers.kernels("product", operands, DRIVER, compiles=True)
    assert list(peers.samples) == ["torch", "inductor", "copy"]
    assert peers.missing == {"cublaslt": "there is no library", "triton": "no C compiler is here"}
    assert torch.did == ["reset", "inductor", "reset", "triton"]
    with pytest.raises(PeerFailed, match="matmul"):
        torch_peers.kernels("product", [np.ones((2, 3)), np.ones((2, 3))], DRIVER)


class Tensor(np.ndarray):
    """As PyTorch's, as far as it is asked."""

    def float(self):
        return self.astype(np.float32)

    def abs(self):
        return np.abs(self)

    def t(self):
        return self.T

    def contiguous(self):
        return np.ascontiguousarray(self).view(Tensor)


@pytest.mark.parametrize("error", [0, 1])
@pytest.mark.parametrize(("kind", "dtype"), [("product", np.float32), ("product of bytes", np.int8)])
def test_cublaslt_is_a_peer_where_its_output_is_right(kind, dtype, error, monkeypatch):
    calls = []

    def product(left, right, driver, *, is_right_transposed):
        output = (left @ (right.T if is_right_transposed else right)).view(Tensor)
        calls.append((right.shape, is_right_transposed))
        return cublaslt.CublasProduct(lambda: None, output + np.asarray(error, output.dtype), 37)

    torch = Torch("triton", OSError("no compiler"))
    torch._int_mm = torch.matmul
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn", torch.nn)
    monkeypatch.setattr(torch_peers, "to_device", lambda torch, array: array.view(Tensor))
    monkeypatch.setattr(torch_peers, "_sample", lambda torch, driver, run: lambda: 1.0)
    monkeypatch.setattr(cublaslt, "product", product)
    driver: Any = SimpleNamespace(time=lambda run, count: [0.5] * count, capture=lambda run: run)
    peers = torch_peers.kernels(kind, [np.ones((2, 3), dtype), np.ones((3, 4), dtype)], driver)
    assert calls == [((4, 3), True) if dtype is np.int8 else ((3, 4), False)]
    if error:
        assert "the output is off by 0.333" in peers.missing["cublaslt"] and peers.algorithms == {}
    else:
        assert peers.samples["cublaslt"]() == 0.5 and peers.algorithms == {"cublaslt": 37}


def test_a_peer_that_is_missing_counts_for_nothing():
    models = {
        "models: a": {"ratios": {"torch eager": 2.0}},
        "models: b": {"ratios": {"torch eager": 2.0, "torch.compile": 1.5}},
    }
    summary, holds = gpu.summarise(models)
    assert summary["ratios"] == {"models to PyTorch": 2.0, "models to torch.compile": 1.5}
    assert holds
