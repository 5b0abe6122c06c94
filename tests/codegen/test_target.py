from __future__ import annotations

from dataclasses import replace

import pytest

from tunewright.codegen.target import Target

GOOD = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "+avx512f", 512, 32, 8, 48 << 10, 1 << 20, 32 << 20)


@pytest.mark.parametrize(
    "other",
    [{"features": ""}, {"vector_bits": 64}, {"vector_bits": 2048}, {"threads": 4096}, {"l3_bytes": 0}, {"l2_bytes": 0}],
)
def test_targets_that_there_may_be(other):
    target = replace(GOOD, **other)
    assert Target.from_json(target.to_json()) == target


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "CPU"},
        {"kind": ""},
        {"kind": 1},
        {"kind": "c\x1bpu"},
        {"triple": ""},
        {"cpu": ""},
        {"cpu": "a\x1b[2J"},
        {"cpu": "zn ver5"},
        {"cpu": "<b>"},
        {"cpu": "a\n"},
        {"triple": "x86_64;linux"},
        {"features": "+a b"},
        {"cpu": "x" * 101},
        {"cpu": 5},
        {"cpu": None},
        {"features": "+a\n+b"},
        {"features": "+\u00e9"},
        {"features": "+a," * 4000},
        {"vector_bits": 32},
        {"vector_bits": 384},
        {"vector_bits": 4096},
        {"vector_bits": 512.0},
        {"vector_registers": 7},
        {"vector_registers": 10**30},
        {"threads": 0},
        {"threads": 4097},
        {"threads": True},
        {"l1_bytes": -1},
        {"l2_bytes": "1"},
        {"l3_bytes": float("nan")},
    ],
)
def test_what_no_processor_is_like_is_refused(other):
    with pytest.raises(ValueError, match=next(iter(other))) as raised:
        Target.from_json({**GOOD.to_json(), **other})
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250


def test_what_is_known_of_a_target_makes_its_key():
    assert len({GOOD.key, replace(GOOD, threads=4).key, replace(GOOD, l1_bytes=0).key}) == 3
    assert GOOD.lanes(4) == 16
    assert GOOD.lanes(1) == 64
