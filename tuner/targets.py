"""Targets: the devices of this machine, by the names that people give them. Light to import."""

from __future__ import annotations

from collections.abc import Sequence

from tunewright.codegen.host import detect
from tunewright.codegen.target import CUDA, Target

from .arguments import check_choice
from .errors import Refused

TARGETS = ("auto", "cpu", CUDA)
"""Names of targets: this machine's processor, also as "auto" until kernels have run on a GPU, and its first GPU."""


def check_target(name: str) -> str:
    """The name given. Raises Refused if no device has it."""
    return check_choice("target", name, TARGETS)


def default_devices(devices: Sequence[Target]) -> Sequence[Target]:
    """The devices to use where none is named: processors, and a GPU only where there is no processor."""
    return [target for target in devices if target.gpu is None] or devices


def local_target(name: str = "auto", threads: int | None = None) -> Target:
    """The device of this machine of that name. Raises Refused if there is none."""
    if check_target(name) != CUDA:
        return detect(threads)
    if threads is not None:
        raise Refused(f"threads={threads}: a GPU has threads of its own, which the search chooses; leave it out")
    from tunewright.codegen.cuda.device import NoDevice, devices  # a processor's sessions start without
    from tunewright.codegen.cuda.nvrtc import NoCompiler

    try:
        return Target.of_gpu(devices()[0].gpu)
    except (NoDevice, NoCompiler) as error:
        raise Refused(str(error)) from error
