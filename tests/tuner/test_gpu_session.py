"""Whole models on a GPU that the interpreter stands in for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from tunewright.bench.suite.language import qwen_q4
from tunewright.codegen.cuda import device
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.driver import DeviceFault
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.gpu import WIDEST_BYTES
from tunewright.codegen.llvm.build import BuildError
from tunewright.db.store import open_store
from tunewright.graph.numerics import Numerics
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.errors import Refused, refusals
from tunewright.tuner.lookup.lockfile import write_lock
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.models.model import open_for, open_model
from tunewright.tuner.search import whole_model
from tunewright.tuner.search.whole_model import ModelTimes, Variant
from tunewright.tuner.session import compile as compile_module
from tunewright.tuner.session.image import Copy, Evaluation
from tunewright.tuner.session.session import InferenceSession

from ..search_space.causal_models import CausalSizes, causal_model
from ..workers.simulated import WARM_S
from .conftest import small_model, static_model
from .interpreted import GPU, MODELS, Interpreted, model_of

AS_STORED = Numerics(widen=False)


def feeds_of(session: InferenceSession, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    return {one.name: rng.standard_normal(one.shape).astype(kinds[one.type]) for one in session.get_inputs()}


def reference(data: bytes, feeds: dict[str, Any]) -> list[Any]:
    """What ONNX's evaluator computes, which takes an exponential of -x in float16, however large that is."""
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(data).run(None, feeds))


