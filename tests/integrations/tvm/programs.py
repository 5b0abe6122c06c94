"""Programs of tests, in processes of their own, with TVM and the log. The last line tells in JSON what came of it.

    programs.py search|plain SIZE TRIALS SEED    tunes a product, measuring nothing twice, or as MetaSchedule would
    programs.py build SIZE NUM_CORES             builds and runs one

Candidates are built in the process itself: MetaSchedule's own builder starts another for each batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from types import ModuleType
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult
from tvm.target import Target
from tvm_ffi import structural_hash

from tunewright.integrations.tvm import Database, search

sys.modules["tvm.s_tir.tensor_intrin"] = ModuleType("of which the target has none")  # takes half a minute to import

TARGET = {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1}

_built: dict[str, Any] = {}


def model(size: int) -> Any:
    """y = a x b, as Relax has it."""
    a, b = (relax.Var(name, relax.TensorType((size, size), "float32")) for name in "ab")
    builder = relax.BlockBuilder()
    with builder.function("main", [a, b]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.matmul(a, b)))
        builder.emit_func_output(y)
    return builder.get()


def product(size: int) -> Any:
    """The one task that MetaSchedule finds in it."""
    [task] = ms.relax_integration.extract_tasks(relax.get_pipeline("zero")(model(size)), Target(TARGET))
    return task.dispatched[0]


@derived_object
class Builder(PyBuilder):
    """Builds here, and remembers what."""

    def __init__(self) -> None:
        super().__init__()
        self.hashes: list[int] = []

    def build(self, build_inputs: Any) -> list[Any]:
        results = []
        for one in build_inputs:
            self.hashes.append(structural_hash(one.mod))
            name = f"{len(_built)}"
            mod = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(one.mod)
            _built[name] = tirx.build(mod, target=one.target)
            results.append(BuilderResult(name, None))
        return results


@derived_object
class Future(PyRunnerFuture):
    """A run that is over."""

    def __init__(self, run_secs: list[float]) -> None:
        super().__init__()
        self.run_secs = run_secs

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return RunnerResult(self.run_secs, None)


@derived_object
class Runner(PyRunner):
    """Runs here."""

    def run(self, runner_inputs: Any) -> list[Any]:
        return [Future(run(_built[one.artifact_path], one.args_info)) for one in runner_inputs]


def run(module: Any, arguments: Any) -> list[float]:
    """Three times of a built module."""
    arrays = [tvm.runtime.tensor(np.ones([int(n) for n in one.shape], one.dtype)) for one in arguments]
    timed = module.time_evaluator("main", tvm.cpu(), number=3, repeat=3)(*arrays)
    return [float(time_s) for time_s in timed.results]


def tune(database: Any, size: int, trials: int, seed: int, strategy: Any, cost_model: Any = "random") -> list[int]:
    """Tune; what was measured. As `tune_tir` does, whose loggers do not bear those of pytest."""
    builder = Builder()
    context = ms.TuneContext(
        mod=product(size),
        target=Target(TARGET),
        space_generator="post-order-apply",
        search_strategy=strategy,
        task_name="main",
        rand_state=seed,
        num_threads=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        ms.tune_tasks(
            tasks=[context.clone()],
            task_weights=[1.0],
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=4,
            builder=builder,
            runner=Runner(),
            database=database,
            cost_model=cost_model,
            measure_callbacks=[ms.measure_callback.AddToDatabase(), ms.measure_callback.UpdateCostModel()],
        )
    return list(builder.hashes)


def tune_here(kind: str, size: int, trials: int, seed: int) -> dict[str, Any]:
    """What was measured, by structural hashes of scheduled modules, and what the database knew at first and at last."""
    database = Database(TARGET)
    strategy: Any = ms.search_strategy.EvolutionarySearch(
        population_size=32, genetic_num_iters=2, init_min_unmeasured=4, genetic_max_fail_count=2
    )
    strategy = search(database, strategy) if kind == "search" else strategy
    known = len(database.get_top_k(database.commit_workload(product(size)), 1000))
    return {"known": known, "measured": tune(database, size, trials, seed, strategy), "length": len(database)}


def build_here(size: int, cores: int) -> dict[str, Any]:
    """Whether the product was scheduled by a record, whether its result is right, and how long the log was asked."""
    target = Target(TARGET | {"num-cores": cores})
    started_s = time.monotonic()
    with target, Database(target):
        applied = relax.get_pipeline("zero")(model(size))
        asked_s = time.monotonic() - started_s
        built = relax.build(applied, target)
    x, y = (np.random.default_rng(seed).standard_normal((size, size), np.float32) for seed in (0, 1))
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y)).numpy()
    right = bool(np.allclose(got, x @ y, rtol=1e-4, atol=1e-4))
    return {"scheduled": is_scheduled(applied), "right": right, "asked_s": asked_s}


def is_scheduled(module: Any) -> bool:
    """Whether a function of it was scheduled by a record."""
    return any(function.attrs.get("tirx.is_scheduled", False) for function in module.functions.values())


def main() -> None:
    kind, numbers = sys.argv[1], [int(word) for word in sys.argv[2:]]
    print(json.dumps(build_here(*numbers) if kind == "build" else tune_here(kind, *numbers)))


if __name__ == "__main__":
    main()
