"""What `bench gpu` is made of, as far as it can be tried without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tunewright.bench import gpu
from tunewright.bench.gpus import planted
from tunewright.bench.gpus.searching import searched
from tunewright.bench.gpus.workloads import BUILT, TIMED, task_of
from tunewright.bench.suite.convolutional import resnet50
from tunewright.bench.suite.network import Form
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.build import source
from tunewright.codegen.cuda.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketch import offered
from tunewright.search_space.sketches import default_schedule, lower, sketch
from tunewright.tuner.models.model import open_model

from ..tuner.processes import python_path
from ..tuner.told import Told, by_key

GPU = Target.of_gpu(KNOWN["sm_90a"])


def test_a_search_with_nothing_but_a_pool():
    task = task_of(BUILT["softmax float32 4096x1024"].text)
    found = searched(Told(by_key), task, GPU, 40)
    assert len({schedule.key for schedule, _ in found.tried}) == len(found.tried) == 40
    assert found.tried[0][0] == default_schedule(task, GPU)
    times_s = [m.median_s for _, m in found.tried if m.median_s is not None]
    assert found.best[1] == min(times_s)
    assert sum(found.statuses.values()) == 40


@pytest.mark.parametrize("name", [name for name in TIMED if "1024" in name])
def test_workloads_are_one_task(name):
    task = task_of(TIMED[name].text)
    assert task.flops > 0
    assert len(task.outputs) == 1


@pytest.mark.parametrize("name", BUILT)
def test_sketches_are_for_their_workloads(name):
    one = BUILT[name]
    assert all(offered(sketch(one.sketch), task_of(one.text), Target.of_gpu(KNOWN[arch])) for arch in one.archs)


@pytest.mark.parametrize("fault", planted.FAULTS)
def test_planted_kernels_are_built(fault):
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    task = task_of(BUILT["softmax float32 4096x1024"].text)
    made = source(lower(Candidate(task, GPU, default_schedule(task, GPU))), GPU)
    faulty = planted.with_fault(made, fault)
    assert faulty.launches == made.launches
    codes = [nvrtc.compiled(text, GPU.cpu).code for text in (made.text, faulty.text)]
    assert codes[0] != codes[1]


def test_bounds():
    kernels = {
        "kernels: gemm float16 1024x1024x1024": {"ratios": {"torch": 0.8, "copy": 0.1}},
        "kernels: gemm bfloat16 1024x1024x1024": {"ratios": {"torch": 1.25, "copy": 0.1}},
        "kernels: softmax float32 4096x1024": {"ratios": {"torch": 2.0, "copy": 0.95}},
    }
    summary, holds = gpu.concluded(kernels)
    assert summary["ratios"] == {"narrow products to cuBLAS": 1.0, "softmax and layer norm to a copy": 0.95}
    assert holds
    models = {"models: resnet50 float16 batch 1": {"ratios": {"torch eager": 2.0, "torch.compile": 0.99}}}
    assert not gpu.concluded(kernels | models)[1]
    assert not gpu.concluded({"faults: gemm": {"holds": False}})[1]
    assert not gpu.concluded({"x on sm_80": {"builds_a_second": 1.0, "spilled_bytes": 65}})[1]


def test_a_network_in_another_form():
    model = open_model(resnet50(Form(2, np.float16)), widen=False)
    assert not model.fallbacks
    kinds = [str(model.graph.type(value.tensor)) for value in (*model.graph.inputs, *model.graph.outputs)]
    assert kinds == ["float16[2, 3, 224, 224]", "float16[2, 1000]"]


def test_it_takes_no_database_and_no_forests():
    """A machine with a GPU may lack them."""
    missing = ("sqlalchemy", "xgboost", "ray", "fastapi")
    code = f"import sys; sys.modules.update(dict.fromkeys({missing!r})); import tunewright.bench.gpu"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **python_path()}, check=True)
