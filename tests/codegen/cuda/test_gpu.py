"""GPUs by their numbers."""

from __future__ import annotations

import json

import pytest

from tunewright.codegen.gpu import KNOWN, Gpu


@pytest.mark.parametrize("gpu", KNOWN.values(), ids=str)
def test_what_is_written_is_read_back(gpu):
    assert Gpu.from_json(json.loads(json.dumps(gpu.to_json()))) == gpu
    assert KNOWN[gpu.arch] is gpu


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("arch", "sm_90a; rm"),
        ("arch", "90"),
        ("arch", None),
        ("arch", "sm_75"),
        ("sms", 0),
        ("sms", True),
        ("clock_hz", 1.5e9),
        ("l2_bytes", 1 << 40),
    ],
)
def test_what_no_gpu_is(name, value):
    with pytest.raises(ValueError, match=f"gpu: {name} must be"):
        Gpu.from_json(KNOWN["sm_80"].to_json() | {name: value})


@pytest.mark.parametrize("arch,capability", [("sm_80", 80), ("sm_90a", 90), ("sm_100a", 100)])
def test_the_capability(arch, capability):
    assert KNOWN[arch].capability == capability
