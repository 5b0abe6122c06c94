"""TVM's MetaSchedule, served: it tunes a workload of its own making, and times what it found.

Runs in an environment that has apache-tvm, psutil and xgboost. Workloads are TVM's own for testing its tuner, with
channels last; constant weights may be laid out as it likes best (`layout_free_buffers`), as its pipeline for whole
models allows, which then packs them ahead. Everything is as it is by default but the number of cores.

Each candidate that was timed is an event at once. Of each that is the fastest so far the built code is kept in the
folder of the run, so that it is the very code that is timed again beside others, however the run ends.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from tunewright.bench.rivals.serving import Tell, rest, serve

SAMPLE_MS, REPEATS = 20, 3
"""A sample is the median of so many means, each over runs that take so long."""

TOLERANCE = 1e-3

WEIGHT = 0.5
"""Every element of a weight that may be packed in any way, when what was built is checked."""

_loaded: list[Any] = []  # what `sample` runs, by number


def workload(kind: str, sizes: Sequence[int]) -> Any:
    """A workload as TVM's own tests of its tuner have it."""
    from tvm import te
    from tvm.s_tir.meta_schedule.testing import te_workload as made

    kinds: Mapping[str, tuple[Callable[..., Any], Sequence[int]]] = {  # how it is made, and the operands packed ahead
        "gemm": (lambda rows, inner, columns: made.matmul(rows, columns, inner), (1,)),
        "conv": (
            lambda inputs, outputs, kernel, height, width: made.conv2d_nhwc(
                1, height, width, inputs, outputs, kernel, 1, kernel // 2
            ),
            (1,),
        ),
        "depthwise": (
            lambda channels, kernel, height, width: made.depthwise_conv2d_nhwc(
                1, height, width, channels, kernel, 1, kernel // 2
            ),
            (1,),
        ),
        "batched": (lambda batch, rows, inner, columns: made.batch_matmul_nkkm(batch, rows, columns, inner), ()),
        "softmax": (made.softmax_mn, ()),
    }
    make, packed = kinds[kind]
    function = te.create_prim_func(make(*sizes))
    return function.with_attr("layout_free_buffers", list(packed)) if packed else function


@cache
def _target(cpu: str, cores: int) -> Any:
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": cores})


def about(tell: Tell, cpu: str, cores: int) -> dict[str, str]:
    """Versions, and the target that is tuned for."""
    from importlib.metadata import version

    import tvm

    packages = ("xgboost-cpu", "xgboost", "numpy")
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except ImportError:  # of the two builds of xgboost there is one
            continue
    return {"tvm": tvm.__version__, "target": str(_target(cpu, cores)), **found}


def tune(
    tell: Tell, kind: str, sizes: Sequence[int], cpu: str, cores: int, folder: str, trials: int, seed: int
) -> dict[str, Any]:
    """Tune in a new folder. Events have `at_s` on the system's monotonic clock, and `time_s`, null for a failure.

    The first event, `began`, is sent when all is imported.
    """
    from tvm.s_tir import meta_schedule as ms

    shutil.rmtree(folder, ignore_errors=True)
    Path(folder).mkdir(parents=True)
    function = workload(kind, sizes)
    ms.cost_model.CostModel.create(
        "xgb", num_tuning_cores=cores
    )  # what can't be imported shows here, not in the search
    _ready()
    builder = ms.builder.LocalBuilder(max_workers=cores, initializer=_ready)
    runner = _telling_runner(tell, Path(folder))
    callbacks = [*ms.measure_callback.MeasureCallback.create("default"), _failed_builds(tell)]
    tell({"began": True, "at_s": time.monotonic()})
    ms.tune_tir(
        function,
        _target(cpu, cores),
        folder,
        trials,
        builder=builder,
        runner=runner,
        measure_callbacks=callbacks,
        num_tuning_cores=cores,
        seed=seed,
    )
    return {"exhausted": True}


def _ready() -> None:
    """Import what a process of TVM's needs to build: on some machines that takes half a minute, as long as it waits for
    a build, so that none would ever succeed.
    """
    import tvm.s_tir.tensor_intrin  # noqa: F401


