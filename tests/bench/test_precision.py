"""Models in narrow floats beside float32."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tunewright.bench import precision
from tunewright.bench.suite.classic import support_vectors
from tunewright.graph.numerics import Precision


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "ROUNDS", 2)
    monkeypatch.setattr(precision, "SAMPLE_S", 1e-3)


def test_a_model_that_is_rounded_keeps_half_of_its_constants_and_is_off_by_little() -> None:
    build = partial(precision.product, 4, 256, 192)
    entry = precision.measure(precision.Case(build, build, Precision.BF16), 2)
    assert entry["float32"]["median_s"] > 0 and entry["other"]["median_s"] > 0
    sizes = entry["constants_bytes"]
    assert sizes["other"] == sizes["float32"] / 2
    assert 0 < entry["largest_error"] < 2.0**-7


def test_what_is_as_given_is_not_off() -> None:
    entry = precision.measure(precision.Case(support_vectors, support_vectors), 1)
    assert entry["largest_error"] == 0


def test_a_summary_is_of_ratios() -> None:
    one = {
        "float32": {"median_s": 2.0},
        "other": {"median_s": 1.0},
        "constants_bytes": {"float32": 8, "other": 4},
    }
    figures = precision.mean_factors({"a": one, "b": one | {"other": {"median_s": 0.5}}})
    assert figures["speedup"] == {"mean": pytest.approx(np.sqrt(8)), "a": 2, "b": 4}
    assert figures["constants"]["mean"] == 0.5
    assert precision.mean_factors({})["speedup"]["mean"] is None
