"""The devices of this machine by name."""

from __future__ import annotations

import re

import pytest

from tunewright.codegen.cuda import device
from tunewright.codegen.cuda.device import Device, NoDevice
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.tuner.errors import Refused
from tunewright.tuner.targets import local_target


def test_the_processor():
    assert local_target() == local_target("cpu") == detect()
    assert local_target("cpu", 1) == detect(1)
    with pytest.raises(Refused, match="no target is called 'gpu'; there are auto, cpu, cuda"):
        local_target("gpu")


def test_the_target_may_be_a_gpu(monkeypatch):
    gpu = KNOWN["sm_90a"]
    monkeypatch.setattr(device, "devices", lambda: [Device(0, "H200", gpu), Device(1, "A100", KNOWN["sm_80"])])
    assert local_target("cuda") == Target.of_gpu(gpu)
    with pytest.raises(Refused, match="threads=4: a GPU has threads of its own"):
        local_target("cuda", 4)


@pytest.mark.parametrize("fault", [NoDevice("there is no libcuda.so.1"), NoCompiler("pip install 'tunewright[cuda]'")])
def test_a_gpu_that_is_not_there(monkeypatch, fault):
    def devices():
        raise fault

    monkeypatch.setattr(device, "devices", devices)
    with pytest.raises(Refused, match=re.escape(str(fault))):
        local_target("cuda")
