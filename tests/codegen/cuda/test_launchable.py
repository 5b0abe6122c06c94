"""What others need to launch a kernel."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tunewright.codegen.argument import Role
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.launchable import Launchable
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.ir.ir import Packing
from tunewright.codegen.ir.tensor_map import TensorMap
from tunewright.codegen.target import Target

from .kernels import fetched, multiplied

TARGET = Target.of_gpu(KNOWN["sm_90a"])


@pytest.fixture(scope="module")
def launchable() -> Launchable:
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    return Launchable.of(multiplied(64, 32, 96), TARGET, 2)


def test_it_says_all_that_a_launch_takes(launchable):
    [launch] = launchable.launches
    assert (launch.grid, launch.threads) == ((3, 2, 1), 128)
    assert [(a.name, a.role, a.shape) for a in launchable.arguments] == [
        ("a", Role.INPUT, (64, 32)),
        ("b", Role.INPUT, (32, 96)),
        ("c", Role.OUTPUT, (64, 96)),
    ]
    assert launchable.cubin.startswith(b"\x7fELF") and launch.symbol.encode() in launchable.cubin
    assert re.search(r"^\.target sm_90a\b", launchable.ptx, re.M)  # by its letter for no later one
    entry = re.search(rf"\.entry {launch.symbol}\((.*?)\)", launchable.ptx, re.S)
    assert entry is not None and entry[1].count(".param .u64") == len(launchable.arguments)


def test_as_data(launchable):
    assert Launchable.from_json(launchable.to_json()) == launchable
    assert launchable.to_json()["launches"][0]["block"] == [128, 1, 1]


def test_a_launch_says_which_maps_it_takes(launchable):
    boxes = Launchable.of(fetched(300, 44), TARGET, 1)
    [launch] = boxes.launches
    assert launch.maps == (TensorMap("x", DType.F32, (300, 44), (44, 1), (64, 32)),)
    data = json.loads(json.dumps(boxes.to_json()))
    assert Launchable.from_json(data) == boxes
    assert data["launches"][0]["tensor_maps"] == [
        {"tensor": "x", "dtype": "float32", "extents": [300, 44], "strides": [44, 1], "box": [64, 32], "steps": [1, 1]}
    ]
    entry = re.search(rf"\.entry {launch.symbol}\((.*?)\n\)", boxes.ptx, re.S)
    assert entry is not None and re.search(r"\.param \.align 64 \.b8 \S+\[128\]$", entry[1])


def test_what_a_server_without_maps_says_is_taken(launchable):
    data = launchable.to_json()
    for launch in data["launches"]:
        del launch["tensor_maps"]
    assert Launchable.from_json(data) == launchable


def test_a_constant_says_how_it_is_packed(launchable):
    maps = ((0, ((0.5, 1.0), (1.0, -2.0))),)
    packing = Packing((1, 0), (96, 32), ((48, 2), (32,)), (0, 2, 1), maps, joined=2)
    [first, second, third] = launchable.arguments
    packed = replace(launchable, arguments=(first, replace(second, packing=packing), third))
    assert Launchable.from_json(json.loads(json.dumps(packed.to_json()))) == packed


MAPS = {
    "launches": [{"symbol": "k", "grid": [1, 1, 1], "block": [1, 1, 1], "smem_bytes": 0, "tensor_maps": [{"box": []}]}]
}


@pytest.mark.parametrize("change", [{"cubin": "?"}, {"launches": [{}]}, {"arguments": [{"name": "x"}]}, MAPS])
def test_other_data_is_refused(launchable, change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Launchable.from_json(launchable.to_json() | change)
