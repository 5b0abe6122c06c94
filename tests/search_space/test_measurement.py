"""Measurements: what is told of them."""

from __future__ import annotations

import pytest

from tunewright.search_space.measurement import SAMPLES_OF_INTERVAL, Measurement, Status


@pytest.mark.parametrize("count", range(SAMPLES_OF_INTERVAL + 1))
def test_few_samples_have_no_interval(count: int) -> None:
    measured = Measurement(Status.OK, (1.0,) * count, 1.0, 0.9, 1.1)
    assert measured.interval_s == ((0.9, 1.1) if count >= SAMPLES_OF_INTERVAL else None)


def test_no_interval_is_told_without_width() -> None:
    """The clock was too coarse, or an older version divided samples by themselves."""
    assert Measurement(Status.OK, (1.0,) * 9, 1.0, 1.0, 1.0).interval_s is None
    assert Measurement(Status.CRASH).interval_s is None
