"""Replaying: the same code gives the same texts in any process, and a difference has a name."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from tunewright.bench import replay
from tunewright.bench.files import ROOT
from tunewright.bench.gpus.workloads import BUILD_WORKLOADS, heaviest_task
from tunewright.bench.replay_texts.kernels import kernel_texts

SOME = ("gemm float32 1024x1024x1024", "softmax float32 4096x1024", "depthwise float32 3x3 96 at 56x56")


def digests() -> dict[str, str]:
    tasks = [heaviest_task(BUILD_WORKLOADS[name].text) for name in SOME]
    texts = kernel_texts({task.key: task for task in tasks})
    return {name: hashlib.sha256(text().encode()).hexdigest() for name, text in texts}


@pytest.mark.slow
def test_texts_of_kernels_are_the_same_in_every_process() -> None:
    code = "import json; from tunewright.tests.bench.test_replay import digests; print(json.dumps(digests()))"
    command = [sys.executable, "-P", "-c", code]
    env = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT / ".types")}
    assert json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout) == digests()
    assert {name.split("/")[-1] for name in digests()} >= {"warp_tiles", "row_blocks", "thread_windows", "contraction"}


def test_what_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.print_differences({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == 1
    assert capsys.readouterr().out.splitlines() == ["differs: b", "gone: c", "new: d", "3 of 3 differ"]
    assert replay.print_differences({"a": "1"}, {"a": "1"}) == 0
