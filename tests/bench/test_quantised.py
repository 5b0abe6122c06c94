"""The benchmark of quantised models: what it makes, and what it sums up."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("onnxruntime")

from tunewright.bench.quantised import summary
from tunewright.bench.suite.quantised import QUANTISED
from tunewright.codegen.target import Target
from tunewright.tuner.models.model import open_for

DOTS = Target(
    "cpu", "x86_64-unknown-linux-gnu", "icelake-server", "+avx512vnni", 512, 32, 1, 48 << 10, 1280 << 10, 48 << 20
)


def test_bytes_go_from_task_to_task() -> None:
    model = open_for(DOTS, QUANTISED["mobilenet_v2_int8"]())
    assert not model.fallbacks
    between = {task.outputs[0].dtype.value for task, _ in model.tasks.values() if "Conv" in task.op}
    assert between == {"uint8"}
    counts = [count for task, count in model.tasks.values() if "ConvInteger" in task.op]
    assert sum(counts) > 30 >= len(counts)  # layers of other scales are one task


def test_what_eight_bits_gain() -> None:
    def entry(ours_ms: float, **peers: float) -> dict[str, Any]:
        return {"tunewright_ms": ours_ms, "peers": peers}

    rows = {
        "resnet50": entry(40.0, onnxruntime=50.0),
        "resnet50_int8": entry(10.0, onnxruntime=12.0, openvino=11.0),
        "t5_encoder_int8": entry(5.0, onnxruntime=10.0),
    }
    figures = summary(list(rows.items()))
    assert figures["over_float32"] == {"geometric_mean": pytest.approx(4.0), "models": {"resnet50": 4.0}}
    assert figures["over_peers"]["models"] == {"resnet50": 1.1, "t5_encoder": 2.0}
    row = entry(0.2, onnxruntime=0.3) | {"share": 0.9}
    assert summary([("four bits 1x4096x4096", row)])["shares"] == {"four bits 1x4096x4096": 0.9}
    assert summary([])["over_peers"] == {"geometric_mean": None, "models": {}}
