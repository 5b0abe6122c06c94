"""What others need to launch a kernel."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.gpu import KNOWN
from tunewright.codegen.cuda.launchable import Launchable, Role
from tunewright.codegen.ir import Packing
from tunewright.codegen.target import Target

from .kernels import multiplied

TARGET = Target.of_gpu(KNOWN["sm_90a"])


@pytest.fixture(scope="module")
def one() -> Launchable:
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    return Launchable.of(multiplied(64, 32, 96), TARGET, 2)


def test_it_says_all_that_a_launch_takes(one):
    [launch] = one.launches
    assert (launch.grid, launch.threads) == ((3, 2, 1), 128)
    assert [(a.name, a.role, a.shape) for a in one.arguments] == [
        ("a", Role.INPUT, (64, 32)),
        ("b", Role.INPUT, (32, 96)),
        ("c", Role.OUTPUT, (64, 96)),
    ]
    assert one.cubin.startswith(b"\x7fELF") and launch.symbol.encode() in one.cubin
    assert re.search(r"^\.target sm_90a\b", one.ptx, re.M)  # by its letter for no later one
    entry = re.search(rf"\.entry {launch.symbol}\((.*?)\)", one.ptx, re.S)
    assert entry is not None and entry[1].count(".param .u64") == len(one.arguments)


def test_as_data(one):
    assert Launchable.from_json(one.to_json()) == one
    assert one.to_json()["launches"][0]["block"] == [128, 1, 1]


def test_a_constant_says_how_it_is_packed(one):
    maps = ((0, ((0.5, 1.0), (1.0, -2.0))),)
    packing = Packing((1, 0), (96, 32), ((48, 2), (32,)), (0, 2, 1), maps, joined=2)
    [first, second, third] = one.arguments
    packed = replace(one, arguments=(first, replace(second, packing=packing), third))
    assert Launchable.from_json(json.loads(json.dumps(packed.to_json()))) == packed


@pytest.mark.parametrize("change", [{"cubin": "?"}, {"launches": [{}]}, {"arguments": [{"name": "x"}]}])
def test_other_data_is_refused(one, change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Launchable.from_json(one.to_json() | change)
