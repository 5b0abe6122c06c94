"""Whole models on a real GPU: right, kept compiled, tuned, and timed by the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tunewright.codegen.target import CUDA
from tunewright.tuner import cli
from tunewright.tuner.peers.torch_cuda import torch_fault
from tunewright.tuner.session import compile as compile_module
from tunewright.tuner.session.session import InferenceSession

from ..commands import Command, commands
from ..search_space.causal_models import CausalSizes, causal_model
from ..tuner.conftest import small_model
from ..tuner.interpreted import MODELS, model_of
from ..tuner.test_gpu_session import agree, decoder_step, feeds_of, reference

pytestmark = pytest.mark.gpu


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    return commands(cli.execute, capfd)


@pytest.fixture
def model(home: Path) -> Path:
    path = home / "small.onnx"
    onnx.save(small_model(), path)
    return path


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_the_reference(home: Path, name: str) -> None:
    data = model_of(name)
    with InferenceSession(data, target=CUDA) as session:
        for seed in range(2):
            feeds = feeds_of(session, seed)
            agree(session.run(None, feeds), reference(data, feeds))


@pytest.mark.parametrize("sizes", [CausalSizes(6, 2, 333, 0, 64), CausalSizes(6, 2, 5, 900, 64)])
def test_causal_attention_agrees_with_the_reference(home: Path, sizes: CausalSizes) -> None:
    data = causal_model(sizes)
    with InferenceSession(data, target=CUDA) as session:
        feeds = feeds_of(session, 0)
        agree(session.run(None, feeds), reference(data, feeds))


def test_a_decoder_by_weights_of_four_bits_agrees_with_onnx_runtime(home: Path) -> None:
    data, feeds, wanted = decoder_step()
    with InferenceSession(data, target=CUDA) as session:
        agree(session.run(None, feeds), wanted)


def test_a_kept_model_opens_without_a_compiler(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[np.ndarray]:
        with InferenceSession(model, target=CUDA) as session:
            return session.run(None, feeds_of(session, 0))

    first = run()

    def forbid(*_: object) -> None:
        raise AssertionError("it was built once more")

    monkeypatch.setattr(compile_module, "gpu_build", forbid)
    for kept, built in zip(run(), first, strict=True):
        np.testing.assert_array_equal(kept, built)


def test_a_model_is_tuned_and_timed(model: Path, command: Command) -> None:
    tuned = command("tune", model, "--target", CUDA, "--trials", 20, "--json").data
    assert tuned["trials"] and not tuned["failed"]
    peers = [] if torch_fault() else ["--against", "torch"]
    data = command("bench", model, "--target", CUDA, *peers, "--json").data
    assert data["device"]["ms"].keys() >= {"tunewright", *(name for name in peers if name == "torch")}
    assert all(time_ms > 0 for time_ms in data["device"]["ms"].values())
