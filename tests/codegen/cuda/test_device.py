"""GPUs of this machine: what they say becomes their figures, and where there is none, why."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tunewright.codegen.cuda import device
from tunewright.codegen.cuda.device import NoDevice, devices
from tunewright.codegen.gpu import KNOWN

PROPERTIES = {
    "name": b"NVIDIA H200", "major": 9, "minor": 0, "multiProcessorCount": 132, "maxThreadsPerMultiProcessor": 2048,
    "maxBlocksPerMultiProcessor": 32, "sharedMemPerMultiprocessor": 228 << 10, "sharedMemPerBlockOptin": 227 << 10,
    "l2CacheSize": 50 << 20,
}  # fmt: skip
ATTRIBUTES = {13: 1_980_000, 36: 3_201_000, 37: 6144}


@pytest.fixture
def runtime(monkeypatch):
    """CUDA, as far as it is asked: `use(count, fault, properties)`."""

    def use(count=1, fault="", properties=lambda number: PROPERTIES):
        def counted():
            if fault:
                raise RuntimeError(fault)
            return count

        made = SimpleNamespace(
            CUDARuntimeError=RuntimeError,
            getDeviceCount=counted,
            getDeviceProperties=properties,
            deviceGetAttribute=lambda attribute, number: ATTRIBUTES[attribute],
            driverGetVersion=lambda: 13000,
        )
        monkeypatch.setattr(device, "has_driver", lambda: True)
        monkeypatch.setattr(device, "_runtime", lambda: made)

    return use


def lost(number):
    raise RuntimeError("cudaErrorDeviceUnavailable: device is busy\nor unavailable")


def test_what_a_device_says(runtime):
    runtime(count=2)
    first, second = devices()
    assert (first.number, second.number, first.name) == (0, 1, "NVIDIA H200")
    assert first.gpu == second.gpu == replace(KNOWN["sm_90a"], memory_bytes_s=4_916_736_000_000)
    assert device.driver_version() == "13.0"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"fault": "cudaErrorInsufficientDriver: CUDA driver version is insufficient\nfor it"}, "release 580 or later"),
        ({"count": 0}, "CUDA_VISIBLE_DEVICES"),
        (
            {"properties": lambda _: PROPERTIES | {"name": b"Tesla T4", "major": 7, "minor": 5}},
            r"Tesla T4 has compute capability 7.5, and a GPU needs compute capability 8.0 or later",
        ),
        ({"properties": lost}, "of no use: cudaErrorDeviceUnavailable: device is busy or unavailable"),
        ({"properties": lambda _: PROPERTIES | {"l2CacheSize": 0}}, "of no use: gpu: l2_bytes must be"),
    ],
)
def test_where_there_is_none(runtime, settings, why):
    runtime(**settings)
    with pytest.raises(NoDevice, match=why) as caught:
        devices()
    assert "\n" not in str(caught.value)


def test_without_a_driver_nothing_is_imported(monkeypatch):
    monkeypatch.setattr(device, "DRIVER_LIBRARY", "libcuda-of-nobody.so.1")
    monkeypatch.setattr(device, "_runtime", None)
    with pytest.raises(NoDevice, match=r"there is no libcuda-of-nobody.so.1: a GPU needs NVIDIA's driver"):
        devices()
