"""`./dev bench gpu rates`: candidates a second, as far as they can be counted without a GPU."""

from __future__ import annotations

import sys

import pytest

from tunewright.bench.gpus import rates
from tunewright.bench.rivals.gpu_tuners import TUNERS
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target

from ..tuner.fake_pool import FakePool, by_key

GPU = Target.of_gpu(KNOWN["sm_90a"])

PROGRAM = """
import os, sys
from tunewright.bench.rivals.serving import serve

def tune(tell, tuner, rows, depth, columns, limit_s):
    if tuner == "triton":
        raise ValueError("no such device")
    folders = [os.environ[name] for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "HELION_CACHE_DIR")]
    assert len(set(folders)) == 3 and not any(map(os.path.exists, folders))
    return {"candidates": rows // 256, "time_s": 2.0, "best_s": 1e-5, "versions": {}}

serve({"tune": tune})
"""


@pytest.fixture
def pool(monkeypatch):
    class Pool(FakePool):
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    monkeypatch.setattr(rates, "LocalPool", lambda target, folder: Pool(by_key))


def test_candidates_a_second_of_each_tuner_in_fresh_caches(pool):
    entry = rates.measure_rates("gemm float16 1024x1024x1024", GPU, 20, [sys.executable, "-P", "-c", PROGRAM])
    assert entry["candidates_a_second"].keys() == {"ours", *TUNERS} - {"triton"}
    assert entry["candidates_a_second"]["inductor"] == 2.0
    assert entry["tuners"]["ours"]["candidates"] == 20
    assert entry["missing"] == {"triton": "ValueError: no such device"}


def test_tuners_that_are_not_installed_are_missing(pool, monkeypatch):
    monkeypatch.setattr(rates, "TUNERS", {"helion quick": None})
    entry = rates.measure_rates("gemm float16 1024x1024x1024", GPU, 20)
    assert entry["candidates_a_second"].keys() == {"ours"}
    assert "torch" in entry["missing"]["helion quick"]
