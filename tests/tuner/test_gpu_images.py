"""Images of models for a GPU: what is in them, and that nothing is lowered or compiled to start from one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.emit import Launch
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.ir.ir import Buffer
from tunewright.codegen.ir.tensor_map import TensorMap
from tunewright.codegen.target import CUDA
from tunewright.graph.numerics import Numerics
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.errors import Refused
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session import compile as compile_module
from tunewright.tuner.session import device_model, executable
from tunewright.tuner.session.compile import build_kernels, compile_model
from tunewright.tuner.session.image import Area, Copy, Image, KernelCall, Location
from tunewright.tuner.session.image_store import ImageStore
from tunewright.tuner.session.session import InferenceSession

from ..commands import Command
from .interpreted import GPU, MODELS, Interpreted, model_of
from .processes import python_path

FEEDS = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}


def no_compiler() -> str:
    raise NoCompiler("no NVRTC: pip install 'tunewright[cuda]'")


def run(path: Path) -> list[Any]:
    with InferenceSession(path, target=CUDA) as session:
        return [array.tolist() for array in session.run(None, FEEDS)]


@pytest.fixture
def _no_build(home: Path, gpu: Interpreted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is kept, and nothing can be read, lowered or compiled any more."""
    run(home / "small.onnx")

    def forbid(*_: object) -> None:
        raise AssertionError("a kept model was opened from its beginning")

    monkeypatch.setattr(nvrtc, "version", no_compiler)
    monkeypatch.setattr(compile_module, "gpu_build", forbid)
    monkeypatch.setattr(executable, "open_executable", forbid)


@pytest.mark.usefixtures("_no_build")
def test_a_kept_model_opens_without_a_compiler(home: Path) -> None:
    assert np.array(run(home / "small.onnx")).shape == (1, 4, 24)


@pytest.mark.usefixtures("_no_build")
def test_the_command_starts_from_the_image_too(home: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    data = command("run", home / "small.onnx", "--target", "cuda", "--json").data
    assert data["outputs"][0]["shape"] == [4, 24]
    for image in (home / "images").glob("*.image"):
        image.unlink()
    monkeypatch.setattr(compile_module, "gpu_build", lambda *_: no_compiler())
    answer = command("run", home / "small.onnx", "--target", "cuda")
    assert (answer.code, answer.err.count("\n")) == (2, 1) and "pip install 'tunewright[cuda]'" in answer.err


def test_an_image_is_of_the_compiler_that_is_here(
    home: Path, gpu: Interpreted, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(home / "small.onnx")
    built: list[str] = []

    def build(*arguments: Any) -> GpuArtifact:
        built.append(nvrtc.version())
        return gpu.built(*arguments)

    monkeypatch.setattr(compile_module, "gpu_build", build)
    monkeypatch.setattr(nvrtc, "version", lambda: "99.0")
    for _ in range(2):
        assert run(home / "small.onnx") == first
    assert built == ["99.0", "99.0"]  # both kernels, once
    assert len(list((home / "images").glob("*.image"))) == 1


def image_of(name: str) -> Image:
    model = open_model(model_of(name), numerics=Numerics(widen=False)).merge(())
    schedules = {key: default_schedule(task, GPU) for key, (task, _) in model.tasks.items()}
    return compile_model(model, build_kernels(model, schedules, GPU, None))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "without a kernel"])
def test_all_of_an_image_is_kept(name: str, gpu: Interpreted, tmp_path: Path) -> None:
    """But for what only compiling takes. Constants come back packed."""
    image, store = image_of(name), ImageStore(tmp_path / "images")
    assert store.put("name", image, b"", "13.5")
    stored = store.get("name", "13.5")
    assert stored is not None and not stored.pool_code
    kept = stored.image
    assert (kept.inputs, kept.outputs, kept.output_types) == (image.inputs, image.outputs, image.output_types)
    assert kept.arena_bytes == image.arena_bytes
    for block, expected in zip(kept.constants, image.constants, strict=True):
        np.testing.assert_array_equal(block, expected)
    for mine, right in zip(kept.steps, image.steps, strict=True):
        if isinstance(mine, KernelCall) and isinstance(right, KernelCall):
            assert mine.locations == right.locations
            assert isinstance(mine.artifact, GpuArtifact) and isinstance(right.artifact, GpuArtifact)
            for field in ("code", "sha256", "launches", "params", "scratch"):
                assert getattr(mine.artifact, field) == getattr(right.artifact, field)
        else:
            assert isinstance(mine, Copy) and mine == right
    assert store.get("name", "13.0") is None and store.get("name", None) is not None


