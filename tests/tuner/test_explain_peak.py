"""Why a kernel does more than the machine was found to allow."""

from __future__ import annotations

import pytest

from tunewright.tuner.explain.peak import (
    DOUBT,
    ESTIMATE,
    FEWER_MULTIPLICATIONS,
    NEAR_OPERANDS,
    OTHER_MOMENT,
    why_above_bandwidth,
    why_above_peak,
)


@pytest.mark.parametrize(
    ("share", "sketch", "is_measured", "why"),
    [
        (None, "winograd4", True, ""),
        (1.0004, "winograd4", True, ""),  # which is told as 100.0%
        (1.006, "contraction", True, OTHER_MOMENT),
        (1.4, "winograd4", True, FEWER_MULTIPLICATIONS),
        (1.4, "winograd2", False, FEWER_MULTIPLICATIONS),
        (1.1, "contraction", True, OTHER_MOMENT),
        (1.751, "contraction", True, DOUBT),
        (1.4, "contraction", False, ESTIMATE),
    ],
)
def test_it_fits_the_sketch(share: float | None, sketch: str, is_measured: bool, why: str) -> None:
    assert why_above_peak(share, sketch, is_measured=is_measured) == why


def test_bytes_come_from_nearer() -> None:
    assert (why_above_bandwidth(1.01), why_above_bandwidth(1.2)) == ("", NEAR_OPERANDS)
