"""How sessions start: what is packed and what is forgotten, and which models are whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tunewright.codegen.host import detect
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session import compile as compile_module
from tunewright.tuner.session.compile import build_kernels, compile_model

from .conftest import small_model


def test_a_model_in_its_last_use_loses_what_was_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an image is the same whatever was in memory before, as all of its constants go to disk."""
    target = detect(1)
    images = []
    monkeypatch.setattr(compile_module, "WEIGHT_BYTES", 1)
    for last_use, content in ((False, 0), (True, 255)):
        monkeypatch.setattr(
            compile_module, "aligned_block", lambda size_bytes, c=content: np.full(size_bytes, c, np.uint8)
        )
        opened = open_model(small_model().SerializeToString())
        model = replace(opened, last_use=last_use).merge(())
        known = set(model.graph.constants)
        schedules = {key: default_schedule(task, target) for key, (task, _) in model.tasks.items()}
        images.append(compile_model(model, build_kernels(model, schedules, target, None), 2))
        assert known and set(model.graph.constants) == (set() if last_use else known)
    kept, lost = images
    assert kept.steps == lost.steps
    assert len(kept.constants) > 1 and any(block.any() for block in kept.constants)
    for block, other in zip(kept.constants, lost.constants, strict=True):
        assert np.array_equal(block, other)
