"""What `bench` tells of a busy machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

from tunewright.codegen.target import Target
from tunewright.db.store import open_store
from tunewright.tuner.cli import comparison
from tunewright.tuner.lookup.source import PreparedModel
from tunewright.tuner.models.model import open_for
from tunewright.workers.measure import noise
from tunewright.workers.measure.call_latency import CallLatency
from tunewright.workers.measure.noise import Disturbance

from ..commands import Command


@pytest.fixture
def untuned(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Arguments that name a model and a database that knows nothing of it; no peer is installed."""
    monkeypatch.setattr("tunewright.tuner.peers.runtimes.is_installed", lambda name: False)
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    with open_store(url):
        return [model, "--db", url, "--threads", 1]


@pytest.mark.slow
@pytest.mark.parametrize("steal_s", [0.0, 0.5])
def test_on_a_busy_machine(
    untuned: list[object], command: Command, monkeypatch: pytest.MonkeyPatch, steal_s: float
) -> None:
    disturbance = Disturbance(1.0, steal_s)
    monkeypatch.setattr(comparison, "Watch", lambda: SimpleNamespace(disturbance=lambda: disturbance))
    monkeypatch.setattr(noise, "NOISY_SPREAD", inf)  # the one that runs the test may be busy
    data = command("bench", *untuned, "--json").data
    said = "its processors were away at other virtual machines for 50% of the time"
    assert data["noise"] == (said if steal_s else "")
    out = command("bench", *untuned).out
    assert (f"~ taken while the machine was too busy to rely on it: {said}" in out) == bool(steal_s)
    [row] = [line for line in out.splitlines() if line.lstrip().startswith("tunewright ")]
    assert row.count("~") == (3 if steal_s else 0)
    [kernels] = [line for line in out.splitlines() if "kernels take" in line]
    assert ("~" in kernels) == bool(steal_s)


@pytest.mark.slow
def test_kernels_are_timed_in_turn_with_runs(
    untuned: list[object], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timed at another moment, the part may well be more than the whole."""

    def time_in_turns(
        calls: Mapping[str, Callable[[], Any]], others: Mapping[str, Callable[[], float]]
    ) -> dict[str, CallLatency]:
        assert list(others) == [comparison.KERNELS] and others[comparison.KERNELS]() > 0
        return {name: CallLatency((2e-3,) * 9) for name in calls} | {comparison.KERNELS: CallLatency((1e-3,) * 9)}

    monkeypatch.setattr(comparison, "time_in_turns", time_in_turns)
    data = command("bench", *untuned, "--json").data
    assert (data["tunewright_ms"], data["kernels_ms"]) == (2.0, 1.0)
    assert data["least_ms"].keys() == data["intervals_ms"].keys() == {"tunewright"}


@pytest.mark.slow
def test_times_that_lie_apart(untuned: list[object], command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "NOISY_SPREAD", -1.0)
    assert "lie " in command("bench", *untuned, "--json").data["noise"]


def test_a_peer_with_other_outputs_is_not_timed() -> None:
    def peer(*values: float) -> Any:
        return SimpleNamespace(run=lambda: [np.array(values, np.float32)])

    peers = {"onnxruntime": peer(1, 2), "openvino": peer(1, np.nan), "torch": peer(1, 2.1)}
    outputs = comparison._compare_outputs(peers)
    assert (outputs.reference, list(outputs.errors), list(outputs.unlike)) == ("onnxruntime", ["torch"], ["openvino"])
    assert "not those of onnxruntime" in outputs.unlike["openvino"]
    assert comparison._compare_outputs({}).unlike == {}
    fewer = SimpleNamespace(run=list)
    assert list(comparison._compare_outputs({**peers, "tvm": fewer}).unlike) == ["openvino", "tvm"]


def test_a_third_party_is_asked_where_outputs_are_suspect() -> None:
    def array(*values: float) -> list[Any]:
        return [np.array(values, np.float32)]

    asked: list[bool] = []

    def plain() -> list[Any]:
        asked.append(True)
        return array(1, 2)

    peers = {"onnxruntime": SimpleNamespace(run=lambda: array(1, 1.5))}
    outputs = comparison._compare_outputs(peers, plain)
    assert comparison._errors(array(1, 1.5), outputs)["plain_rel_err"] == {} and not asked
    errors = comparison._errors(array(1, 2), outputs)
    assert errors["max_rel_err"] > 0.3 and errors["plain_rel_err"] == {"tunewright": 0.0, "onnxruntime": 0.25} and asked
    others = comparison._compare_outputs({"torch": peers["onnxruntime"]}, plain)
    assert comparison._errors(array(1, 2), others)["plain_rel_err"] == {}
    refused = comparison._compare_outputs(peers, lambda: None)
    assert comparison._errors(array(1, 2), refused)["plain_rel_err"] == {}


@pytest.mark.parametrize(
    ("largest", "features", "expected"),
    [(127, "+avx2", True), (64, "+avx2", False), (127, "+avx2,+avxvnni", False), (127, "", False)],
)
def test_where_the_reference_saturates(largest: int, features: str, expected: bool) -> None:
    weights = numpy_helper.from_array(np.full((64, 32), largest, np.int8), "w")
    net = parser.parse_graph("g (uint8[8,64] x) => (int32[8,32] y) { y = MatMulInteger (x, w) }")
    net.initializer.append(weights)
    proto = helper.make_model(net, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    target = Target("cpu", "x86_64-unknown-linux-gnu", "x86-64-v3", features, 256, 16, 1, 1 << 15, 1 << 20, 0)
    prepared = PreparedModel(open_for(target, proto.SerializeToString()), target, {}, {})
    assert comparison.may_saturate(prepared) == expected