def agree(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for mine, right in zip(found, wanted, strict=True):
        assert mine.dtype == right.dtype and mine.shape == right.shape
        tolerance = 1e-2 if mine.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_it_agrees_with_the_reference(gpu: Interpreted, name: str) -> None:
    data = model_of(name)
    with InferenceSession.of(open_model(data, {}, AS_STORED), GPU, {}) as session:
        earlier = []
        for seed in range(2):
            feeds = feeds_of(session, seed)
            found = session.run(None, feeds)
            agree(found, reference(data, feeds))
            earlier.append((found, [array.copy() for array in found]))
        for found, copies in earlier:  # no later run writes to what was given out
            for one, copy in zip(found, copies, strict=True):
                np.testing.assert_array_equal(one, copy)


@pytest.mark.parametrize(("name", "graphs"), [("chain", 1), ("windows", 1), ("without a kernel", 2)])
def test_kernels_between_nodes_without_one_are_one_graph(gpu: Interpreted, name: str, graphs: int) -> None:
    with InferenceSession.of(open_model(model_of(name), {}, AS_STORED), GPU, {}) as session:
        steps = static_model(session).image.steps
        assert sum(isinstance(step, Evaluation) for step in steps) == graphs - 1
        assert gpu.recordings == graphs
        assert session.kernels_s(feeds_of(session, 0)) == pytest.approx(graphs * WARM_S)


def test_what_a_compiler_refuses_is_told(gpu: Interpreted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that was found is built by whichever NVRTC is here."""

    def refuse(*_: Any) -> GpuArtifact:
        raise BuildError("NVRTC, for sm_90a: error")

    monkeypatch.setattr(compile_module, "gpu_build", refuse)
    with pytest.raises(refusals(), match="NVRTC, for sm_90a"):
        InferenceSession.of(open_model(model_of("half"), {}, AS_STORED), GPU, {})


def test_products_of_one_operand_are_one(gpu: Interpreted) -> None:
    """Their results are parts of one tensor in the device's memory."""
    data = model_of("two of one operand")
    model = open_for(GPU, data)
    assert [task.op for task, _ in model.tasks.values()] == ["MatMul", "Split+Transpose+MatMul+Sigmoid"]
    with InferenceSession.of(model, GPU, {}) as session:
        feeds = feeds_of(session, 0)
        agree(session.run(None, feeds), reference(data, feeds))


def test_blocks_share_a_long_cache(gpu: Interpreted) -> None:
    """Of a decoder that nobody tuned: a launch for parts of the keys, and one for what they come to."""
    data = model_of("a long cache")
    model = open_for(GPU, data)
    [attention] = [task for task, _ in model.tasks.values() if "Softmax" in task.op]
    schedule = default_schedule(attention, GPU)
    assert schedule.sketch == "attention_tiles" and schedule["splits"] == 8
    with InferenceSession.of(model, GPU, {}) as session:
        for seed in range(3):
            feeds = feeds_of(session, seed)
            agree(session.run(None, feeds), reference(data, feeds))


@pytest.mark.parametrize("sizes", [CausalSizes(4, 2, 70, 0, 16), CausalSizes(4, 2, 3, 700, 16)])
def test_causal_attention(gpu: Interpreted, sizes: CausalSizes) -> None:
    """No mask is an input of its kernel."""
    data = causal_model(sizes)
    model = open_for(GPU, data)
    [attention] = [task for task, _ in model.tasks.values() if "Softmax" in task.op]
    assert len(attention.inputs) == 3
    with InferenceSession.of(model, GPU, {}) as session:
        feeds = feeds_of(session, 0)
        agree(session.run(None, feeds), reference(data, feeds))


def decoder_step() -> tuple[bytes, dict[str, Any], list[Any]]:
    """A step of a language model by weights of four bits, feeds, and what ONNX Runtime makes of them, in floats."""
    proto = onnx.load_from_string(qwen_q4("qwen", tokens=1, past=5, layers=1, words=32))
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
    data, rng = proto.SerializeToString(), np.random.default_rng(0)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    feeds = {one.name: rng.standard_normal(one.shape).astype(np.float32) for one in session.get_inputs()}
    return data, feeds, list(session.run(None, feeds))


@pytest.mark.slow
def test_a_decoder_reads_weights_of_four_bits_as_they_are(gpu: Interpreted) -> None:
    data, feeds, wanted = decoder_step()
    model = open_for(GPU, data)
    packed = [task for task, _ in model.tasks.values() if task.op.startswith("BlockMatMul")]
    assert [task.op for task in packed] == ["BlockMatMul+Add"] * 2 + ["BlockMatMul", "BlockMatMul+Add", "BlockMatMul"]
    weights = sum(tensor.size_bytes for task in packed for tensor in task.inputs if tensor.dtype is DType.U8)
    assert sum(task.traffic_bytes for task in packed) < 0.6 * weights  # a byte each, of which half is read
    with InferenceSession.of(model, GPU, {}) as session:
        agree(session.run(None, feeds), wanted)


def test_weights_of_four_bits_are_joined(gpu: Interpreted) -> None:
    data = model_of("weights of four bits")
    model = open_for(GPU, data)
    assert [task.op for task, _ in model.tasks.values()] == ["BlockMatMul", "Split+Tanh+Mul", "BlockMatMul+Add"]
    with InferenceSession.of(model, GPU, {}) as session:
        feeds = feeds_of(session, 0)
        agree(session.run(None, feeds), reference(data, feeds))


def test_what_lies_unevenly_is_copied(gpu: Interpreted) -> None:
    """Kernels of a GPU move 16 bytes at once, from even places alone."""
    with InferenceSession.of(open_model(model_of("rounds of odd sizes"), {}, AS_STORED), GPU, {}) as session:
        copies = [step for step in static_model(session).image.steps if isinstance(step, Copy)]
        assert any(step.source.offset_bytes % WIDEST_BYTES for step in copies)
        assert any(step.to.offset_bytes % WIDEST_BYTES for step in copies)


def test_constants_lie_on_the_device_alone(gpu: Interpreted) -> None:
    with InferenceSession.of(open_model(model_of("chain"), {}, AS_STORED), GPU, {}) as session:
        assert static_model(session).image.constants == ()


def test_a_closed_session(gpu: Interpreted) -> None:
    session = InferenceSession.of(open_model(model_of("handed through"), {}, AS_STORED), GPU, {})
    feeds = feeds_of(session, 0)
    session.close()
    with pytest.raises(Refused, match="closed"):
        session.run(None, feeds)


def test_runs_on_a_device_take_turns(gpu: Interpreted) -> None:
    """Also those of different sessions."""
    with InferenceSession.of(open_model(model_of("handed through"), {}, AS_STORED), GPU, {}) as session:
        feeds = feeds_of(session, 0)
        done = threading.Event()

        def run() -> None:
            session.run(None, feeds)
            done.set()

        other = threading.Thread(target=run)
        with gpu.turn:
            other.start()
            assert not done.wait(0.1)
        other.join()
        assert done.is_set()


def test_a_lock_file_of_another_device(gpu: Interpreted, tmp_path: Path) -> None:
    data, path = small_model().SerializeToString(), tmp_path / "lock.json"
    with open_store(url := f"sqlite:///{tmp_path}/db"):
        prepared = ScheduleSource(url).prepare(data, target_name="cuda")
    write_lock(path, prepared.model, prepared.target, {}, prepared.results)
    with InferenceSession(data, lock=path, target="cuda") as session:
        assert len(session.schedules) == 2
    with pytest.raises(Refused, match="its target is cuda"):
        InferenceSession(data, lock=path)


def test_a_session_finds_what_was_measured(gpu: Interpreted, tmp_path: Path) -> None:
    data, url = small_model().SerializeToString(), f"sqlite:///{tmp_path}/db"
    chosen = {}
    with open_store(url) as store:
        store.add_target(GPU)
        for task, _ in open_model(data, {}, AS_STORED).tasks.values():
            space = spaces(task, GPU)[-1]
            [row] = space.sample(1, np.random.default_rng(0))
            chosen[task.key] = space.schedule(row)
            store.add_task(task)
            measured = Measurement(Status.OK, (1e-6,), 1e-6, 9e-7, 1.1e-6, 1e-7)
            store.record(Record(task.key, GPU.key, chosen[task.key], measured))
    with InferenceSession(data, db=url, target="cuda") as session:
        assert session.schedules == chosen
        assert session.coverage().untuned == 0
        assert session.notes == ()
        feeds = feeds_of(session, 0)
        agree(session.run(None, feeds), reference(data, feeds))


def test_threads_are_for_processors(gpu: Interpreted) -> None:
    with pytest.raises(Refused, match="threads=2: a GPU has threads of its own"):
        InferenceSession(small_model().SerializeToString(), target="cuda", threads=2)


def test_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_driver", lambda: False)
    with pytest.raises(Refused, match="a GPU needs NVIDIA's driver"):
        InferenceSession(small_model().SerializeToString(), target="cuda")


@pytest.mark.slow
def test_a_job_times_the_whole_model(gpu: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(small_model().SerializeToString(), {}, AS_STORED)
    found = whole_model.time_sessions(model, GPU, tmp_path, {"default": Variant({})})
    assert found.latencies["default"].median_s > 0

    def broken(*_: object) -> None:
        raise DeviceFault("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")

    monkeypatch.setattr(Interpreted, "program", broken)
    reason = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
    assert whole_model.time_sessions(model, GPU, tmp_path, {"default": Variant({})}) == ModelTimes(reason=reason)
