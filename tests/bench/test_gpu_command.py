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
from tunewright.bench.gpus import torch_peers
from tunewright.bench.gpus.searching import NoneWorks, Searched
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.driver import DeviceFault
from tunewright.codegen.target import Target
from tunewright.tuner.errors import Refused
from tunewright.tuner.peers import PeerFailed
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
    monkeypatch.setattr(gpu, "_check", lambda part: None)
    monkeypatch.setattr(gpu.Bench, "settings", lambda self, part: {"code": "this"})
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))

    def run(arguments, entries):
        measured = []

        def measure(self, part, name):
            measured.append(name)
            if isinstance(entries[name], Exception):
                raise entries[name]
            return dict(entries[name])

        monkeypatch.setattr(gpu.Bench, "measured", measure)
        monkeypatch.setattr(sys, "argv", ["gpu", "kernels", *arguments])
        return gpu.main(), measured

    return run


@pytest.mark.parametrize("failure", [NoneWorks("none"), PoolError("none is there"), ReferenceFailed("key", "too long")])
def test_a_case_that_fails_leaves_the_others(command, tmp_path, failure):
    entries = {"gemm float16 1": failure, "gemm float16 2": GOOD, "softmax 3": {"ratios": {"copy": 1.0}}}
    assert command([], entries) == (1, list(entries))
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert kept["cases"]["kernels: gemm float16 1"]["1"] == {"error": str(failure), "code": "this"}
    assert kept["summary"]["ratios"]["narrow products to cuBLAS"] == 2.0
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
        command(["--again"], entries)
    [(path, arguments)] = replacements
    assert path == sys.executable
    assert arguments[1:] == [*sys.orig_argv[1:], "--after", "kernels: gemm float16 2"]
    entries["softmax 3"] = {"ratios": {"copy": 1.0}}
    assert command(arguments[4:], entries) == (1, ["softmax 3"])


def test_the_best_of_nothing():
    with pytest.raises(NoneWorks, match="none of 0 schedules"):
        assert Searched([]).best


def test_a_search_with_faults_takes_no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(gpu, "CupyDriver", lambda: SimpleNamespace(name="a GPU"))
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(gpu, "local_target", lambda name: Target)
    with ExitStack() as stack:
        settings = gpu.Bench(200, stack).settings("faults")
    assert settings["gpu"] == "a GPU" and "peers" not in settings
    assert gpu._parts("faults") == ["faults"]


@pytest.mark.parametrize(("has_torch", "why"), [(False, "PyTorch, to compare with"), (True, "2.13.0.cpu finds no GPU")])
def test_without_a_fit_torch_nothing_is_searched(monkeypatch, capsys, has_torch, why):
    torch = SimpleNamespace(__version__="2.13.0+cpu", cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch if has_torch else None)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(gpu, "local_target", lambda name: Target)
    for part in ("kernels", "models"):
        with pytest.raises(Refused, match=why):
            gpu._parts(part)
    assert gpu._parts("all") == ["builds", "faults"]
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["no kernels", "no models"]


class Torch(ModuleType):
    """PyTorch, as far as it is asked; `refused` is the one of `COMPILED` that its compiler refuses."""

    def __init__(self, refused: str, fault: Exception) -> None:
        super().__init__("torch")
        self.did: list[str] = []
        self.nn = SimpleNamespace(functional=None)
        self.compiler = SimpleNamespace(reset=lambda: self.did.append("reset"))
        self._dynamo = SimpleNamespace(config=SimpleNamespace(fail_on_recompile_limit_hit=False))
        self._int_mm = None
        self._refused, self._fault = refused, fault

    def matmul(self, left, right):
        return left @ right

    def compile(self, program, *, dynamic, options):
        assert dynamic is False and self._dynamo.config.fail_on_recompile_limit_hit
        name = next(name for name, one in torch_peers.COMPILED.items() if one == options)
        self.did.append(name)

        def run(*operands):
            if name == self._refused:
                raise self._fault
            return program(*operands)

        return run

    def empty_like(self, tensor):
        return SimpleNamespace(copy_=np.copy)


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
    monkeypatch.setattr(torch_peers, "_tensor", lambda torch, array: array)
    monkeypatch.setattr(torch_peers, "_sample", lambda torch, driver, run, is_cold: (run(), lambda: 1.0)[1])
    operands = [np.ones((2, 2), np.float32)] * 2
    found = torch_peers.kernels("product", operands, DRIVER)
    assert list(found.samples) == ["torch", "inductor", "copy"]
    assert found.missing == {"triton": "no C compiler is here"}
    assert torch.did == ["reset", "inductor", "reset", "triton"]
    with pytest.raises(PeerFailed, match="matmul"):
        torch_peers.kernels("product", [np.ones((2, 3)), np.ones((2, 3))], DRIVER)


def test_a_peer_that_is_missing_counts_for_nothing():
    models = {
        "models: a": {"ratios": {"torch eager": 2.0}},
        "models: b": {"ratios": {"torch eager": 2.0, "torch.compile": 1.5}},
    }
    summary, holds = gpu.concluded(models)
    assert summary["ratios"] == {"models to PyTorch": 2.0, "models to torch.compile": 1.5}
    assert holds