def test_tensor_maps_are_kept(tmp_path: Path) -> None:
    tensor_map = TensorMap("x", DType.F16, (64, 128), (128, 1), (8, 64))
    launches = (Launch("k_p0", (3, 2, 1), 128, 60000, (tensor_map,)), Launch("k_p1", (1, 1, 1), 32, 0))
    params = tuple(Buffer(name, (64, 128), DType.F16) for name in "xy")
    call = KernelCall(
        GpuArtifact(b"cubin", "", launches, {}, params, (), {}), (Location(Area.INPUT), Location(Area.OUTPUT))
    )
    image = Image((), (), {}, (call, call), 0, (np.empty(0, np.uint8),), ())
    store = ImageStore(tmp_path)
    assert store.put("name", image, b"", "13.5")
    stored = store.get("name", compiler=None)
    assert stored is not None
    first, second = stored.image.steps
    assert isinstance(first, KernelCall) and isinstance(second, KernelCall) and first.artifact is second.artifact
    assert isinstance(first.artifact, GpuArtifact) and first.artifact.launches == launches


def test_what_has_nodes_without_a_kernel_is_read_each_time(home: Path, gpu: Interpreted) -> None:
    data = model_of("without a kernel")
    for _ in range(2):
        with InferenceSession(data, target=CUDA) as session:
            session.run(None, {"x": np.zeros((1, 1, 6, 6), np.float32)})
    assert not list((home / "images").iterdir())


def test_what_a_device_does_not_take_is_told(home: Path, gpu: Interpreted, monkeypatch: pytest.MonkeyPatch) -> None:
    run(home / "small.onnx")

    def refuse(*_: object) -> None:
        raise MemoryError("it does not fit into the memory of the GPU")

    monkeypatch.setattr(device_model.DeviceModel, "_queue", refuse)
    with pytest.raises(MemoryError, match="of the GPU"):
        run(home / "small.onnx")


def test_threads_and_devices_are_looked_at_first(home: Path, gpu: Interpreted) -> None:
    run(home / "small.onnx")
    with pytest.raises(Refused, match="a GPU has threads of its own"):
        InferenceSession(home / "small.onnx", target=CUDA, threads=1)


OPENED = """
import sys
from types import SimpleNamespace
from pathlib import Path
from tunewright.codegen.cuda import device, driver, nvrtc
from tunewright.codegen.gpu import KNOWN
from tunewright.tuner import InferenceSession
from tunewright.tuner.session import device_model, image_store
from tunewright.graph.numerics import Numerics

def version():
    raise nvrtc.NoCompiler("none is here")

image_store.SETTLED_NS = -10**18
nvrtc.version = version
device.devices = lambda: [device.Device(0, "a GPU", KNOWN["sm_90a"])]
driver.driver = lambda: None
device_model.DeviceModel = lambda image, driver: SimpleNamespace(image=image, vendor_ops=[], close=lambda: None)
InferenceSession(sys.argv[1], target="cuda").close()
heavy = ("onnx", "sqlalchemy", "xgboost", "cupy", "tunewright.search_space.sketches", "tunewright.tuner.lookup.ladder")
print([name for name in heavy if name in sys.modules])
"""


def test_a_start_from_an_image_takes_no_sketches(home: Path, gpu: Interpreted) -> None:
    run(home / "small.onnx")
    done = subprocess.run(
        [sys.executable, "-P", "-c", OPENED, str(home / "small.onnx")],
        env={**os.environ, **python_path()}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"
