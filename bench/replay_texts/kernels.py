"""Texts of kernels: default and random schedules of many tasks, for processors and GPUs of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from tunewright.bench.gpus.workloads import BUILD_WORKLOADS, heaviest_task
from tunewright.bench.suite import MODELS
from tunewright.bench.suite.operators import OPERATORS
from tunewright.bench.training.tasks import random_models
from tunewright.codegen.cuda.emit import emit
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.llvm.build import source
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower, spaces
from tunewright.tuner.models.model import open_model

CPUS = (
    Target("cpu", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 256, 16, 2, 32 << 10, 1 << 20, 16 << 20),
    Target("cpu", "x86_64-unknown-linux-gnu", "x86-64-v4", "", 512, 32, 2, 48 << 10, 1 << 20, 32 << 20),
    Target("cpu", "aarch64-unknown-linux-gnu", "neoverse-n1", "", 128, 32, 4, 64 << 10, 1 << 20, 32 << 20),
)

GPUS = tuple(Target.of_gpu(KNOWN[arch]) for arch in ("sm_80", "sm_86", "sm_90a"))

RANDOM_TASKS = 60
"""Tasks of random models, with odd and prime sizes too."""

RANDOM_SCHEDULES = 20
"""Random schedules of a task, over all its sketches."""


def sample_tasks() -> dict[str, Task]:
    """Tasks by key: of the suite's models and operators, of the GPU workloads, and of random models."""
    tasks = {task.key: task for gpu_workload in BUILD_WORKLOADS.values() for task in [heaviest_task(gpu_workload.text)]}
    for build in (*MODELS.values(), *(operator.build for operator in OPERATORS.values())):
        tasks |= {key: task for key, (task, _) in open_model(build()).tasks.items()}
    count = len(tasks) + RANDOM_TASKS
    for model in random_models(np.random.default_rng(0)):
        tasks |= {key: task for key, (task, _) in open_model(model).tasks.items()}
        if len(tasks) >= count:
            return tasks
    raise AssertionError("random models have no end")


def kernel_texts(tasks: Mapping[str, Task]) -> Iterator[tuple[str, Callable[[], str]]]:
    """For each task, and two targets in turn, names by sketch and functions that give the texts of its schedules."""
    for number, (key, task) in enumerate(tasks.items()):
        for target in (CPUS[number % len(CPUS)], GPUS[number % len(GPUS)]):
            task_spaces = spaces(task, target)
            for space in task_spaces:
                rows = space.sample(RANDOM_SCHEDULES // len(task_spaces), np.random.default_rng(number))
                schedules = [space.default, *map(space.schedule, rows)]
                name = f"kernels/{task.op}/{key[:12]}/{target.cpu}/{space.sketch}"
                yield name, partial(_texts, task, target, schedules)


def _texts(task: Task, target: Target, schedules: list[Schedule]) -> str:
    return "\n".join(f"{schedule}\n{_text(Candidate(task, target, schedule))}" for schedule in schedules)


def _text(candidate: Candidate) -> str:
    kernel = lower(candidate)
    return str(emit(kernel, "kernel")) if candidate.target.kind == CUDA else source(kernel, candidate.target)