def _telling_runner(tell: Tell, folder: Path) -> Any:
    """TVM's local runner, which takes one candidate after the other anyway, telling of each as it is timed."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    class Telling(ms.runner.PyRunner):  # type: ignore[misc]  # TVM is not there when types are checked
        def __init__(self) -> None:
            super().__init__()
            self.inner = ms.runner.LocalRunner()
            self.best_s = inf
            self.number = 0

        def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
            futures = []
            for one in runner_inputs:
                [future] = self.inner.run([one])
                self._tell(one, future.result())
                futures.append(future)
            return futures

        def _tell(self, one: Any, result: Any) -> None:
            self.number += 1
            event: dict[str, Any] = {"at_s": time.monotonic(), "time_s": None}
            if result.run_secs:
                event["time_s"] = median(map(float, result.run_secs))
                if event["time_s"] < self.best_s:
                    self.best_s = event["time_s"]
                    event["built"] = _kept(one, folder / f"best-{self.number}")
            tell(event)

    return tvm.ir.utils.derived_object(Telling)()


def _kept(one: Any, path: Path) -> str:
    """Copy built code, and what its arguments are."""
    source = Path(str(one.artifact_path))
    copied = path.with_suffix(source.suffix)
    shutil.copy(source, copied)
    arguments = [_plain(info.as_json()) for info in one.args_info]
    path.with_suffix(".json").write_text(json.dumps(arguments))
    return str(copied)


def _plain(value: Any) -> Any:
    """Data of TVM's own containers as plain data."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | float):
        return value
    return [_plain(one) for one in value]


def _failed_builds(tell: Tell) -> Any:
    """A callback that tells of each candidate that could not be built: no runner sees it."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    class FailedBuilds(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]  # as above
        def apply(self, scheduler: Any, task: int, candidates: Any, built: Sequence[Any], run: Any) -> None:
            for one in built:
                if one.error_msg is not None:
                    tell({"at_s": time.monotonic(), "time_s": None})

    return tvm.ir.utils.derived_object(FailedBuilds)()


def load(tell: Tell, built: str, kind: str) -> dict[str, Any]:
    """Load what `tune` has kept, check what it computes, and be ready to time it: its `number`."""
    import tvm

    module = tvm.runtime.load_module(built)
    shapes = [tuple(info[2]) for info in json.loads(Path(built).with_suffix(".json").read_text())]
    arrays = _operands(kind, shapes)
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    module[module.entry_name](*tensors)
    error = _error(kind, arrays[:-1], tensors[-1].numpy())
    if not error < TOLERANCE:
        raise AssertionError(f"{built} is wrong by {error:g} of its largest output")
    evaluator = module.time_evaluator(module.entry_name, tvm.cpu(), number=3, repeat=REPEATS, min_repeat_ms=SAMPLE_MS)
    _loaded.append(partial(evaluator, *tensors))
    return {"number": len(_loaded) - 1, "error": error}


def _operands(kind: str, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Random inputs, and room for the output. A weight that may be packed in any way has one value throughout."""
    import numpy as np

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    if kind in ("gemm", "conv", "depthwise"):
        arrays[1][...] = WEIGHT
    arrays[-1][...] = 0
    return arrays


def _error(kind: str, inputs: Sequence[Any], output: Any) -> float:
    """The largest difference to what numpy computes, as a part of the largest output."""
    import numpy as np

    match kind:
        case "gemm":  # the weight may be packed in any way, and is the same everywhere
            right = np.broadcast_to(WEIGHT * inputs[0].astype(np.float64).sum(axis=1, keepdims=True), output.shape)
        case "batched":
            right = inputs[0].astype(np.float64) @ inputs[1]
        case "softmax":
            shifted = np.exp(inputs[0] - inputs[0].max(axis=1, keepdims=True), dtype=np.float64)
            right = shifted / shifted.sum(axis=1, keepdims=True)
        case _:
            right = _windows(kind, inputs[0], output.shape[-1])
    return float(np.abs(output.reshape(right.shape) - right).max() / np.abs(right).max())


def _windows(kind: str, x: Any, outputs: int) -> Any:
    """A convolution over windows of three by three with weights that are all the same."""
    import numpy as np

    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    summed = sum(
        padded[:, row : row + x.shape[1], column : column + x.shape[2]] for row in range(3) for column in range(3)
    )
    if kind == "conv":
        summed = np.repeat(np.sum(summed, axis=-1, keepdims=True), outputs, axis=-1)
    return WEIGHT * summed


def sample(tell: Tell, number: int) -> float:
    """Seconds of a run, by TVM's own evaluator."""
    time_s = median(map(float, _loaded[number]().results))
    rest()
    return time_s


if __name__ == "__main__":
    serve({"about": about, "tune": tune, "load": load, "sample": sample})
