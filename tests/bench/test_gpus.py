"""What `bench gpu` is made of, as far as it can be tried without a GPU."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tunewright.bench import gpu
from tunewright.bench.gpus import fault_sketch, search
from tunewright.bench.gpus.search import search_task
from tunewright.bench.gpus.workloads import BUILD_WORKLOADS, KERNEL_WORKLOADS, heaviest_task
from tunewright.bench.suite.convolutional import resnet50
from tunewright.bench.suite.network import NetworkForm
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.build import source
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.graph.numerics import Numerics
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import default_schedule, holds, lower, sketch
from tunewright.tuner.models.model import open_model

from ..tuner.fake_pool import FakePool, by_key

GPU = Target.of_gpu(KNOWN["sm_90a"])


def test_a_first_pick_is_the_base_models_or_the_default(monkeypatch):
    task = heaviest_task(KERNEL_WORKLOADS["gemm float32 2048x2048x2048"].text)
    default = default_schedule(task, GPU)
    pick = search.first_pick(task, GPU)
    assert holds(task, GPU, pick) and pick != default
    monkeypatch.setattr(search, "base", lambda kind: None)
    assert search.first_pick(task, GPU) == default


def test_a_search_with_nothing_but_a_pool():
    task = heaviest_task(BUILD_WORKLOADS["softmax float32 4096x1024"].text)
    task_search = search_task(FakePool(by_key), task, GPU, 40)
    assert len({schedule.key for schedule, _ in task_search.trials}) == len(task_search.trials) == 40
    assert task_search.trials[0][0] == default_schedule(task, GPU)
    times_s = [m.median_s for _, m in task_search.trials if m.median_s is not None]
    assert task_search.best[1] == min(times_s)
    assert sum(task_search.statuses.values()) == 40


@pytest.mark.parametrize("name", [name for name in KERNEL_WORKLOADS if "1024" in name])
def test_workloads_are_one_task(name):
    task = heaviest_task(KERNEL_WORKLOADS[name].text)
    assert task.flops > 0
    assert len(task.outputs) == 1


@pytest.mark.parametrize("name", BUILD_WORKLOADS)
def test_sketches_are_for_their_workloads(name):
    workload = BUILD_WORKLOADS[name]
    assert all(
        find_space(sketch(workload.sketch), heaviest_task(workload.text), Target.of_gpu(KNOWN[arch]))
        for arch in workload.archs
    )


@pytest.mark.parametrize("fault", fault_sketch.FAULTS)
def test_planted_kernels_are_built(fault):
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    task = heaviest_task(BUILD_WORKLOADS["softmax float32 4096x1024"].text)
    sound = source(lower(Candidate(task, GPU, default_schedule(task, GPU))), GPU)
    faulty = fault_sketch.insert_fault(sound, fault)
    assert faulty.launches == sound.launches
    codes = [nvrtc.compile_text(text, GPU.cpu).code for text in (sound.text, faulty.text)]
    assert codes[0] != codes[1]


def test_bounds():
    kernels = {
        "kernels: gemm float16 1024x1024x1024": {"ratios": {"torch": 0.88, "copy": 0.1}},
        "kernels: gemm bfloat16 1024x1024x1024": {"ratios": {"torch": 1.1, "copy": 0.1}},
        "kernels: softmax float32 4096x1024": {"ratios": {"torch": 2.0, "copy": 0.95}},
    }
    summary, holds = gpu.summarise(kernels)
    assert summary["ratios"] == {"narrow products to cuBLAS": 0.984, "softmax and layer norm to a copy": 0.95}
    assert summary["least_ratios"] == {"narrow products to cuBLAS": 0.88, "softmax and layer norm to a copy": 0.95}
    assert holds
    tuned = {"kernels: gemm bfloat16 1024x1024x1024": {"ratios": {"torch": 1.25, "cublaslt": 0.2}}}
    summary, holds = gpu.summarise(kernels | tuned)
    assert summary["ratios"]["narrow products to cuBLAS"] == 0.42
    assert summary["least_ratios"]["narrow products to cuBLAS"] == 0.2
    assert not holds
    models = {"models: resnet50 float16 batch 1": {"ratios": {"torch eager": 2.0, "torch.compile": 0.99}}}
    assert not gpu.summarise(kernels | models)[1]
    assert not gpu.summarise({"faults: gemm": {"holds": False}})[1]
    assert not gpu.summarise({"x on sm_80": {"builds_a_second": 1.0, "spilled_bytes": 65}})[1]


def test_a_network_in_another_form():
    model = open_model(resnet50(NetworkForm(2, np.float16)), numerics=Numerics(widen=False))
    assert not model.fallbacks
    kinds = [str(model.graph.type(value.tensor)) for value in (*model.graph.inputs, *model.graph.outputs)]
    assert kinds == ["float16[2, 3, 224, 224]", "float16[2, 1000]"]


def test_it_takes_no_database_and_no_forests():
    """A machine with a GPU may lack them."""
    missing = ("sqlalchemy", "xgboost", "ray", "fastapi")
    code = f"import sys; sys.modules.update(dict.fromkeys({missing!r})); import tunewright.bench.gpu"
    subprocess.run([sys.executable, "-c", code], check=True)
